"""The facts of which bills are made, and their lines: what replicas occupied, who watched them, what each attempt of a
request took. Pure.

A line is a JSON array: the kind, then the fields in their order. Times are whole nanoseconds of the time of day
(`_ns`). The same line twice, or in another order, makes the same bill: facts are delivered at least once.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from cluster.spec.models import DEFAULT_GROUP

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

    at_ns: int
    model: str
    group: str
    region: str
    pool: str
    gpus: int
    usd_per_hour: Fraction
    costs: str
    step_tokens: int
    decode_weight: float


def tariff_at(tariffs: Sequence[Tariff], at_ns: int) -> Tariff:
    """Of some tariffs, oldest first, the one that was in force then, or came next."""
    before = [one for one in tariffs if one.at_ns <= at_ns]
    return before[-1] if before else tariffs[0]


@dataclass(frozen=True, slots=True)
class ReplicaBegun:
    """A replica has its GPUs from `at_ns` on, and starts."""

    at_ns: int
    replica_id: str
    model: str
    group: str = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class ReplicaReady:
    """Its start is over."""

    at_ns: int
    replica_id: str


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """It has ended. If it is alive later all the same, it had not."""

    at_ns: int
    replica_id: str


@dataclass(frozen=True, slots=True)
class ReplicasAlive:
    """At that moment these replicas had their GPUs, as far as the directory knew."""

    at_ns: int
    replica_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """A gateway heard from these replicas all the time from the given moment until `to_ns`. `held_ns`: since when,
    without a gap, it had had requests at a replica then. Their own facts follow, unless the gateway dies."""

    to_ns: int
    gateway_id: str
    since_ns: Mapping[str, int]
    held_ns: Mapping[str, int] = field(default_factory=dict)


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
    from_ns: int
    to_ns: int
    count: Count
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    sequences: int = 1
    home: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """Hours that begin at `hour_ns` or earlier are settled: facts about them that come later in the files change
    nothing in them."""

    hour_ns: int


Fact = Tariff | ReplicaBegun | ReplicaReady | ReplicaGone | ReplicasAlive | Watched | AttemptUsage | Settled
_KINDS: dict[str, type[Fact]] = {
    "tariff": Tariff,
    "begun": ReplicaBegun,
    "ready": ReplicaReady,
    "gone": ReplicaGone,
    "alive": ReplicasAlive,
    "watched": Watched,
    "usage": AttemptUsage,
    "settled": Settled,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_BEFORE_HOME = len(AttemptUsage.__slots__) - 1
"""Fields of an attempt in files of cells that had no peers yet."""


def line_of(fact: Fact) -> bytes:
    """The fact's line, with its end."""
    fields = [getattr(fact, name) for name in fact.__slots__]
    line = json.dumps([_NAMES[type(fact)], *fields], separators=(",", ":"), default=str)  # a price is a fraction
    return line.encode() + b"\n"


def lines_of(facts: Iterable[Fact]) -> bytes:
    return b"".join(line_of(fact) for fact in facts)


def fact_in(line: bytes) -> Fact:
    """The fact in a line. Raises ValueError when there is none."""
    try:
        name, *given = json.loads(line)
        kind: Any = _KINDS[name]
        names = kind.__slots__
        if kind is AttemptUsage and len(given) == _BEFORE_HOME:
            names = names[:_BEFORE_HOME]
        values = [_TYPES[field_name](value) for field_name, value in zip(names, given, strict=True)]
        fact: Fact = kind(*values)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"not a fact of a bill: {line[:200]!r}") from error
    return fact


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError("a text is needed")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a whole number of at least 0 is needed")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise TypeError("a number of at least 0 is needed")
    return float(value)


def _price(value: object) -> Fraction:
    price = Fraction(_text(value))
    if price < 0:
        raise ValueError("a price of at least 0 is needed")
    return price


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("a list is needed")
    return tuple(_text(one) for one in value)


def _times(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError("an object is needed")
    return {_text(key): _whole(one) for key, one in value.items()}


_TYPES: dict[str, Callable[[object], object]] = {
    **dict.fromkeys(
        ("at_ns", "to_ns", "from_ns", "hour_ns", "gpus", "step_tokens", "sequences"),
        _whole,
    ),
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "output_tokens"), _whole),
    **dict.fromkeys(("model", "group", "region", "pool", "costs", "replica_id", "gateway_id", "attempt_id"), _text),
    **dict.fromkeys(("tenant", "traffic_class", "home"), _text),
    **dict.fromkeys(("since_ns", "held_ns"), _times),
    "usd_per_hour": _price,
    "decode_weight": _number,
    "replica_ids": _texts,
    "count": lambda value: Count(_text(value)),
}
"""How each field is read; raises TypeError or ValueError."""
