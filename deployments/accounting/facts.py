"""The facts of which bills are made: what replicas occupied, who watched them, what each attempt of a request took.
Pure.

Times are whole nanoseconds of the time of day (`_ns`). The same fact twice, or in another order, makes the same bill:
facts are delivered at least once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import get_args

from cluster.group_key import DEFAULT_GROUP
from deployments.wire import Natural, Wire

NS = 1_000_000_000


def ns(unix_s: float) -> int:
    """A time of day in whole nanoseconds."""
    return round(unix_s * NS)


@dataclass(frozen=True, slots=True)
class Tariff:
    """From `at_ns` on a replica of that model and group takes `gpus` of `pool` and costs `usd_per_hour`.

    `costs`: the cost file of its engine ("": none), whose steps have up to `step_tokens`. `decode_weight`: what an
    output token counts for, in prompt tokens, where there is no cost file.
    """

    at_ns: Natural
    model: str
    group: str
    region: str
    pool: str
    gpus: Natural
    usd_per_hour: Fraction
    costs: str
    step_tokens: Natural
    decode_weight: float


def tariff_at(tariffs: Sequence[Tariff], at_ns: int) -> Tariff:
    """Of some tariffs, oldest first, the one that was in force then, or came next."""
    before = [one for one in tariffs if one.at_ns <= at_ns]
    return before[-1] if before else tariffs[0]


@dataclass(frozen=True, slots=True)
class ReplicaBegun:
    """A replica has its GPUs from `at_ns` on, and starts."""

    at_ns: Natural
    replica_id: str
    model: str
    group: str = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class ReplicaReady:
    """Its start is over."""

    at_ns: Natural
    replica_id: str


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """It has ended. If it begins later once more, it had not."""

    at_ns: Natural
    replica_id: str


@dataclass(frozen=True, slots=True)
class ReplicasAlive:
    """At that moment these replicas had their GPUs, as far as the directory knew."""

    at_ns: Natural
    replica_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """A gateway heard from these replicas all the time from the given moment until `to_ns`. `held_ns`: since when,
    without a gap, it had had requests at a replica then. Their own facts follow, unless the gateway dies."""

    to_ns: Natural
    gateway_id: str
    since_ns: Mapping[str, Natural]
    held_ns: Mapping[str, Natural] = field(default_factory=dict)


class Count(StrEnum):
    """Whose count of tokens an attempt has. `ENGINE`: the engine's own. `ESTIMATE`: its client left, or the engine's
    statistics did not come; the tenant pays for what it had by the gateway's estimate. `CUT`: its replica or its
    gateway ended; nobody pays, its time is unattributed."""

    ENGINE = "engine"
    ESTIMATE = "estimate"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """What one attempt took: from its placement to its last byte, and the tokens of all its sequences. `home`: the cell
    whose client it was, where a peer handed the request over ("": this one)."""

    attempt_id: str
    replica_id: str
    model: str
    tenant: str
    traffic_class: str
    from_ns: Natural
    to_ns: Natural
    count: Count
    prompt_tokens: Natural
    cached_tokens: Natural
    output_tokens: Natural
    sequences: Natural = 1
    home: str = ""


@dataclass(frozen=True, slots=True)
class ExternalUsage:
    """What an attempt took at the external tier, in picodollars for tokens in and out; it ended at `at_ns`.
    `estimated`: the service has not said, and the most that it may have been counts. `region`: the cell that sent it.
    """

    at_ns: Natural
    attempt_id: str
    model: str
    tenant: str
    traffic_class: str
    region: str
    estimated: bool
    prompt_tokens: Natural
    output_tokens: Natural
    pico_usd_in: Natural
    pico_usd_out: Natural
    replica_id: str = "external"


Fact = ExternalUsage | Tariff | ReplicaBegun | ReplicaReady | ReplicaGone | ReplicasAlive | Watched | AttemptUsage
FACTS: Wire[Fact] = Wire(*get_args(Fact))
