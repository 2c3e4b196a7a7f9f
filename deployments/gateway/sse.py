"""Keeps a relayed event stream cut at the ends of events, so that an error event after a broken engine never lands inside half an event."""


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
        cut = piece.rfind(b"\n\n") + 2
        if cut < 2:
            self._tail = piece
            return b""
        self._tail = piece[cut:]
        return piece[:cut]

    def rest(self) -> bytes:
        """What is left at the stream's proper end."""
        rest, self._tail = self._tail, b""
        return rest
