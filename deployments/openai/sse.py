"""Keeps a relayed event stream cut at the ends of events, so that an error event after a broken engine never lands inside half an event."""

_BLANKS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The empty line that ends an event, in each of the forms of lines that the standard allows (vLLM sends the first)."""


class Events:
    """Passes on whole events and holds back the tail of an unfinished one. Nearly every piece ends with an event, and is then passed as it is."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, piece: bytes) -> bytes:
        """What of the stream may be passed on now that `piece` came."""
        if self._tail:
            piece = self._tail + piece
        if piece.endswith(b"\n\n"):
            self._tail = b""
            return piece
        cut = max(piece.rfind(blank) + len(blank) if blank in piece else 0 for blank in _BLANKS)
        self._tail = piece[cut:]
        return piece[:cut]

    def rest(self) -> bytes:
        """What is left at the stream's proper end."""
        rest, self._tail = self._tail, b""
        return rest
