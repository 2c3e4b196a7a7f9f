"""The paths that the gateway relays, what it needs to know of each, and the dialect that its clients speak: the form
of errors and of heartbeats."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


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
