"""A cordon: an operator keeps new work off one replica, until it is lifted or the replica is gone."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cordon:
    """Which replica, of which model, who said so, why, and when (time of day)."""

    replica_id: str
    model: str
    by: str
    why: str
    at_unix_s: float
