"""What an operator has ordered. The number of replicas: it goes over the policy's, and ends by itself; the autoscaler
applies it. Or to keep new work off one. The directory keeps both."""

from dataclasses import dataclass
from enum import StrEnum

MAX_REPLICAS = 10_000
SHORTEST_S = 1.0
"""What ends before an autoscaler's next turn was never in force."""
LONGEST_S = 7 * 86_400.0
"""No control holds longer than a week without being said again."""


class ControlKind(StrEnum):
    """`HOLD`: no fewer than so many, the policy may want more. `PIN`: exactly so many."""

    HOLD = "hold"
    PIN = "pin"


@dataclass(frozen=True, slots=True)
class Control:
    """`replicas` until `until_unix_s` (time of day); `by` and `why` are for the audit."""

    kind: ControlKind
    replicas: int
    until_unix_s: float
    by: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if self.replicas < 0:
            raise ValueError(f"replicas={self.replicas}: allowed: 0 or more")


@dataclass(frozen=True, slots=True)
class Cordon:
    """Which replica, of which model, who said so, why, and when (time of day)."""

    replica_id: str
    model: str
    by: str
    why: str
    at_unix_s: float


def in_force(controls: tuple[Control, ...], unix_s: float) -> tuple[Control, ...]:
    return tuple(control for control in controls if unix_s < control.until_unix_s)
