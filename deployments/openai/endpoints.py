"""The paths that the gateway relays, what it needs to know of each, and what it changes in an engine's answer: an error
takes the client's form, a stream is cut at the ends of events.

vLLM's own errors have a number for a code, several words for one type, `body.` before the field's name or no field
at all. The message stays as it is. What an engine answers with success is never touched.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from deployments.openai.errors import ApiError, Dialect, ErrorCode, lost
from deployments.protocol import ENGINE_DIED_CODE, ERROR_EVENTS, NAMED_ERROR_EVENT


class ModelTask(StrEnum):
    """What kind of model an endpoint needs."""

    GENERATE = "generate"
    EMBED = "embed"
    ANY = "any"


class BodyKind(StrEnum):
    """Which fields of the body carry the prompt."""

    CHAT = "chat"
    CHATS = "chats"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RESPONSE = "response"
    MESSAGES = "messages"
    TOKENIZER = "tokenizer"
    COUNT = "count"
    ANY = "any"
    """Which of the others it is, its fields tell."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`leased`: runs on the engine and so waits in a lane; the tokenizer's endpoints go straight to any ready replica.

    `path` is also the engine's, but where the body is of ANY kind: that request goes to the path of the endpoint that
    it is for.
    """

    path: str
    body: BodyKind
    task: ModelTask
    leased: bool = True
    dialect: Dialect = Dialect.OPENAI

    @property
    def streams(self) -> bool:
        """Whether its answers come as event streams where the client asks for that."""
        return self.task is ModelTask.GENERATE


ENDPOINTS = (
    Endpoint("/v1/chat/completions", BodyKind.CHAT, ModelTask.GENERATE),
    Endpoint("/v1/chat/completions/batch", BodyKind.CHATS, ModelTask.GENERATE),
    Endpoint("/v1/completions", BodyKind.COMPLETION, ModelTask.GENERATE),
    Endpoint("/v1/responses", BodyKind.RESPONSE, ModelTask.GENERATE, dialect=Dialect.RESPONSES),
    Endpoint("/v1/embeddings", BodyKind.EMBEDDING, ModelTask.EMBED),
    Endpoint("/v1/messages", BodyKind.MESSAGES, ModelTask.GENERATE, dialect=Dialect.ANTHROPIC),
    Endpoint("/v1/messages/count_tokens", BodyKind.COUNT, ModelTask.GENERATE, leased=False, dialect=Dialect.ANTHROPIC),
    Endpoint("/invocations", BodyKind.ANY, ModelTask.ANY),
    Endpoint("/tokenize", BodyKind.TOKENIZER, ModelTask.ANY, leased=False),
    Endpoint("/detokenize", BodyKind.TOKENIZER, ModelTask.ANY, leased=False),
)

BY_KIND: Mapping[BodyKind, Endpoint] = {
    endpoint.body: endpoint for endpoint in ENDPOINTS if endpoint.body is not BodyKind.TOKENIZER
}
"""The endpoint for a body of each kind but the tokenizer's, of which there are two."""


CONVERSATIONS = {BodyKind.CHAT: "messages", BodyKind.MESSAGES: "messages", BodyKind.RESPONSE: "input"}
"""Which member has the conversation, of the kinds of bodies that generate from one."""
_TOO_LONG = ("input_tokens", "input_text")
"""What vLLM calls the field of a prompt that is over the context by its tokens, or surely so by its characters."""
_PROMPT_FIELDS = {
    **dict.fromkeys((BodyKind.CHAT, BodyKind.CHATS, BodyKind.MESSAGES, BodyKind.COUNT), "messages"),
    **dict.fromkeys((BodyKind.RESPONSE, BodyKind.EMBEDDING), "input"),
}
_CONVERTERS_OWN = "validation error for ChatCompletionStreamResponse"
"""vLLM makes the stream of `/v1/messages` of a chat's, and says this of an error in it, with internals behind."""
_WORD = re.compile(r"[a-z_]+")
_SHOWN_CHARS = 2_000
_MAX_WORDS = 100
_ABSENT = msgspec.Raw(b"")


def engine_error(status: int, payload: bytes, kind: BodyKind, body: bytes) -> ApiError:
    """The error in an engine's answer of `status` (400 or above) to a request with `body`."""
    given = _error_object(payload)
    message = str(
        given.get("message") or payload[:_SHOWN_CHARS].decode(errors="replace") or f"the engine answered {status}"
    )[:_SHOWN_CHARS]
    if status >= 500:
        if _CONVERTERS_OWN in message:
            message = "the engine failed while it answered"
        return lost() if given.get("code") == ENGINE_DIED_CODE else ApiError(ErrorCode.ENGINE_ERROR, message)
    if status == 404:
        return ApiError(ErrorCode.NOT_FOUND, message, param=_text(given.get("param")))
    prompt_field = _PROMPT_FIELDS.get(kind, "prompt")
    param = (_text(given.get("param")) or "").removeprefix("body.").partition(".")[0] or _named_field(message, body)
    if param in _TOO_LONG:
        return ApiError(ErrorCode.CONTEXT_LENGTH, message, param=prompt_field)
    return ApiError(ErrorCode.INVALID_VALUE, message, param=param)


def rewrite_error_events(events: bytes, endpoint: Endpoint, body: bytes) -> tuple[ApiError | None, bytes]:
    """Whole events of a stream with the errors among them in the client's form, and the last of those errors. The
    stream's own end stays where it was."""
    found, rewritten = None, []
    for event in events.split(b"\n\n"):
        if event.startswith(ERROR_EVENTS):
            payload = event.removeprefix(NAMED_ERROR_EVENT).removeprefix(b"data: ")
            code = _error_object(payload).get("code")
            found = engine_error(
                code if isinstance(code, int) and 400 <= code < 600 else 500, payload, endpoint.body, body
            )
            event = found.sse_event(endpoint.dialect).removesuffix(b"\n\n").removesuffix(b"\n\ndata: [DONE]")
        rewritten.append(event)
    return found, b"\n\n".join(rewritten)


def _error_object(payload: bytes) -> dict[str, Any]:
    try:
        content = json.loads(payload)
    except ValueError:
        return {}
    found = content.get("error", content) if isinstance(content, dict) else {}
    return found if isinstance(found, dict) else {"message": found}


def _named_field(message: str, body: bytes) -> str | None:
    """The first field of the request that the message names. `model` is left out: it is a common word.

    Whatever the body's size, nothing of it is built.
    """
    words = [word for word in dict.fromkeys(_WORD.findall(message)) if word != "model"][:_MAX_WORDS]
    asked = [(f"word{number}", msgspec.Raw, _ABSENT) for number in range(len(words))]
    fields = msgspec.defstruct(
        "Fields", asked, rename={name: word for (name, _, _), word in zip(asked, words, strict=True)}
    )
    try:
        found = msgspec.json.decode(body, type=fields)
    except (msgspec.DecodeError, RecursionError):
        return None
    return next((word for (name, _, _), word in zip(asked, words, strict=True) if getattr(found, name)), None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


_BLANKS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The empty line that ends an event, in each of the forms of lines that the standard allows (vLLM sends the first)."""


class EventSplitter:
    """Passes on whole events and holds back the tail of an unfinished one. Nearly every piece ends with an event, and
    is then passed as it is."""

    def __init__(self) -> None:
        self.tail = b""

    def feed(self, piece: bytes) -> bytes:
        """What of the stream may be passed on now that `piece` came."""
        if self.tail:
            piece = self.tail + piece
        if piece.endswith(b"\n\n"):
            self.tail = b""
            return piece
        cut = max(piece.rfind(blank) + len(blank) if blank in piece else 0 for blank in _BLANKS)
        self.tail = piece[cut:]
        return piece[:cut]

    def rest(self) -> bytes:
        rest, self.tail = self.tail, b""
        return rest
