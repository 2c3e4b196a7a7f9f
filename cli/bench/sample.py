"""What is known of one request after it ended, and the closed list of ways in which it can fail."""

from dataclasses import dataclass
from enum import StrEnum

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
class Usage:
    """Token counts of one request, as the server reports them; `cached_tokens` is None where it does not say."""

    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are seconds on the client's monotonic clock; durations start when the request is handed to the HTTP client.

    `ttft_s` and `decode_s` (first to last token) are None where the answer was not streamed or held no token. `gaps_s` are the times between
    successive events that carry tokens. `events` is their number, which stands in for the output tokens where `usage` is None.
    """

    sent_at: float
    ended_at: float
    ttft_s: float | None
    decode_s: float | None
    gaps_s: FloatArray
    events: int
    usage: Usage | None
    failure: Failure | None

    @property
    def e2e_s(self) -> float:
        """Seconds from sending to the last byte."""
        return self.ended_at - self.sent_at
