"""Times, durations, shares and headline figures as a reader of a report sees them."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One figure of the headline."""

    name: str
    value: str
    note: str = ""


def at(seconds: float) -> str:
    """A time since the start, h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def duration(seconds: float) -> str:
    """With a unit that keeps it short; a dash for NaN."""
    if math.isnan(seconds):
        return "-"
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.01 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def bound(seconds: float) -> str:
    """An SLO, as exact as it was given."""
    return f"{1e3 * seconds:g} ms" if seconds < 1 else f"{seconds:g} s"


def percent(share: float, digits: int = 0) -> str:
    """Rounded; a dash for NaN."""
    return "-" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def attained(share: float) -> str:
    """Rounded down, so that no miss looks like 100 %; a dash for NaN."""
    return "-" if math.isnan(share) else f"{math.floor(1e4 * share + 1e-9) / 100:.2f} %"
