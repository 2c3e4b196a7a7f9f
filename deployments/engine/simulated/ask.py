"""Reads a request's body: what is asked, and how long the simulated answer will be. Pure.

Prompts are counted as the gateway estimates them (`openai/prompt.py`), so that the two agree. What only a real engine
can do (tool calls, guided output, log probabilities, stop words) is read over: the answer is filler whatever is asked.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw

from cluster.spec import Simulated
from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError
from deployments.openai.fields import ABSENT, salt_given
from deployments.openai.prefix import CHUNK_IDS, PLAIN, Hashing, ids_prefix, text_prefix
from deployments.openai.prompt import MAX_OTHER_VALUES, TokenRatio, read_conversation

_RATIO = TokenRatio()
_COMPLETION_TOKENS = 16
"""What vLLM generates for /v1/completions when max_tokens is absent."""
_PATH = re.compile(r"`\$\.(\w+)")
"""Where msgspec says which field is at fault."""
CHUNK_TOKENS = CHUNK_IDS
"""Tokens of a prompt that the prefix cache knows by one hash."""
_CHUNK_CHARS = _RATIO.chars_of(CHUNK_TOKENS)
_Prompt = tuple[int, tuple[int, ...]]
"""The tokens of a prompt, and the hashes of its chunks."""
Count = Annotated[int, Meta(ge=1)]
_Form = TypeVar("_Form", bound=msgspec.Struct)


class AskError(ValueError):
    """A request that vLLM would refuse. `param` is what vLLM calls the field at fault."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _Body(msgspec.Struct):
    """vLLM's fields of a chat and of a completion that matter here. Its numbers may be given as texts, as vLLM's
    may."""

    model: str | None = None
    messages: Raw = ABSENT
    tools: Raw = ABSENT
    documents: Raw = ABSENT
    prompt: Raw = ABSENT
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = False
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool = False
    n: Annotated[int, Meta(ge=1, le=16_384)] | None = None
    seed: int | None = None
    cache_salt: Raw = ABSENT


class _Tokenize(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: Raw = ABSENT
    tokens: list[int] | None = None
    return_token_strs: bool | None = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to generate. `prompts`: the tokens of each; `max_tokens` None: as many as fit; `seed`: what the lengths
    are drawn by.

    `prefixes`: the hashes of each prompt's chunks of `CHUNK_TOKENS`, salted as vLLM's are.
    """

    stream: bool
    include_usage: bool
    prompts: tuple[int, ...]
    n: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    seed: str
    prefixes: tuple[tuple[int, ...], ...] = ()


def read_ask(kind: BodyKind, body: bytes, model: str, request_id: str) -> Ask:
    """The request in a body. Raises AskError."""
    form = _parsed(_Body, body)
    if form.max_tokens == 0 and (kind is BodyKind.CHAT or not form.echo):
        raise AskError("max_tokens: Expected `int` >= 1; 0 is for `echo`", "max_tokens")
    hashing = Hashing((_salt(form.cache_salt) or "").encode(), _CHUNK_CHARS)
    if kind is BodyKind.CHAT:
        return _ask(
            form,
            [_chat_prompt(form.messages, len(body), hashing, (form.tools, form.documents))],
            form.max_completion_tokens or form.max_tokens,
            model,
            request_id,
        )
    limit = max(_COMPLETION_TOKENS, form.min_tokens or 0) if form.max_tokens is None else max(form.max_tokens, 1)
    return _ask(form, _prompts(form.prompt, hashing), limit, model, request_id)


def answer_tokens(ask: Ask, number: int, room: int, simulated: Simulated) -> tuple[int, bool]:
    """How many tokens the answer number `number` has where `room` fit the context, and whether it ended by itself (and
    not at its bound).

    With `min_tokens` it ends there: as soon as vLLM would let it, so that a client can set a length that the gateway
    does not know. Else with `max_tokens` it ends there; without either its length is drawn.
    """
    maximum = room if ask.max_tokens is None else min(room, ask.max_tokens)
    if ask.min_tokens and not ask.ignore_eos:
        desired = ask.min_tokens
    elif ask.max_tokens is not None or ask.ignore_eos:
        desired = maximum
    else:
        drawn = random.Random(f"{ask.seed}/{number}").lognormvariate(
            math.log(simulated.answer_tokens), simulated.answer_sigma
        )
        desired = max(1, round(drawn))
    return min(maximum, desired), desired < maximum


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """A request to /tokenize: the text, and its number of tokens; or to /detokenize: the ids."""

    text: str
    count: int
    ids: tuple[int, ...]
    with_strings: bool


def read_tokenizing(body: bytes) -> Tokenizing:
    """The request in a body. Raises AskError."""
    given = _parsed(_Tokenize, body)
    text = given.prompt or ""
    count = _RATIO.tokens(len(text), 0) if not given.messages else _chat_prompt(given.messages, len(body), PLAIN)[0]
    return Tokenizing(text, count, tuple(given.tokens or ()), bool(given.return_token_strs))


def _ask(form: _Body, prompts: Sequence[_Prompt], limit: int | None, model: str, request_id: str) -> Ask:
    if form.model not in (None, model):
        raise AskError(f"The model `{form.model}` does not exist.", "model", 404)
    options = form.stream_options
    return Ask(
        stream=bool(form.stream),
        include_usage=bool(options and options.include_usage),
        prompts=tuple(tokens for tokens, _ in prompts),
        n=form.n or 1,
        max_tokens=limit,
        min_tokens=form.min_tokens or 0,
        ignore_eos=form.ignore_eos,
        seed=request_id if form.seed is None else str(form.seed),
        prefixes=tuple(prefix for _, prefix in prompts),
    )


def _chat_prompt(messages: Raw, values: int, hashing: Hashing, also: Sequence[Raw] = ()) -> _Prompt:
    try:
        prompt = read_conversation("messages", messages, min(values, MAX_OTHER_VALUES), hashing, also)
    except ApiError as error:
        raise AskError(error.message, error.param) from None
    return _RATIO.tokens(prompt.chars, 0), prompt.prefix


def _prompts(prompt: Raw, hashing: Hashing) -> list[_Prompt]:
    try:
        given = msgspec.json.decode(prompt or b"null", type=str | list[int | str | list[int]])
    except msgspec.ValidationError as error:
        raise AskError(f"prompt: {error}", "prompt") from None
    if isinstance(given, str):
        return [_text_prompt(given, hashing)]
    if given and isinstance(given[0], int):
        return [_ids_prompt([one for one in given if isinstance(one, int)], hashing)]
    found = [
        _text_prompt(one, hashing) if isinstance(one, str) else _ids_prompt(one, hashing)
        for one in given
        if not isinstance(one, int)
    ]
    if not found:
        raise AskError("prompt: an empty list", "prompt")
    return found


def _text_prompt(text: str, hashing: Hashing) -> _Prompt:
    return _RATIO.tokens(len(text), 0), text_prefix(text, hashing)


def _ids_prompt(ids: list[int], hashing: Hashing) -> _Prompt:
    return max(1, len(ids)), ids_prefix(",".join(map(str, ids)).encode(), hashing)


def _salt(value: Raw) -> str | None:
    try:
        return salt_given("cache_salt", value)
    except ApiError as error:
        raise AskError(error.message, error.param) from None


def _parsed(form: type[_Form], body: bytes) -> _Form:
    try:
        return msgspec.json.decode(body, type=form, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        named = _PATH.search(str(error))
        raise AskError(f"{named[1] if named else 'body'}: {error}", named[1] if named else None) from None
