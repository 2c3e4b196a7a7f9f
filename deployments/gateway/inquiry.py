"""Reads from a request's body what routing needs, and nothing else: model, stream, lengths. The body itself goes on to the engine untouched.

The pydantic models ignore unknown fields, since the engine judges those, and are strict about the few that the gateway acts on.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployments.gateway.endpoints import BodyKind
from deployments.gateway.errors import ApiError, ErrorCode
from deployments.gateway.prefix import chat_text, ids_prefix, text_prefix

Count = Annotated[int, Field(ge=1)]
PromptText = str | list[int] | list[str] | list[list[int]]
_TEXT = "a text, a list of texts, token ids, or a list of lists of token ids"


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    model: str
    stream: bool | None = False


class _Chat(_Body):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    tools: Any = None


class _Completion(_Body):
    prompt: PromptText
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None


class _Embedding(_Body):
    input: PromptText


class _Response(_Body):
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    tools: Any = None
    max_output_tokens: Count | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None


class _Tokenizer(_Body):
    model: str | None = None  # type: ignore[assignment]


_FORMS: dict[BodyKind, type[_Body]] = {
    BodyKind.CHAT: _Chat,
    BodyKind.COMPLETION: _Completion,
    BodyKind.EMBEDDING: _Embedding,
    BodyKind.RESPONSE: _Response,
    BodyKind.TOKENIZER: _Tokenizer,
}
_DEFAULT_COMPLETION_TOKENS = 16
"""What vLLM generates for /v1/completions when max_tokens is absent (OpenAI's default)."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What routing knows of a request.

    `prompt_chars` counts the characters of text in the longest of its prompts and `prompt_ids` its token ids where the client sent ids;
    `max_tokens` is the client's bound on the output (None: the context's end), `sequences` prompts x n. `prefix`: the hashes of its leading chunks
    (of the only prompt; several have none).
    """

    model: str
    stream: bool
    prompt_chars: int
    prompt_ids: int
    max_tokens: int | None
    max_tokens_field: str
    prompt_field: str
    sequences: int
    prefix: tuple[int, ...] = ()


def read_inquiry(kind: BodyKind, body: bytes) -> Inquiry:
    """The inquiry in a JSON body. Raises ApiError that names the field, its value and what is allowed."""
    try:
        form = _FORMS[kind].model_validate_json(body)
    except ValidationError as error:
        raise _as_api_error(_FORMS[kind], error) from None
    match form:
        case _Chat():
            field = "max_completion_tokens" if form.max_completion_tokens is not None else "max_tokens"
            limit = form.max_completion_tokens if form.max_completion_tokens is not None else form.max_tokens
            prefix = text_prefix(chat_text(form.messages, form.tools))
            return _inquiry(form, text_chars(form.messages), 0, limit, field, "messages", form.n or 1, prefix)
        case _Completion():
            chars, ids, prompts = _measure("prompt", form.prompt)
            limit = _DEFAULT_COMPLETION_TOKENS if form.max_tokens is None else form.max_tokens
            return _inquiry(form, chars, ids, limit, "max_tokens", "prompt", prompts * (form.n or 1), _prefix(form.prompt))
        case _Embedding():
            chars, ids, prompts = _measure("input", form.input)
            return _inquiry(form, chars, ids, 0, "", "input", prompts)
        case _Response():
            _refuse_state(form)
            chars = text_chars(form.input) + len(form.instructions or "")
            prefix = text_prefix(_response_text(form))
            return _inquiry(form, chars, 0, form.max_output_tokens, "max_output_tokens", "input", 1, prefix)
        case _:
            return _inquiry(form, 0, 0, 0, "", "prompt", 1)


def _inquiry(
    form: _Body, chars: int, ids: int, limit: int | None, limit_field: str, prompt_field: str, sequences: int, prefix: tuple[int, ...] = ()
) -> Inquiry:
    return Inquiry(form.model or "", bool(form.stream), chars, ids, limit, limit_field, prompt_field, sequences, prefix)


def _prefix(prompt: PromptText) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return text_prefix(prompt)
    ids = [item for item in prompt if isinstance(item, int)]
    return ids_prefix(ids) if len(ids) == len(prompt) else ()


def _response_text(form: _Response) -> str:
    messages = [{"role": "user", "content": form.input}] if isinstance(form.input, str) else form.input
    return chat_text(([{"role": "system", "content": form.instructions}] if form.instructions else []) + messages, form.tools)


def _measure(field: str, prompt: PromptText) -> tuple[int, int, int]:
    """Characters and ids of the longest prompt, and how many prompts there are."""
    if isinstance(prompt, str):
        return len(prompt), 0, 1
    if not prompt:
        raise ApiError(ErrorCode.INVALID_VALUE, f"{field} = []: an empty list; allowed: {_TEXT}", param=field)
    if isinstance(prompt[0], int):
        return 0, len(prompt), 1
    texts = [len(item) for item in prompt if isinstance(item, str)]
    ids = [len(item) for item in prompt if isinstance(item, list)]
    return max(texts, default=0), max(ids, default=0), len(prompt)


def text_chars(value: object) -> int:
    """The characters of all text in a message list: contents, parts, tool calls."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(text_chars(item) for key, item in value.items() if key not in ("image_url", "input_audio", "file"))
    if isinstance(value, list):
        return sum(text_chars(item) for item in value)
    return 0


def _refuse_state(form: _Response) -> None:
    refused: tuple[tuple[Literal["store", "background", "previous_response_id"], bool], ...] = (
        ("store", form.store is True),
        ("background", form.background is True),
        ("previous_response_id", form.previous_response_id is not None),
    )
    for name, is_set in refused:
        if is_set:
            message = f"{name} = {getattr(form, name)!r}: responses are stateless here; allowed: leave {name} out"
            raise ApiError(ErrorCode.UNSUPPORTED, message, param=name)


def _as_api_error(form: type[_Body], error: ValidationError) -> ApiError:
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "json_invalid":
        return ApiError(ErrorCode.INVALID_JSON, f"the body is not valid JSON: {problem['msg']}")
    if not problem["loc"]:
        return ApiError(ErrorCode.INVALID_JSON, "the body must be a JSON object")
    param = str(problem["loc"][0])
    if problem["type"] == "missing":
        return ApiError(ErrorCode.INVALID_VALUE, f"{param}: missing, and it is required", param=param)
    allowed = f"allowed: {_TEXT}" if form.model_fields[param].annotation == PromptText else problem["msg"]
    return ApiError(ErrorCode.INVALID_VALUE, f"{param} = {shown(problem['input'])}: {allowed}", param=param)


def shown(value: object) -> str:
    """A value of the client's, short enough for an error message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
