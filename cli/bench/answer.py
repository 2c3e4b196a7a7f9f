"""Reads one answer of an OpenAI-compatible server, streamed or whole: when tokens came, the usage, and how it went wrong.

Pure: bytes and times go in. Events that carry tokens are told from the others by a substring, so that the usual one costs no JSON parsing; the
client shares its cores with the servers that it measures.
"""

import json
from typing import Any

import numpy as np

from cli.bench.sample import Failure, FailureKind, Usage
from cli.bench.sse import Event, EventParser
from planning.workload.arrivals import FloatArray

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
        self.usage: Usage | None = None

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
        """Call when the stream has ended: how it failed, or None. Some servers send the usage with the last choice, not in an event of its own."""
        if self.usage is None and b'"usage"' in self._last:
            self.usage = read_usage(_object(self._last))
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
        body = _object(event.data)
        if event.is_error or "choices" not in body:
            self._failure = self._failure or Failure(FailureKind.STREAM_ERROR, *error_of(body, event.data))
        self.usage = read_usage(body) or self.usage


def read_whole(data: bytes) -> tuple[Usage | None, Failure | None]:
    """The usage in an answer that was not streamed, and how it failed."""
    body = _object(data)
    if not body.get("choices"):
        return None, Failure(FailureKind.BAD_ANSWER, message=data[:MESSAGE_LENGTH].decode(errors="replace"))
    return read_usage(body), None


def read_usage(body: dict[str, Any]) -> Usage | None:
    """The token counts in an OpenAI `usage` object, None where there is none."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(int(usage.get("prompt_tokens") or 0), None if cached is None else int(cached), int(usage.get("completion_tokens") or 0))


def error_of(body: dict[str, Any], data: bytes) -> tuple[str, str]:
    """Of an error in OpenAI's format: what to count it by (its code, else its type), and its message; else the bytes as they are."""
    error = body.get("error", body)
    if not isinstance(error, dict) or "message" not in error:
        return "", data[:MESSAGE_LENGTH].decode(errors="replace")
    return str(error.get("code") or error.get("type") or "")[:60], str(error["message"])[:MESSAGE_LENGTH]


def _announces_role(data: bytes) -> bool:
    """Whether the event is a chat's opening one, which names the role and may come long before the first token."""
    return b'"role"' in data and (b'"content":""' in data or b'"content": ""' in data)


def _object(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
