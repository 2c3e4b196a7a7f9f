"""The contract of a scaling policy: facts in, a number and its reason out.

A policy is an object with whatever memory it needs. It reads no clock and does no I/O, it is deterministic, and it can
be pickled between any two calls (a decision log begins with its state). The autoscaler around it
(`scaler/autoscaler.py`) applies bounds, rate limits and operators' orders and handles broken signals, for every policy
alike. To add a policy, write one file, and a line in `registry.py`; the conformance suite
(`tests/autoscaling/policies/test_conformance.py`) then tests it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from autoscaling.policies.settings import Range
from autoscaling.signals.signals import Signals
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits


class Explained(StrEnum):
    """A word for logs and metrics, with a sentence for a reader."""

    sentence: str

    def __new__(cls, word: str, sentence: str = "") -> "Explained":
        one = str.__new__(cls, word)
        one._value_, one.sentence = word, sentence
        return one


class PolicyReason(Explained):
    """Why a policy asks for its number."""

    STEADY = "steady", "the current number carries the load"
    BACKLOG = "backlog", "waiting requests would miss their target"
    DEMAND = "demand", "the arriving work needs this number"
    FORECAST = "forecast", "the work that is expected to arrive while a replica starts needs this number"
    OCCUPANCY = "occupancy", "sequences or KV blocks are nearly full, and what a replica carries is not known yet"
    WAKE = "wake", "a request arrived, and there was no replica"
    CONSOLIDATE = "consolidate", "fewer replicas have carried the busiest moment, for long enough"
    IDLE = "idle", "nothing has arrived for long enough, so none is needed"
    COOLING = "cooling", "fewer would suffice, but not for long enough yet"


class Concern(Explained):
    """What no number of replicas solves: an operator should know."""

    NOTHING_WAITS = (
        "nothing_waits",
        "SLOs are missed faster than the SLO allows, but hardly any request waits for a replica: more would not help",
    )


@dataclass(frozen=True, slots=True)
class DesiredReplicas:
    """`terms`: the quantities that the number was computed from, by name. `concern`: what no number solves."""

    replicas: int
    policy_reason: PolicyReason
    terms: Mapping[str, float] = field(default_factory=dict)
    concern: Concern | None = None


@dataclass(frozen=True, slots=True)
class ReplicaProfile:
    """What a policy knows of a replica beforehand. `cost`: the calibrated cost of its steps, if there is one;
    `decode_weight`: an output token in work; `start_up_s`: the assumed start-up time before the first start, in which
    equal replicas may differ."""

    limits: EngineModelLimits
    decode_weight: float
    cost: CostModel | None = None
    start_up_s: float = field(default=60.0, compare=False)


class ScalingPolicy(Protocol):
    name: ClassVar[str]
    period_s: float
    """How often it is asked (seconds)."""

    def decide(self, signals: Signals) -> DesiredReplicas:
        """The number of replicas, at least 0: starting, ready and unresponsive ones count, draining ones do not."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy by its name: the type of its settings, its constructor, and the ranges in which `raylane tune` searches
    (other settings stay at their defaults)."""

    name: str
    settings: type[Any]
    make: Callable[[Any, ReplicaProfile], ScalingPolicy]
    search: Mapping[str, Range] = field(default_factory=dict)
