"""Every error that a client can get, as one closed table, and its form in each dialect.

`endpoints.py` says which of them an engine's own becomes.
"""

import json
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any


class Dialect(StrEnum):
    """Whose form an endpoint's errors and events have."""

    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's newer API: errors as above, events with names."""
    ANTHROPIC = "anthropic"

    def heartbeat(self, comment: str) -> bytes:
        """What is sent to a client that waits. Anthropic's clients know an event for it; others get a comment, which
        every client passes over."""
        return b'event: ping\ndata: {"type": "ping"}\n\n' if self is Dialect.ANTHROPIC else f": {comment}\n\n".encode()


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    504: "timeout_error",
}
_ANTHROPIC_OVERLOADED = 529
"""Anthropic's own status for `overloaded_error`: its clients know one by it, and come back."""


class ErrorCode(Enum):
    """Code, HTTP status and OpenAI error type."""

    INVALID_JSON = ("invalid_json", 400, "invalid_request_error")
    INVALID_VALUE = ("invalid_value", 400, "invalid_request_error")
    UNSUPPORTED = ("unsupported", 400, "invalid_request_error")
    CONTEXT_LENGTH = ("context_length_exceeded", 400, "invalid_request_error")
    UNAUTHORIZED = ("unauthorized", 401, "invalid_request_error")
    INVALID_KEY = ("invalid_api_key", 401, "invalid_request_error")
    CLASS_NOT_ALLOWED = ("class_not_allowed", 403, "invalid_request_error")
    ORIGIN_NOT_ALLOWED = ("origin_not_allowed", 403, "invalid_request_error")
    NOT_FOUND = ("not_found", 404, "invalid_request_error")
    MODEL_NOT_FOUND = ("model_not_found", 404, "invalid_request_error")
    NEEDS_RESTART = ("needs_restart", 409, "invalid_request_error")
    SPEC_CHANGED = ("spec_changed", 409, "invalid_request_error")
    NOT_OWNER = ("not_owner", 409, "invalid_request_error")
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, "invalid_request_error")
    CLIENT_TOO_SLOW = ("client_too_slow", 408, "invalid_request_error")
    BODY_TOO_LARGE = ("body_too_large", 413, "invalid_request_error")
    QUERY_OF_DEATH = ("query_of_death", 422, "invalid_request_error")
    REQUEST_LIMIT = ("request_limit_exceeded", 429, "rate_limit_error")
    TOKEN_LIMIT = ("token_limit_exceeded", 429, "rate_limit_error")
    CONCURRENCY_LIMIT = ("concurrency_limit_exceeded", 429, "rate_limit_error")
    INTERNAL = ("internal_error", 500, "server_error")
    ENGINE_ERROR = ("engine_error", 500, "server_error")
    REPLICA_LOST = ("replica_lost", 502, "server_error")
    PEER_LOST = ("peer_lost", 502, "server_error")
    OVERLOADED = ("overloaded", 503, "overloaded_error")
    HOP_REFUSED = ("hop_refused", 503, "overloaded_error")
    NO_REPLICA = ("no_replica", 503, "overloaded_error")
    NO_DIRECTORY = ("no_directory", 503, "server_error")
    DRAINING = ("draining", 503, "overloaded_error")
    QUEUE_TIMEOUT = ("queue_timeout", 503, "overloaded_error")
    FIRST_BYTE_TIMEOUT = ("first_byte_timeout", 504, "server_error")
    BETWEEN_BYTES_TIMEOUT = ("between_bytes_timeout", 504, "server_error")
    TOTAL_TIMEOUT = ("total_timeout", 504, "server_error")

    def __init__(self, code: str, status: int, kind: str) -> None:
        self.code = code
        self.status = status
        self.kind = kind


class ApiError(Exception):
    """An answer that is an error. `param` names the field of the request's body that is at fault. Raised anew each
    time: it carries its traceback."""

    def __init__(
        self, error: ErrorCode, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error object of OpenAI's API."""
        return {
            "error": {"message": self.message, "type": self.error.kind, "param": self.param, "code": self.error.code}
        }

    def status(self, dialect: Dialect) -> int:
        is_overload = dialect is Dialect.ANTHROPIC and self.error.kind == "overloaded_error"
        return _ANTHROPIC_OVERLOADED if is_overload else self.error.status

    def payload(self, dialect: Dialect = Dialect.OPENAI) -> bytes:
        """The JSON body of the HTTP answer."""
        return json.dumps(self._anthropic_body() if dialect is Dialect.ANTHROPIC else self.body()).encode()

    def sse_event(self, dialect: Dialect) -> bytes:
        """The event that ends a stream which broke after its start."""
        match dialect:
            case Dialect.OPENAI:
                return b"data: " + self.payload() + b"\n\ndata: [DONE]\n\n"
            case Dialect.RESPONSES:
                data = {"type": "error", "code": self.error.code, "message": self.message, "param": self.param}
                return b"event: error\ndata: " + json.dumps(data).encode() + b"\n\n"
            case Dialect.ANTHROPIC:
                return b"event: error\ndata: " + self.payload(dialect) + b"\n\n"

    def _anthropic_body(self) -> dict[str, Any]:
        """The error object of Anthropic's API, which has no room for a code or a field: the message names both."""
        given = self.error.kind if self.error.kind in ("overloaded_error", "rate_limit_error") else "api_error"
        kind = _ANTHROPIC_KINDS.get(self.error.status) or (
            given if self.error.status >= 429 else "invalid_request_error"
        )
        return {"type": "error", "error": {"type": kind, "message": f"{self.error.code}: {self.message}"}}


def lost() -> ApiError:
    return ApiError(ErrorCode.REPLICA_LOST, "the replica that ran this request was lost; the request may be sent again")
