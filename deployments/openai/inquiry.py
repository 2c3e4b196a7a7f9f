"""Reads from a request's body what routing needs, and nothing else: model, stream, lengths. The body itself goes on to
the engine untouched.

Unknown fields are passed over, since the engine judges those; the few that the gateway acts on are read strictly.
Whatever the body, the work and the memory are bounded: its values are counted first (`structure.py`), a field stays
bytes until it is read, and of long texts only the beginning is (`prompt.py`). The parser is msgspec's: it passes over
what nobody asks for without building it, and ends at the first error.
"""

import math
from dataclasses import dataclass, replace

import msgspec
from msgspec import Raw

from cluster.spec import RequestLimits
from deployments.openai.census import CENSUS, Effect, by_kind
from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import (
    ABSENT,
    begins_with,
    count_of,
    flag_of,
    is_nothing,
    is_null,
    missing,
    name_of,
    not_allowed,
    read_members,
    salt_given,
    shown,
)
from deployments.openai.guides import check_guide
from deployments.openai.prefix import Hashing, SaltOf, Text
from deployments.openai.prompt import MAX_OTHER_VALUES, Prompt, read_conversation, read_conversations, read_prompt
from deployments.openai.structure import structure_of

MAX_DEPTH = 128
"""Objects and lists in one another. Tools' schemas have some ten; parsers that are called again for each level run out
of stack at a thousand."""
MAX_VALUES = 1 << 18
UNSALTED = frozenset({BodyKind.TOKENIZER, BodyKind.COUNT})
"""Kinds of bodies whose prompts never reach an engine's cache."""
_MAX_SEQUENCES = 128
_VOCABULARY = 1 << 17
"""The log probabilities of a token where all are asked for (-1)."""
_SHORT = 64
"""Bytes of a value that is copied to be looked at."""
_HINT_BYTES = 1_024
"""So much of a hint is looked at: of a `prompt_cache_key`, and of a `service_tier`."""
_DEFAULT_COMPLETION_TOKENS = 16
"""What vLLM generates for /v1/completions when max_tokens is absent (OpenAI's default)."""


class _Fields(msgspec.Struct, gc=False):
    """The fields that the gateway looks at, in all kinds of bodies. Of two with one name the last counts, as with every
    parser in use."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    messages: Raw = ABSENT
    prompt: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    tokens: Raw = ABSENT
    echo: Raw = ABSENT
    prompt_logprobs: Raw = ABSENT
    logprobs: Raw = ABSENT
    top_logprobs: Raw = ABSENT
    system: Raw = ABSENT
    input: Raw = ABSENT
    instructions: Raw = ABSENT
    n: Raw = ABSENT
    max_tokens: Raw = ABSENT
    max_completion_tokens: Raw = ABSENT
    max_output_tokens: Raw = ABSENT
    cache_salt: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    service_tier: Raw = ABSENT
    truncation: Raw = ABSENT


_OWN = frozenset(_Fields.__struct_fields__)
_OTHERS = {field.name.partition(".")[0] for field in CENSUS if field.effect is not Effect.HARMLESS} - _OWN
_FIELDS: msgspec.json.Decoder[_Fields] = msgspec.json.Decoder(
    msgspec.defstruct("_AllFields", [(name, Raw, ABSENT) for name in _OTHERS], bases=(_Fields,), gc=False)
)
_REFUSED = {
    kind: [(*field.name.partition("."), field.why) for field in fields]
    for kind, fields in by_kind(Effect.REFUSED).items()
}
_ALSO_COUNTED = {
    kind: [field.name for field in fields if field.name not in _OWN] for kind, fields in by_kind(Effect.COUNTED).items()
}
"""What else is a part of the prompt, beside what the readers below take by name."""
_WITH_TOOLS = frozenset({BodyKind.CHAT, BodyKind.CHATS, BodyKind.RESPONSE, BodyKind.MESSAGES})
_BOUNDED = {
    kind: [field.name for field in fields] + ["tools"] * (kind in _WITH_TOOLS)
    for kind, fields in by_kind(Effect.BOUNDED).items()
}
_LIMITS = RequestLimits()
_TRUNCATIONS = {b'"auto"': True, b'"disabled"': False}


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What routing knows of a request of that `kind`. `model` is empty where the client names none.

    `prompt_chars` counts the characters of text in the longest of its prompts and `prompt_ids` its token ids where the
    client sent ids; `max_tokens` is the client's bound on the output (None: the context's end), `sequences` prompts x
    n. `prefix`: the hashes of its leading chunks (of the only prompt; several have none). `cache_salt`: the salt of its
    prompts in the engine's prefix cache, None: none. The hashes are salted alike, so that what the engine does not
    share gives no credit; the client's `prompt_cache_key` is a part of them, too. `service_tier`: as the client sent
    it, "" for none. `prompt_logprobs`: so many log probabilities the answer has for each token of each prompt.
    `truncation`: whether turns of a conversation that is too long may go; None: the client does not say.
    """

    kind: BodyKind
    model: str
    stream: bool
    prompt_chars: int
    prompt_ids: int
    max_tokens: int | None
    max_tokens_field: str
    prompt_field: str
    sequences: int
    prefix: tuple[int, ...] = ()
    cache_salt: str | None = None
    service_tier: str = ""
    prompt_logprobs: int = 0
    truncation: bool | None = None

    def check_limits(self, context: int, max_sequences: int, max_chars: float = math.inf) -> None:
        """Raises ApiError for what the model's context (tokens; surely at most `max_chars` of text) or
        `limits.max_sequences` does not allow."""
        if self.max_tokens is not None and self.max_tokens > context:
            message = (
                f"{self.max_tokens_field} = {shown(self.max_tokens)}: allowed: 1 to {context}, the model's context"
            )
            raise ApiError(ErrorCode.INVALID_VALUE, message, param=self.max_tokens_field)
        if self.prompt_ids > context or self.prompt_chars > max_chars:
            found, over = f"{self.prompt_ids} tokens", f"{self.prompt_ids - context}"
            if self.prompt_ids <= context:
                found = f"{self.prompt_chars} characters"
                over = f"at least {math.ceil((self.prompt_chars / max_chars - 1) * context)}"
            allowed = f"at most {context} tokens, the model's context"
            message = f"{self.prompt_field}: {found}; allowed: {allowed}: {over} tokens too many"
            raise ApiError(ErrorCode.CONTEXT_LENGTH, message, param=self.prompt_field)
        if self.sequences > max_sequences:
            message = (
                f"{self.prompt_field}: prompts x n = {self.sequences}; allowed: at most max_sequences = "
                f"{max_sequences} in one request"
            )
            raise ApiError(ErrorCode.INVALID_VALUE, message, param=self.prompt_field)

    def check_prompt_logprobs(self, prompt_tokens: int, allowed: int) -> None:
        """Raises ApiError for more than `limits.max_prompt_logprobs` allows, with prompts of so many tokens."""
        asked = self.prompt_logprobs * prompt_tokens * self.sequences
        if asked > allowed:
            message = (
                f"prompt_logprobs (or echo with logprobs): about {asked} log probabilities of the prompt's tokens; "
                f"allowed: at most gateway.limits.max_prompt_logprobs = {allowed}"
            )
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="prompt_logprobs")


def read_inquiry(
    kind: BodyKind,
    body: bytes,
    max_values: int = MAX_VALUES,
    salt_of: SaltOf | None = None,
    limits: RequestLimits = _LIMITS,
) -> Inquiry:
    """The inquiry in a JSON body of at most `max_values` values, whose prompt is to be salted by `salt_of`. `limits`:
    of what guides its answer.

    Raises ApiError that names the field, its value and what is allowed.
    """
    values = _values_of(body, max_values)
    try:
        fields = _FIELDS.decode(body)
    except msgspec.ValidationError:
        raise ApiError(ErrorCode.INVALID_JSON, "the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(error) from None
    try:
        kind = _kind_of(fields) if kind is BodyKind.ANY else kind
        given = salt_given("cache_salt", fields.cache_salt)
        salt = given if salt_of is None or kind in UNSALTED else salt_of(given)
        also = [value for name in _ALSO_COUNTED[kind] if (value := getattr(fields, name)) and not is_null(value)]
        inquiry = _READERS[kind](fields, also, values, _hashing(salt, fields.prompt_cache_key))
        tier = _tier(fields.service_tier)
        _refuse(kind, fields)
        for name in _BOUNDED[kind]:
            if (guide := getattr(fields, name)) and not is_null(guide):
                check_guide(name, guide, limits)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_json(error) from None
    return replace(inquiry, cache_salt=salt, service_tier=tier) if tier or salt is not None else inquiry


def _hashing(salt: str | None, cache_key: Raw) -> Hashing:
    """Prompts of another `prompt_cache_key` get other hashes: what a client sends under one key goes to the replicas
    that have seen this key. The salt before it is the tenant's."""
    salted = (salt or "").encode()
    return Hashing(salted if is_null(cache_key) else salted + b"\0" + bytes(memoryview(cache_key)[:_HINT_BYTES]))


def _tier(value: Raw) -> str:
    """A hint: what is no short text says nothing."""
    short = begins_with(value, b'"') and len(value) <= _HINT_BYTES
    return msgspec.json.decode(value, type=str) if short else ""


def _chat(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    prompt = read_conversation("messages", fields.messages, values, hashing, also)
    return _inquiry(BodyKind.CHAT, fields, prompt, "messages", *_chat_limit(fields), _n(fields))


def _chats(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    """Several conversations, each answered; the answers come together, and so are never streamed."""
    prompt = read_conversations("messages", fields.messages, values, hashing, also)
    return replace(_inquiry(BodyKind.CHATS, fields, prompt, "messages", *_chat_limit(fields)), stream=False)


def _chat_limit(fields: _Fields) -> tuple[int | None, str]:
    """The client's bound on an answer, and the field that has it."""
    limit = count_of("max_completion_tokens", fields.max_completion_tokens)
    return (
        (count_of("max_tokens", fields.max_tokens), "max_tokens") if limit is None else (limit, "max_completion_tokens")
    )


def _messages(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    limit = count_of("max_tokens", fields.max_tokens)
    prompt = read_conversation("messages", fields.messages, values, hashing, also, fields.system)
    if not fields.model or limit is None:
        raise missing("max_tokens" if fields.model else "model")
    return _inquiry(BodyKind.MESSAGES, fields, prompt, "messages", limit, "max_tokens")


def _completion(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    minimum = 0 if flag_of("echo", fields.echo) else 1
    limit = count_of("max_tokens", fields.max_tokens, minimum=minimum)
    limit = (
        _DEFAULT_COMPLETION_TOKENS if limit is None else max(limit, 1)
    )  # vLLM generates a token even where it shows none
    if is_null(fields.prompt) and is_nothing(fields.prompt_embeds):
        message = "Either prompt or prompt_embeds must be provided and non-empty."  # as vLLM says it
        raise ApiError(ErrorCode.INVALID_VALUE, message, param="prompt")
    prompt = read_prompt("prompt", fields.prompt, values, hashing)
    prompt = replace(prompt, chars=prompt.chars + sum(map(len, also)))
    return _inquiry(BodyKind.COMPLETION, fields, prompt, "prompt", limit, "max_tokens", _n(fields))


def _embedding(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    prompt = replace(
        read_prompt("input", fields.input, values, hashing), prefix=()
    )  # an embedding's prompts seldom begin alike
    return _inquiry(BodyKind.EMBEDDING, fields, prompt, "input", 0, "")


def _response(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    limit = count_of("max_output_tokens", fields.max_output_tokens)
    prompt = read_conversation("input", fields.input, values, hashing, also, fields.instructions, or_text=True)
    inquiry = _inquiry(BodyKind.RESPONSE, fields, prompt, "input", limit, "max_output_tokens")
    said = bytes(memoryview(fields.truncation)[:_SHORT])
    return replace(inquiry, truncation=_TRUNCATIONS[said]) if said in _TRUNCATIONS else inquiry


def _tokenizer(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    """A text, a conversation (which vLLM takes where both are given), or ids to detokenize."""
    model, stream = name_of("model", fields.model), flag_of("stream", fields.stream)
    if is_null(fields.messages):
        text = Text()
        text.add(fields.prompt)
        chars, field = text.chars, "prompt"
    else:
        chars, field = read_conversation("messages", fields.messages, values, hashing, also).chars, "messages"
    ids = bytes(fields.tokens).count(b",") + 1 if fields.tokens else 0
    return Inquiry(BodyKind.TOKENIZER, model, stream, chars, ids, 0, "", "tokens" if ids else field, 1)


def _count(fields: _Fields, also: list[Raw], values: int, hashing: Hashing) -> Inquiry:
    if not fields.model:
        raise missing("model")
    prompt = read_conversation("messages", fields.messages, values, hashing, also, fields.system)
    return Inquiry(BodyKind.COUNT, name_of("model", fields.model), False, prompt.chars, 0, 0, "", "messages", 1)


_READERS = {
    BodyKind.CHAT: _chat,
    BodyKind.CHATS: _chats,
    BodyKind.COMPLETION: _completion,
    BodyKind.EMBEDDING: _embedding,
    BodyKind.RESPONSE: _response,
    BodyKind.MESSAGES: _messages,
    BodyKind.TOKENIZER: _tokenizer,
    BodyKind.COUNT: _count,
}


def _kind_of(fields: _Fields) -> BodyKind:
    """What a body asks for that comes to the one path for all: the first of these that its fields fit, as vLLM tries
    them."""
    for kind, prompt in (
        (BodyKind.CHAT, fields.messages),
        (BodyKind.COMPLETION, fields.prompt),
        (BodyKind.EMBEDDING, fields.input),
    ):
        if prompt:
            return kind
    raise ApiError(
        ErrorCode.INVALID_VALUE,
        "messages, prompt and input: all missing; required: one of them, because it says what kind of request this is",
    )


def _inquiry(
    kind: BodyKind, fields: _Fields, prompt: Prompt, prompt_field: str, limit: int | None, limit_field: str, n: int = 1
) -> Inquiry:
    model, stream = name_of("model", fields.model), flag_of("stream", fields.stream)
    inquiry = Inquiry(
        kind, model, stream, prompt.chars, prompt.ids, limit, limit_field, prompt_field, prompt.count * n, prompt.prefix
    )
    shown = _prompt_logprobs(kind, fields) if fields.prompt_logprobs or fields.echo else 0
    return replace(inquiry, prompt_logprobs=shown) if shown else inquiry


def _prompt_logprobs(kind: BodyKind, fields: _Fields) -> int:
    """The token's own, and as many alternatives as are asked for."""
    field, value = "prompt_logprobs", fields.prompt_logprobs
    if is_null(value) and not is_nothing(fields.echo):
        completion = kind is BodyKind.COMPLETION
        field, value = ("logprobs", fields.logprobs) if completion else ("top_logprobs", fields.top_logprobs)
    count = count_of(field, value, minimum=-1)
    return 0 if count is None else _VOCABULARY if count < 0 else count + 1


def _refuse(kind: BodyKind, fields: _Fields) -> None:
    """Raises ApiError for what the census refuses."""
    for name, dot, member, why in _REFUSED[kind]:
        value = getattr(fields, name)
        if value and dot:
            value = read_members(value).get(member, ABSENT) if begins_with(value, b"{") else ABSENT
        if value and not is_nothing(value):
            error = not_allowed(name + dot + member, value, f"leave it out: {why}")
            raise ApiError(ErrorCode.UNSUPPORTED, error.message, param=name + dot + member)


def _n(fields: _Fields) -> int:
    return count_of("n", fields.n, _MAX_SEQUENCES) or 1


def _values_of(body: bytes, max_values: int) -> int:
    """How many values a body has (of a small one, at most). Raises ApiError for too many, or too deep ones."""
    if len(body) <= min(MAX_OTHER_VALUES, max_values) and body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return len(body)  # brackets inside strings count, too; quicker than `structure_of` for small ones
    structure = structure_of(body, max_values, MAX_DEPTH)
    if structure.depth > MAX_DEPTH:
        message = (
            f"the body has {structure.depth} levels of nested objects and lists, or more; allowed: at most {MAX_DEPTH}"
        )
        raise ApiError(ErrorCode.BODY_TOO_LARGE, message)
    if structure.values > max_values:
        message = (
            f"the body has {structure.values} or more values; allowed: at most gateway.limits.max_values = {max_values}"
        )
        raise ApiError(ErrorCode.BODY_TOO_LARGE, message)
    return structure.values


def _not_json(error: Exception) -> ApiError:
    return ApiError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {str(error)[:100]}")
