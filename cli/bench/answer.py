"""Reads one answer of an OpenAI-compatible server, streamed or whole: when tokens came, the usage, and how it failed.

Pure: bytes and times go in. A substring tells events with tokens from the others, so that the usual one costs no JSON
parsing: the client shares its cores with the servers that it measures.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from planning.workload.arrivals import FloatArray


class FailureKind(StrEnum):
    """Why a request does not count as answered."""

    CONNECT = "cannot connect"
    LOST = "connection lost"
    TIMEOUT = "timed out"
    HTTP = "HTTP"
    STREAM_ERROR = "error event in the stream"
    ENDED_EARLY = "stream ended without [DONE]"
    NO_TOKENS = "no token in the answer"
    BAD_ANSWER = "not an OpenAI answer"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed request: the kind, a short `detail` to count by (a status, an error code) and the message as it came."""

    kind: FailureKind
    detail: str = ""
    message: str = ""

    @property
    def label(self) -> str:
        """What failures are counted under."""
        return f"{self.kind} {self.detail}".strip()


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one request, as the server reports them; `cached_tokens` is None where it does not say."""

    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are seconds on the client's monotonic clock; durations start when the request is handed to the
    HTTP client.

    `ttft_s` and `decode_s` (first to last token) are None where the answer was not streamed or held no token. `gaps_s`
    are the times between successive events that carry tokens. `events` is their number, which stands in for the output
    tokens where `usage` is None.
    """

    sent_at: float
    ended_at: float
    ttft_s: float | None
    decode_s: float | None
    gaps_s: FloatArray
    events: int
    usage: TokenUsage | None
    failure: Failure | None

    @property
    def e2e_s(self) -> float:
        """Seconds from sending to the last byte."""
        return self.ended_at - self.sent_at


class Event(NamedTuple):
    """One event: its data, and whether its name says that it is an error."""

    data: bytes
    is_error: bool = False


class EventParser:
    """Feed it bytes as they come; it gives the events that they complete."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """What came after the last complete event."""
        return self._rest

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        if b"\r" in chunk:  # some servers end lines with CR LF; JSON never holds a bare CR
            chunk = chunk.replace(b"\r", b"")
        *blocks, self._rest = (self._rest + chunk).split(b"\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> Event | None:
    """The event in one block of lines; None for comments and for blocks without data."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return Event(block[6:])
    data: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.strip()
    return Event(b"\n".join(data), name == b"error") if data else None


_DONE = b"[DONE]"
_HAS_CHOICE = (b'"choices":[{', b'"choices": [{')  # without and with the blank that Python's json.dumps puts there
MESSAGE_LENGTH = 300


class StreamedAnswer:
    """A streamed answer: `feed` it the chunks with their times, `end` it, and read the fields."""

    def __init__(self) -> None:
        self._events = EventParser()
        self._last = b""
        self._done = False
        self._failure: Failure | None = None
        self.token_times: list[float] = []
        self.usage: TokenUsage | None = None

    def feed(self, chunk: bytes, now: float) -> None:
        """Takes a chunk that came at `now` (seconds)."""
        for event in self._events.feed(chunk):
            data = event.data
            if not event.is_error and (_HAS_CHOICE[0] in data or _HAS_CHOICE[1] in data):
                if self.token_times or not _announces_role(data):
                    self.token_times.append(now)
                self._last = data
            elif data == _DONE:
                self._done = True
            else:
                self._without_choice(event)

    def end(self) -> Failure | None:
        """Call when the stream has ended: how it failed, or None. Some servers send the usage with the last choice, not
        in an event of its own."""
        if self.usage is None and b'"usage"' in self._last:
            self.usage = read_usage(object_in(self._last))
        if self._failure is not None:
            return self._failure
        if not self._done:
            return Failure(FailureKind.ENDED_EARLY, message=f"after {len(self.token_times)} events with tokens")
        if not self.token_times:
            return Failure(FailureKind.NO_TOKENS)
        return None

    def gaps(self) -> FloatArray:
        """Seconds between successive events that carry tokens."""
        return np.diff(np.array(self.token_times))

    def _without_choice(self, event: Event) -> None:
        body = object_in(event.data)
        if event.is_error or "choices" not in body:
            self._failure = self._failure or Failure(FailureKind.STREAM_ERROR, *error_of(body, event.data))
        self.usage = read_usage(body) or self.usage


def read_whole(data: bytes) -> tuple[TokenUsage | None, Failure | None]:
    """The usage in an answer that was not streamed, and how it failed."""
    body = object_in(data)
    if not body.get("choices"):
        return None, Failure(FailureKind.BAD_ANSWER, message=data[:MESSAGE_LENGTH].decode(errors="replace"))
    return read_usage(body), None


def read_usage(body: dict[str, Any]) -> TokenUsage | None:
    """The token counts in an OpenAI `usage` object, None where there is none."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return TokenUsage(
        int(usage.get("prompt_tokens") or 0),
        None if cached is None else int(cached),
        int(usage.get("completion_tokens") or 0),
    )


def error_of(body: dict[str, Any], data: bytes) -> tuple[str, str]:
    """Of an error in OpenAI's format: what to count it by (its code, else its type), and its message; else the bytes as
    they are."""
    error = body.get("error", body)
    if not isinstance(error, dict) or "message" not in error:
        return "", data[:MESSAGE_LENGTH].decode(errors="replace")
    return str(error.get("code") or error.get("type") or "")[:60], str(error["message"])[:MESSAGE_LENGTH]


def _announces_role(data: bytes) -> bool:
    """Whether the event is a chat's opening one, which names the role and may come long before the first token."""
    return b'"role"' in data and (b'"content":""' in data or b'"content": ""' in data)


def object_in(data: bytes) -> dict[str, Any]:
    """A JSON object; empty where the bytes are none."""
    try:
        body = json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
