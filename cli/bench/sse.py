"""Splits a byte stream into server-sent events, wherever the network cut it.

Pure. Only what OpenAI-compatible servers send is kept: the `data` of each event, and whether the event is named `error`. One TCP chunk may hold
several events, and an event may come in several chunks; a quick path takes the usual event (one line, `data: ...`) without looking further.
"""

from typing import NamedTuple


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
