"""The prompts in a request's body: how many there are, how long they are, and the hashes of their beginning.

They are read from their JSON bytes, and lists of token ids are never built. Lengths are estimates (a chat template
adds its own tokens): `TokenRatio` learns from the engine's own counts how many characters a token has.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import ABSENT, begins_with, is_null, missing, not_allowed
from deployments.openai.prefix import PLAIN, Hashing, Text, ids_prefix

MAX_OTHER_VALUES = 1 << 16
"""Values of a body other than the token ids of its prompts. A hundred tools with twenty parameters each have ten
thousand."""
MAX_MESSAGES = 1 << 12
"""Messages and parts of messages in one conversation."""

_PROMPTS = "a text, a list of texts, token ids, or a list of lists of token ids"
_USER = b'"user"'
_IDS = b"0123456789- \t\r\n"
"""What a list of token ids is made of, beside its brackets and commas."""
_LISTS_OF_IDS = re.compile(rb"\[\[,*+\](?:,\[,*+\])*+\]")
"""A list of such lists without that."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`chars` of text in the longest of `count` prompts, and its token `ids` where ids were sent. `prefix`: the only
    prompt's hashes."""

    chars: int
    ids: int
    count: int
    prefix: tuple[int, ...] = ()


class _Message(msgspec.Struct, gc=False):
    """A message of a chat, or an item of a response's input: what of it templates put into prompts. All from `name` on
    are texts, or count as JSON."""

    role: Raw = ABSENT
    content: Raw = ABSENT
    output: Raw = ABSENT
    name: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    arguments: Raw = ABSENT
    tool_calls: Raw = ABSENT
    tool_call_id: Raw = ABSENT
    tools: Raw = ABSENT
    task: Raw = ABSENT
    call_id: Raw = ABSENT
    input: Raw = ABSENT
    summary: Raw = ABSENT


class _Part(msgspec.Struct, gc=False):
    """A part of a message: its text, or what tells one picture, sound or file from another (`_MEDIA`); in Anthropic's
    form also a thought, a call of a tool, or what came of one (`_SAID`)."""

    text: Raw = ABSENT
    content: Raw = ABSENT
    image_url: Raw = ABSENT
    video_url: Raw = ABSENT
    audio_url: Raw = ABSENT
    input_audio: Raw = ABSENT
    file: Raw = ABSENT
    source: Raw = ABSENT
    thinking: Raw = ABSENT
    refusal: Raw = ABSENT
    id: Raw = ABSENT
    name: Raw = ABSENT
    input: Raw = ABSENT
    tool: Raw = ABSENT
    tool_name: Raw = ABSENT
    tool_use_id: Raw = ABSENT


_MEDIA, _SAID = slice(2, 8), slice(8, None)
_MESSAGES = msgspec.json.Decoder(list[_Message])
_PARTS = msgspec.json.Decoder(list[_Part])
_ITEMS = msgspec.json.Decoder(list[Raw])


def read_prompt(field: str, value: Raw, values: int, hashing: Hashing = PLAIN) -> Prompt:
    """The prompts of a completion or an embedding, in a body of `values` values. Raises ApiError, msgspec.DecodeError
    and UnicodeDecodeError."""
    if not value:
        raise missing(field)
    if begins_with(value, b'"'):
        check_other_values(values)
        return _one_text(value, hashing)
    if not begins_with(value, b"["):
        raise not_allowed(field, value, _PROMPTS)
    shape = bytes(value).translate(None, _IDS)
    if shape.translate(None, b",") == b"[]":
        return _one_list_of_ids(field, value, values, hashing)
    if _LISTS_OF_IDS.fullmatch(shape):
        check_other_values(values - shape.count(b","))
        lists = shape[2:-2].split(b"],[")
        return Prompt(0, max(map(len, lists)) + 1, len(lists))
    check_other_values(values)
    texts = _ITEMS.decode(value)
    if not all(begins_with(text, b'"') for text in texts):
        raise not_allowed(field, value, _PROMPTS)
    return Prompt(max(map(_chars, texts)), 0, len(texts))


def read_conversation(
    field: str,
    value: Raw,
    values: int,
    hashing: Hashing = PLAIN,
    also: Sequence[Raw] = (),
    instructions: Raw = ABSENT,
    or_text: bool = False,
) -> Prompt:
    """The one prompt that a chat's messages make, or a response's input, behind what comes `also` into it. Raises
    ApiError, msgspec.DecodeError and UnicodeDecodeError."""
    check_other_values(values)
    if not value:
        raise missing(field)
    text = Text()
    for more in also:
        _add_any(text, more)
    seen = 0
    if not is_null(instructions):
        text.mark("\x1esystem\x1f")
        seen = _add_content(text, instructions)
    if or_text and begins_with(value, b'"'):
        text.mark("\x1euser\x1f")
        text.add(value)
    else:
        _add_all(text, _messages(field, value, or_text), seen)
    return Prompt(text.chars, 0, 1, text.prefix(hashing))


def read_conversations(
    field: str, value: Raw, values: int, hashing: Hashing = PLAIN, also: Sequence[Raw] = ()
) -> Prompt:
    """The prompts that a list of conversations makes, one each, each with what comes `also` into it. Raises ApiError,
    msgspec.DecodeError and UnicodeDecodeError."""
    check_other_values(values)
    if not value:
        raise missing(field)
    conversations = _ITEMS.decode(value) if begins_with(value, b"[") else []
    if not conversations:
        raise not_allowed(field, value, "a list of conversations, not empty, each a list of objects")
    prompts = [read_conversation(field, conversation, values, hashing) for conversation in conversations]
    prefix = prompts[0].prefix if len(prompts) == 1 and not also else ()
    return Prompt(max(prompt.chars for prompt in prompts) + sum(map(len, also)), 0, len(prompts), prefix)


def chars_of_messages(value: Raw) -> list[int]:
    """The characters of each message of a conversation that `read_conversation` has read."""
    texts = []
    for message in _MESSAGES.decode(value):
        texts.append(Text())
        _add(texts[-1], message)
    return [text.chars for text in texts]


def check_other_values(values: int) -> None:
    """Raises ApiError for a body with too many values that are no token ids of a prompt."""
    if values > MAX_OTHER_VALUES:
        message = (
            f"the body has {values} values that are not token ids of a prompt; allowed: at most {MAX_OTHER_VALUES}"
        )
        raise ApiError(ErrorCode.BODY_TOO_LARGE, message)


def _chars(value: Raw) -> int:
    text = Text()
    text.add(value)
    return text.chars


def _one_text(value: Raw, hashing: Hashing) -> Prompt:
    text = Text()
    text.add(value)
    return Prompt(text.chars, 0, 1, text.prefix(hashing))


def _one_list_of_ids(field: str, value: Raw, values: int, hashing: Hashing) -> Prompt:
    inside = bytes(value).translate(None, b"[] \t\r\n")
    if not inside:
        raise not_allowed(field, value, _PROMPTS)
    count = inside.count(b",") + 1
    check_other_values(values - count)
    return Prompt(0, count, 1, ids_prefix(inside, hashing))


def _messages(field: str, value: Raw, or_text: bool) -> list[_Message]:
    allowed = f"a list of objects, not empty{', or a text' if or_text else ''}"
    if not begins_with(value, b"["):
        raise not_allowed(field, value, allowed)
    try:
        messages = _MESSAGES.decode(value)
    except msgspec.ValidationError:
        raise not_allowed(field, value, allowed) from None
    if not messages:
        raise not_allowed(field, value, allowed)
    return messages


def _add_all(text: Text, messages: Sequence[_Message], seen: int) -> None:
    """Adds the messages, behind `seen` parts of instructions."""
    for message in messages:
        seen += 1 + _add(text, message)
        if seen > MAX_MESSAGES or len(messages) > MAX_MESSAGES:
            count = max(seen, len(messages))
            counted = f"the conversation has {count} messages and parts of messages or more"
            raise ApiError(ErrorCode.BODY_TOO_LARGE, f"{counted}; allowed: at most {MAX_MESSAGES}")


def _add(text: Text, message: _Message) -> int:
    """Adds a message. Returns of how many parts it is."""
    text.mark("\x1e")
    text.add(message.role)
    text.mark("\x1f")
    parts = _add_content(text, message.content, message.role) + _add_content(text, message.output)
    for more in msgspec.structs.astuple(message)[3:]:
        if more:
            _add_any(text, more)
    return parts


def _add_any(text: Text, value: Raw) -> None:
    """Adds a text, or any other value as JSON."""
    if begins_with(value, b'"'):
        text.add(value)
    elif not is_null(value):
        text.add_json(value)


def _add_content(text: Text, content: Raw, role: Raw = ABSENT) -> int:
    """Adds a text or a list of parts. A part's own content may be another such list: of a user's message vLLM takes the
    texts in it, of any other the whole as it is. Returns of how many parts it is."""
    if not begins_with(content, b"["):
        text.add(content)
        return 0
    try:
        parts = _PARTS.decode(content)
    except msgspec.ValidationError:  # a list with bare texts in it, which some templates take
        text.add_json(content)
        return 0
    count = len(parts)
    if count > MAX_MESSAGES:
        return count
    is_users = len(role) == len(_USER) and bytes(role) == _USER
    for part in parts:
        if part.text:
            text.add(part.text)
        values = msgspec.structs.astuple(part)
        for media in filter(None, values[_MEDIA]):
            text.mark_json(media)
        for said in filter(None, values[_SAID]):
            _add_any(text, said)
        if part.content and is_users:
            count += _add_content(text, part.content)
        elif part.content:
            _add_any(text, part.content)
    return count


_FIRST_GUESS = 3.0
_MIN_RATIO, _MAX_RATIO = 0.25, 16.0
"""Beyond these it is no ratio of text: a picture, or a prompt that its client has cut off (`truncate_prompt_tokens`)
after the gateway had counted it. It must not teach what other clients' prompts are taken for."""
_WEIGHT = 0.05
_FIRST_DEVIATION = 0.15
"""The mean deviation that is assumed before any was seen, of tokens in proportion to their estimate."""
_DEVIATIONS = 4.0
"""So many mean deviations above the estimate hardly any prompt lies: three standard deviations of a normal error."""
_SURELY = 4.0
"""Over its whole length no text has so many times the mean characters a token: code with deep indents has twice."""
_LONG_TOKENS = 256
"""Of shorter prompts the chat template is too large a part; and no context is so short that theirs matters."""


class TokenRatio:
    """Characters per token of one model, an exponentially weighted mean that starts at a cautious guess (more tokens
    than English has). `deviation`: by what share prompts differ from their estimates, a mean of the same kind."""

    def __init__(self) -> None:
        self.chars_per_token = _FIRST_GUESS
        self.deviation = _FIRST_DEVIATION

    def tokens(self, chars: int, ids: int) -> int:
        """The estimate for a prompt of `chars` characters, or of exactly `ids` token ids; at least 1."""
        return max(1, ids or round(chars / self.chars_per_token))

    def max_tokens(self, chars: int, ids: int) -> int:
        """The prompt hardly has more tokens; 0: it has exactly `ids`."""
        return 0 if ids else round(self.tokens(chars, 0) * (1.0 + _DEVIATIONS * self.deviation))

    def max_chars(self, tokens: int) -> int:
        """Text of so many tokens surely has no more."""
        return round(tokens * _SURELY * max(self.chars_per_token, _FIRST_GUESS))

    def chars_of(self, tokens: int) -> int:
        return max(1, round(tokens * self.chars_per_token))

    def observe(self, chars: int, tokens: int) -> None:
        if chars >= 16 and tokens > 0:
            if tokens >= _LONG_TOKENS:
                expected = chars / self.chars_per_token
                self.deviation += _WEIGHT * (abs(tokens - expected) / expected - self.deviation)
            seen = min(_MAX_RATIO, max(_MIN_RATIO, chars / tokens))
            self.chars_per_token += _WEIGHT * (seen - self.chars_per_token)
