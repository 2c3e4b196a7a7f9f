"""The bounds within which a policy may move, and one scaling decision: what the policy wanted, what was requested, and
the reason."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autoscaling.policies.policy import Concern, PolicyReason
from cluster.spec import Autoscaling

_DEFAULTS = Autoscaling()
"""The spec's: they stand nowhere else."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`minimum` and `maximum` replicas; `ceiling`: as many as the hourly cost ceiling pays for. At most `up_per_min`
    replicas are added and `down_per_min` taken away in any 60 s (infinite: no limit); a step of one is always allowed
    once a minute.

    Books older than `stale_s` are not decided by. An unresponsive replica forbids steps down for `unresponsive_s`. What
    could not be scheduled for `unschedulable_s` counts as impossible, and is asked for again after `retry_s`.
    """

    minimum: int
    maximum: int
    ceiling: int | None = None
    up_per_min: float = math.inf
    down_per_min: float = math.inf
    stale_s: float = _DEFAULTS.stale_s
    unresponsive_s: float = _DEFAULTS.unresponsive_s
    unschedulable_s: float = _DEFAULTS.unschedulable_s
    retry_s: float = _DEFAULTS.retry_s

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"least={self.minimum}, most={self.maximum}: allowed: 0 <= least <= most")
        for name in ("up_per_min", "down_per_min", "stale_s", "unresponsive_s", "unschedulable_s", "retry_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: allowed: above 0")


class Limit(StrEnum):
    """What kept the number from being what the policy wanted, or kept the policy from being asked."""

    MIN_REPLICAS = "min_replicas"
    MAX_REPLICAS = "max_replicas"
    COST_CEILING = "cost_ceiling"
    UNSCHEDULABLE = "unschedulable"
    """More are wanted than there are GPUs, quota or room for: not asked for again until something changes or `retry_s`
    has passed."""
    UP_RATE = "up_rate"
    DOWN_RATE = "down_rate"
    HELD = "held"
    """An operator wants at least so many."""
    PINNED = "pinned"
    """An operator wants exactly so many."""
    STALE = "stale"
    """The scheduler's books are too old to decide by, or nobody keeps them: the number stays."""
    UNRESPONSIVE = "unresponsive"
    """A replica does not report: no step down until it does, or is given up."""
    FORECAST_FAILED = "forecast_failed"
    """There should be a forecast, and making it failed: no step down until there is one again, since it may be what
    keeps the number up."""
    POLICY_FAILED = "policy_failed"
    """The policy raised, or answered nonsense: the number stays, and an alarm counts it."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """`desired` by the policy for `policy_reason` (None: it was not asked, or failed), `requested` after all limits;
    `applied` and `ready` before it.

    `terms`: the policy's quantities. `error`: what a policy that failed said. `concern`: what the policy says that no
    number of replicas fixes.
    """

    at_s: float
    applied: int
    ready: int
    requested: int
    desired: int | None
    policy_reason: PolicyReason | None
    limit: Limit | None
    terms: Mapping[str, float]
    error: str | None = None
    concern: Concern | None = None

    @property
    def reason(self) -> str:
        """One word, from a closed set: the limit that decided, else the policy's reason."""
        return str(self.limit or self.policy_reason or Limit.STALE)

    @property
    def changes(self) -> bool:
        return self.requested != self.applied
