"""The dialects that clients speak: how an API tells of errors and keeps a stream alive. Its answers are the engine's own, to the byte."""

from enum import StrEnum


class Dialect(StrEnum):
    """Whose form an endpoint's errors and events have."""

    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's newer API: errors as above, events with names."""
    ANTHROPIC = "anthropic"

    def heartbeat(self, comment: str) -> bytes:
        """What is sent to a client that waits. Anthropic's clients know an event for it; others get a comment, which every client passes over."""
        return b'event: ping\ndata: {"type": "ping"}\n\n' if self is Dialect.ANTHROPIC else f": {comment}\n\n".encode()
