"""Within what a law may move: from the spec, changed without a restart."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """`least` and `most` replicas; `ceiling`: as many as the hourly cost ceiling pays for. At most `up_per_min` replicas are added and `down_per_min`
    taken away in any 60 s (infinite: no limit); a step of one is always allowed once a minute.

    Books older than `stale_s` are not decided by. A silent replica forbids steps down for `silent_s`. What could not be scheduled for
    `unschedulable_s` counts as impossible, and is asked for again after `retry_s`.
    """

    least: int = 1
    most: int = 1
    ceiling: int | None = None
    up_per_min: float = math.inf
    down_per_min: float = math.inf
    stale_s: float = 5.0
    silent_s: float = 60.0
    unschedulable_s: float = 900.0
    retry_s: float = 300.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"least={self.least}, most={self.most}: allowed: 0 <= least <= most")
        for name in ("up_per_min", "down_per_min", "stale_s", "silent_s", "unschedulable_s", "retry_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: allowed: above 0")
