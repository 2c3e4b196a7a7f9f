"""Reads a request's body: what is asked, and how long the simulated answer will be. Pure.

Prompts are counted as the gateway estimates them (`gateway/lengths.py`), so that the two agree. What only a real engine can do (tools, guided output,
log probabilities, stop words) is read over: the answer is filler whatever is asked.
"""

import math
import random
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.spec import Simulated
from deployments.gateway.endpoints import BodyKind
from deployments.gateway.inquiry import PromptText, text_chars
from deployments.gateway.lengths import TokenRatio

_RATIO = TokenRatio()
_COMPLETION_TOKENS = 16
"""What vLLM generates for /v1/completions when max_tokens is absent."""
Count = Annotated[int, Field(ge=1)]
_Form = TypeVar("_Form", bound=BaseModel)


class AskError(ValueError):
    """A request that vLLM would refuse. `param` is what vLLM calls the field at fault."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


class _StreamOptions(BaseModel):
    include_usage: bool | None = False


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=16_384)] | None = None
    seed: int | None = None


class _Chat(_Body):
    messages: list[dict[str, Any]]
    max_completion_tokens: Count | None = None


class _Completion(_Body):
    prompt: PromptText


class _Tokenize(BaseModel):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tokens: list[int] | None = None
    return_token_strs: bool | None = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to generate. `prompts`: the tokens of each; `max_tokens` None: as many as fit; `seed`: what the lengths are drawn by."""

    stream: bool
    include_usage: bool
    prompts: tuple[int, ...]
    n: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    seed: str


def read_ask(kind: BodyKind, body: bytes, model: str, request_id: str) -> Ask:
    """The request in a body. Raises AskError."""
    if kind is BodyKind.CHAT:
        chat = _parsed(_Chat, body)
        prompts: tuple[int, ...] = (_RATIO.tokens(text_chars(chat.messages), 0),)
        return _ask(chat, prompts, chat.max_completion_tokens or chat.max_tokens, model, request_id)
    completion = _parsed(_Completion, body)
    limit = completion.max_tokens or max(_COMPLETION_TOKENS, completion.min_tokens or 0)
    return _ask(completion, _prompts(completion.prompt), limit, model, request_id)


def answer_tokens(ask: Ask, number: int, room: int, simulated: Simulated) -> tuple[int, bool]:
    """How many tokens the answer number `number` has where `room` fit the context, and whether it ended by itself (and not at its bound).

    With `min_tokens` it ends there: as soon as vLLM would let it, so that a client can set a length that the gateway is not told. Else with
    `max_tokens` it ends there; without either its length is drawn.
    """
    most = room if ask.max_tokens is None else min(room, ask.max_tokens)
    if ask.min_tokens and not ask.ignore_eos:
        wanted = ask.min_tokens
    elif ask.max_tokens is not None or ask.ignore_eos:
        wanted = most
    else:
        drawn = random.Random(f"{ask.seed}/{number}").lognormvariate(math.log(simulated.answer_tokens), simulated.answer_sigma)
        wanted = max(1, round(drawn))
    return min(most, wanted), wanted < most


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
    text = given.prompt if given.prompt is not None else "".join(str(message.get("content") or "") for message in given.messages or ())
    chars = len(text) if given.messages is None else text_chars(given.messages)
    return Tokenizing(text, _RATIO.tokens(chars, 0), tuple(given.tokens or ()), bool(given.return_token_strs))


def _ask(form: _Body, prompts: tuple[int, ...], limit: int | None, model: str, request_id: str) -> Ask:
    if form.model not in (None, model):
        raise AskError(f"The model `{form.model}` does not exist.", "model", 404)
    options = form.stream_options
    seed = request_id if form.seed is None else str(form.seed)
    return Ask(bool(form.stream), bool(options and options.include_usage), prompts, form.n or 1, limit, form.min_tokens or 0, form.ignore_eos, seed)


def _prompts(prompt: PromptText) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return (_RATIO.tokens(len(prompt), 0),)
    if prompt and isinstance(prompt[0], int):
        return (len(prompt),)
    found = tuple(_RATIO.tokens(len(one), 0) if isinstance(one, str) else max(1, len(one)) for one in prompt if not isinstance(one, int))
    if not found:
        raise AskError("prompt: an empty list", "prompt")
    return found


def _parsed(form: type[_Form], body: bytes) -> _Form:
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        param = str(problem["loc"][0]) if problem["loc"] else None
        raise AskError(f"{param or 'body'}: {problem['msg']}", param) from None
