"""What a check finds."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """`WARN` leaves raylane working, `BAD` does not."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """One checked thing: what was found, and the command that mends it where something is wrong."""

    what: str
    verdict: Verdict
    found: str
    mend: str | None = None
