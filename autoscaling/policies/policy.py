"""The contract of a scaling policy: facts in, a number and its reason out.

A policy is an object with whatever memory it needs. It reads no clock and does no I/O, it is deterministic, and it can
be pickled between any two calls (a decision log begins with its state). Bounds, rate limits, an operator's word and
broken signals are not its business: the autoscaler that asks it (`scaler/autoscaler.py`) puts them on top, the same for
every policy. Whoever adds a policy writes one file, and a line in `registry.py`; the conformance suite
(`tests/autoscaling/policies/test_conformance.py`) takes it from there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from autoscaling.policies.settings import Range
from autoscaling.signals.signals import Signals
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits


class PolicyReason(StrEnum):
    """Why a policy wants that number."""

    STEADY = "steady"
    """As many as there are."""
    BACKLOG = "backlog"
    """What waits would miss its target."""
    DEMAND = "demand"
    """What arrives needs so many."""
    FORECAST = "forecast"
    """What will arrive by the time that a replica takes to start needs so many."""
    OCCUPANCY = "occupancy"
    """Sequences or KV blocks are nearly full."""
    LATENCY = "latency"
    """Measured latencies are over, or well under, their bound."""
    SLO_BURN = "slo_burn"
    """SLOs are being missed faster than the SLO allows."""
    WAKE = "wake"
    """Something arrived, and there is no replica."""
    CONSOLIDATE = "consolidate"
    """Fewer carry the load."""
    IDLE = "idle"
    """Nothing has come for long enough: none is needed."""
    COOLING = "cooling"
    """Fewer would do, but not for long enough yet."""
    RESTING = "resting"
    """A few more or fewer would do, but the number changed too lately for so little, or fewer have not sufficed for
    long enough."""
    TRAFFIC_DROP = "traffic_drop"
    """Next to nothing comes of what usually does: fewer would do, but no more than half goes at once, since it may all
    come back."""
    NO_ROOM = "no_room"
    """Fewer would do on average, but one less would not carry the load."""
    SCHEDULE = "schedule"
    """Known beforehand (the oracle's)."""


class Concern(StrEnum):
    """What a policy cannot mend by any number of replicas: an operator should know."""

    NOTHING_WAITS = "nothing_waits"
    """SLOs are missed faster than the SLO allows, but hardly anything waits for a replica."""
    HELPED_NOTHING = "helped_nothing"
    """SLOs are missed faster than the SLO allows, and the last replica that was added for that reason changed
    nothing."""


@dataclass(frozen=True, slots=True)
class DesiredReplicas:
    """So many replicas, and why. `terms`: the quantities that it was computed from, by name, for those who ask.
    `concern`: what no number fixes."""

    replicas: int
    policy_reason: PolicyReason
    terms: Mapping[str, float] = field(default_factory=dict)
    concern: Concern | None = None


@dataclass(frozen=True, slots=True)
class ReplicaProfile:
    """What a policy may know of a replica beforehand. `cost`: the calibrated cost of its steps, None where nobody
    measured; `decode_weight`: what an output token counts in work. `start_up_s`: how long a start is thought to take
    before the first was seen."""

    limits: EngineModelLimits
    decode_weight: float
    cost: CostModel | None = None
    start_up_s: float = 60.0


class ScalingPolicy(Protocol):
    name: ClassVar[str]
    period_s: float
    """How often it wants to be asked (seconds)."""
    latency_span_s: float
    """Over how many seconds it wants latencies; 0: not at all."""

    def decide(self, signals: Signals) -> DesiredReplicas:
        """How many replicas there should be now, of whatever is starting, ready or silent; those that drain are gone
        already. At least 0."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy by its name: the type of its settings, how it is made of them, one line about it, and where a tuner
    looks for which settings (those that are not named here stay at their defaults). `principal`: those of them that
    matter most, for a search of few trials; none: all of them. `slo`: the setting that says within how many seconds a
    first token is wanted, if it has one."""

    name: str
    settings: type[Any]
    make: Callable[[Any, ReplicaProfile], ScalingPolicy]
    about: str
    search: Mapping[str, Range] = field(default_factory=dict)
    principal: tuple[str, ...] = ()
    slo: str | None = None

    def quick_search(self) -> Mapping[str, Range]:
        return {name: self.search[name] for name in self.principal} if self.principal else self.search
