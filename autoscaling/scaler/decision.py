"""The bounds of a policy, and one scaling decision: the policy's number, the requested one, and the reason."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autoscaling.policies.policy import Concern, Explained, PolicyReason
from autoscaling.scaler.schedule import BoundsInForce, Schedule, in_force
from cluster.spec import Autoscaling

_DEFAULTS = Autoscaling()
"""The spec's: they stand nowhere else."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`ceiling`: the replicas that the hourly cost ceiling pays for. At most `up_per_min` replicas are added and
    `down_per_min` removed in any 60 s (infinite: no limit); a step of one is always allowed once a minute.

    Facts older than `stale_s` lead to no decision. An unresponsive replica forbids steps down for `unresponsive_s`. A
    replica that could not be scheduled for `unschedulable_s` counts as impossible, and is requested again after
    `retry_s`. `schedule`: other bounds than `minimum` and `maximum` at some times of the week.
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
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"minimum={self.minimum}, maximum={self.maximum}: allowed: 0 <= minimum <= maximum")
        for name in ("up_per_min", "down_per_min", "stale_s", "unresponsive_s", "unschedulable_s", "retry_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: allowed: above 0")

    def at(self, unix_s: float) -> BoundsInForce:
        """Those in force at that moment, by the schedule, without what it anticipates."""
        return in_force(self.schedule, self.minimum, self.maximum, unix_s)


class Limit(Explained):
    """Why the number is not the policy's, or why the policy was not asked. The sentences are filled in with a decision
    and its bounds."""

    MIN_REPLICAS = "min_replicas", "replicas.min is {bounds.minimum}"
    MAX_REPLICAS = "max_replicas", "replicas.max is {bounds.maximum}"
    SCHEDULED_MIN = "scheduled_min", "replicas.schedule keeps at least {decision.requested} ({decision.scheduled})"
    SCHEDULED_MAX = "scheduled_max", "replicas.schedule allows at most {decision.requested} ({decision.scheduled})"
    COST_CEILING = "cost_ceiling", "autoscaling.usd_per_hour pays for {bounds.ceiling}"
    UNSCHEDULABLE = "unschedulable", "there is room for {decision.requested}: no GPU, quota or node for more"
    """The next attempt is when something changes, or `retry_s` has passed."""
    UP_RATE = "up_rate", "autoscaling.up_per_minute allows {bounds.up_per_min:g} more in a minute"
    DOWN_RATE = "down_rate", "autoscaling.down_per_minute allows {bounds.down_per_min:g} fewer in a minute"
    HELD = "held", "an operator holds at least {decision.requested}"
    PINNED = "pinned", "an operator pinned {decision.requested}"
    STALE = "stale", "the owner's state could not be read, or was too old, so the number stayed"
    UNRESPONSIVE = "unresponsive", "a replica did not report, so no replica was removed"
    FORECAST_FAILED = "forecast_failed", "the forecast failed, so no replica was removed"
    """It may be what keeps the number up."""
    POLICY_FAILED = "policy_failed", "the policy failed ({decision.error}), so the number stayed"
    """It raised an error or returned an invalid number. An alarm counts it."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """`desired`: the policy's number, for `policy_reason` (None: it was not asked, or failed); `requested`: after all
    limits; `applied`, `ready`: before the decision. `terms`: the policy's quantities. `error`: of a policy that failed.
    `concern`: what no number of replicas solves, according to the policy. `scheduled`: the entry of the schedule that
    changed the policy's number, whatever other limit came after it.
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
    scheduled: str | None = None

    @property
    def reason(self) -> str:
        """One word, from a closed set: the limit that decided, else the policy's reason."""
        return str(self.limit or self.policy_reason or Limit.STALE)

    @property
    def changes(self) -> bool:
        return self.requested != self.applied
