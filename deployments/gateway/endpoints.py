"""The paths that the gateway relays, and what it needs to know of each."""

from dataclasses import dataclass
from enum import StrEnum


class Task(StrEnum):
    """What kind of model an endpoint needs."""

    GENERATE = "generate"
    EMBED = "embed"
    ANY = "any"


class BodyKind(StrEnum):
    """Which fields of the body carry the prompt."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RESPONSE = "response"
    TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`leased`: runs on the engine and so waits in a lane; the tokenizer's endpoints go straight to any ready replica."""

    path: str
    body: BodyKind
    task: Task
    leased: bool = True
    named_sse: bool = False

    @property
    def streams(self) -> bool:
        """Whether its answers come as event streams where the client asks for that."""
        return self.task is Task.GENERATE


ENDPOINTS = (
    Endpoint("/v1/chat/completions", BodyKind.CHAT, Task.GENERATE),
    Endpoint("/v1/completions", BodyKind.COMPLETION, Task.GENERATE),
    Endpoint("/v1/responses", BodyKind.RESPONSE, Task.GENERATE, named_sse=True),
    Endpoint("/v1/embeddings", BodyKind.EMBEDDING, Task.EMBED),
    Endpoint("/tokenize", BodyKind.TOKENIZER, Task.ANY, leased=False),
    Endpoint("/detokenize", BodyKind.TOKENIZER, Task.ANY, leased=False),
)
