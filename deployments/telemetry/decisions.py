"""The decisions taken on one request, in order, each with its reason: what `raylane why` shows."""

from dataclasses import dataclass, field
from enum import StrEnum


class RequestVerdict(StrEnum):
    """What was decided. The first three are the scheduler's admission, the last three end a request or an attempt.

    `REFUSED`: a replica took no work. `RESUBMITTED`: it died at the work, or its engine did. After either the request
    waits again.
    """

    ADMITTED = "admitted"
    QUEUED = "queued"
    REJECTED = "rejected"
    PROMOTED = "promoted"
    PLACED = "placed"
    REFUSED = "refused"
    RESUBMITTED = "resubmitted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class RequestDecision:
    """`at_s` after the request's arrival. `reason` is the value of one of the closed enums; `facts` are the numbers
    that it rests on."""

    at_s: float
    verdict: RequestVerdict
    reason: str
    facts: dict[str, object] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        return {"at_s": round(self.at_s, 6), "verdict": self.verdict.value, "reason": self.reason, **self.facts}
