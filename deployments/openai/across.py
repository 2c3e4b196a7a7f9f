"""Whether a request means the same to another model, so that this one may answer it: as the census says of its fields,
and only text.

A spec does not say which models see pictures or hear, so that what is no text stays with its own model.
"""

import msgspec
from msgspec import Raw

from cluster.spec import Model
from deployments.openai.census import CENSUS, Across
from deployments.openai.endpoints import CONVERSATIONS, BodyKind
from deployments.openai.fields import ABSENT, begins_with, is_nothing, read_members

_KINDS = {*CONVERSATIONS, BodyKind.COMPLETION}
"""Those that may change their model. (A completion's prompt is a text.)"""
_NOT_THE_SAME = {
    kind: {
        field.name.partition(".")[0]: field.across
        for field in CENSUS
        if kind in field.kinds and field.across is not Across.SAME
    }
    for kind in _KINDS
}
_TOOLS_AND_THOUGHTS = (
    "thinking reasoning reasoning_text summary_text tool_use tool_result function_call function_call_output "
    "custom_tool_call custom_tool_call_output"
)
_TEXT = {"message", "text", "input_text", "output_text", "refusal", *_TOOLS_AND_THOUGHTS.split()}
"""Types of messages and of their parts that are text."""


class _Part(msgspec.Struct, gc=False):
    type: str = "text"
    content: Raw = ABSENT
    output: Raw = ABSENT


_PARTS = msgspec.json.Decoder(list[_Part])


def means_the_same(kind: BodyKind, body: bytes, asked: Model, other: Model) -> bool:
    """Whether a request to `asked` that was read before (`inquiry.py`), and names it, may go to `other`."""
    if kind not in _KINDS:
        return False
    has = {
        Across.TOOLS: other.settings.tool_call_parser or not asked.settings.tool_call_parser,
        Across.REASONING: other.settings.reasoning_parser or not asked.settings.reasoning_parser,
    }
    fields, bound = read_members(body), _NOT_THE_SAME[kind]
    if any(not has.get(bound[name]) and not is_nothing(value) for name, value in fields.items() if name in bound):
        return False
    return is_text(fields.get(CONVERSATIONS.get(kind, ""), ABSENT))


def is_text(value: Raw) -> bool:
    """Whether a prompt, or a part of it, has only text in it."""
    if not begins_with(value, b"["):
        return True
    try:
        parts = _PARTS.decode(value)
    except msgspec.ValidationError:  # bare texts, which some templates take
        return False
    return all(part.type in _TEXT and is_text(part.content) and is_text(part.output) for part in parts)
