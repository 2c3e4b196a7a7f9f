"""A request as the external tier gets it: fields of OpenAI's API alone, and those only that change the answer.

A request that says more, in a field of vLLM's or by something that is not text, stays in the cluster.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Raw

from deployments.openai.across import is_text
from deployments.openai.endpoints import BodyKind
from deployments.openai.fields import ABSENT, begins_with, is_nothing, is_null, read_members
from deployments.openai.inquiry import Inquiry

_GENERATING = "temperature top_p n stop seed frequency_penalty presence_penalty max_tokens stream"
_TALKING = "messages tools tool_choice parallel_tool_calls response_format max_completion_tokens"
_BOUNDS = {"max_tokens", "max_completion_tokens"}
_SENT = {
    BodyKind.COMPLETION: frozenset(f"prompt {_GENERATING}".split()),
    BodyKind.CHAT: frozenset(f"{_TALKING} {_GENERATING}".split()),
}
_LEFT_OUT = frozenset(
    ["model", "stream_options", "user", "metadata", "store", "safety_identifier", "service_tier", "cache_salt"]
) | {"prompt_cache_key", "priority", "request_id"}
"""Fields that change no token: who asks, and how this cluster treats it."""
_OF_MESSAGES = frozenset(["role", "content", "name", "tool_calls", "tool_call_id", "refusal"])
_MESSAGES = msgspec.json.Decoder(list[dict[str, Raw]])
Tokens = tuple[int, int]
"""In and out."""


@dataclass(frozen=True, slots=True)
class ExternalBody:
    """`content` is sent. `most`: the tokens that it may be; one of a prompt has at least a byte. `asks_usage`: the
    client wants the usage of its stream, which is always asked for."""

    content: bytes
    most: Tokens
    asks_usage: bool


def external_body(inquiry: Inquiry, body: bytes, model: str, max_tokens: int) -> ExternalBody | None:
    """The body for that model, of one that was read before; None: not all that it says can be said there.
    `max_tokens`: where it has no bound."""
    sent = _SENT.get(inquiry.kind)
    if sent is None or inquiry.prompt_ids:
        return None
    fields = {name: value for name, value in read_members(body).items() if name in sent or not is_nothing(value)}
    messages = fields.get("messages", ABSENT)
    options = fields.get("stream_options", ABSENT)
    if options and not begins_with(options, b"{"):
        return None
    if not fields.keys() <= sent | _LEFT_OUT or not is_text(messages):
        return None
    if messages and any(not one.keys() <= _OF_MESSAGES for one in _MESSAGES.decode(messages)):
        return None
    bound = max_tokens if inquiry.max_tokens is None else inquiry.max_tokens
    kept = (sent - _BOUNDS) & fields.keys()
    members: dict[str, object] = {name: fields[name] for name in kept if not is_null(fields[name])}
    members |= {"model": model, inquiry.max_tokens_field: bound}
    if inquiry.stream:
        members["stream_options"] = {"include_usage": True}
    asks_usage = not is_nothing(read_members(options or b"{}").get("include_usage", ABSENT))
    content = msgspec.json.encode(members)
    most = len(content) * inquiry.sequences, bound * inquiry.sequences
    return ExternalBody(content, most, asks_usage)


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
"""More than any request can have would be too large for the bill, at the highest price that a spec may have."""


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Count
    completion_tokens: _Count = 0


class _Answer(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    choices: list[Raw] = []


_ANSWER = msgspec.json.Decoder(_Answer)


def usage_in(answer: bytes) -> tuple[Tokens | None, bool]:
    """The tokens that an answer, or an event of a stream, tells of (None: none, or none that can be); and whether it
    tells of nothing else."""
    try:
        found = _ANSWER.decode(answer.strip().removeprefix(b"data:"))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None, False
    usage = found.usage
    return (None, False) if usage is None else ((usage.prompt_tokens, usage.completion_tokens), not found.choices)
