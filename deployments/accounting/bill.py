"""A bill: lines that add up to replica-seconds times price, exactly. Pure.

A line's time is in whole nanoseconds and its price a fraction, so that its amount is one, too. Amounts are rounded for
display alone, all of a table together (`rounded`): what is shown adds up as well.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import reduce
from typing import TypeVar

from cluster.spec import PICO
from deployments.accounting.facts import NS

HOUR_NS = 3_600 * NS
DIGITS = 4
"""Digits of a dollar that are shown: hundredths of a cent."""


class TimeShare(StrEnum):
    """What a replica's time was spent on. `UNATTRIBUTED`: on requests that were cut by the end of a replica or gateway,
    or unknown, since no gateway was there to see. `EXTERNAL`: on nothing, since the external tier did the work."""

    WORK = "work"
    STARTING = "starting"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    EXTERNAL = "external"


class Dimension(StrEnum):
    """By what lines are summed up."""

    TENANT = "tenant"
    CLASS = "class"
    MODEL = "model"
    GROUP = "group"
    REGION = "region"
    HOME = "home"
    HOUR = "hour"


@dataclass(frozen=True, slots=True)
class Amounts:
    """Nanoseconds of replicas, and of these, for work, those of prompts and of outputs; tokens as the engines counted
    them (of requests that ended in the line's hour).

    `estimated` requests have no count by the engine, but the gateway's estimate of their tokens; `cut` ones neither,
    and `estimated_*` are what they had by then. `late`: of all requests those that were reported after their own hour
    was settled. `external_*`: picodollars for prompts and outputs at the external tier.
    """

    ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    estimated: int = 0
    cut: int = 0
    estimated_prompt_tokens: int = 0
    estimated_output_tokens: int = 0
    late: int = 0
    external_in: int = 0
    external_out: int = 0

    def plus(self, other: "Amounts") -> "Amounts":
        return Amounts(*(getattr(self, name) + getattr(other, name) for name in AMOUNTS))

    def values(self) -> list[int]:
        return [getattr(self, name) for name in AMOUNTS]


AMOUNTS = tuple(one.name for one in fields(Amounts))


@dataclass(frozen=True, slots=True, order=True)
class LineKey:
    """Whose a line is. `hour_ns`: the hour's begin. `region`: the cell that did the work; `home`: the one whose client
    asked for it, where that is another one. Tenant and class are empty where the time is nobody's."""

    hour_ns: int
    region: str
    model: str
    group: str
    share: TimeShare
    tenant: str
    traffic_class: str
    usd_per_hour: Fraction
    home: str = ""

    def by(self, dimensions: Collection[Dimension]) -> "LineKey":
        """Without the hour, region, tenant and class, unless they are among the dimensions."""
        return replace(
            self,
            hour_ns=self.hour_ns if Dimension.HOUR in dimensions else 0,
            region=self.region if Dimension.REGION in dimensions else "",
            tenant=self.tenant if Dimension.TENANT in dimensions else "",
            traffic_class=self.traffic_class if Dimension.CLASS in dimensions else "",
        )


@dataclass(frozen=True, slots=True)
class BillLine:
    key: LineKey
    amounts: Amounts

    @property
    def usd(self) -> Fraction:
        external = Fraction(self.amounts.external_in + self.amounts.external_out, PICO)
        return usd_of(self.amounts.ns, self.key.usd_per_hour) + external

    @property
    def prefill_usd(self) -> Fraction:
        return usd_of(self.amounts.prefill_ns, self.key.usd_per_hour) + Fraction(self.amounts.external_in, PICO)

    @property
    def decode_usd(self) -> Fraction:
        return usd_of(self.amounts.decode_ns, self.key.usd_per_hour) + Fraction(self.amounts.external_out, PICO)


@dataclass(frozen=True, slots=True)
class Bill:
    """`basis`: by model and group (`MODEL@GROUP`), how work was priced. `unread`: facts that cannot be read."""

    lines: tuple[BillLine, ...] = ()
    basis: Mapping[str, str] = field(default_factory=dict)
    unread: int = 0

    def plus(self, other: "Bill") -> "Bill":
        return Bill((*self.lines, *other.lines), {**self.basis, **other.basis}, self.unread + other.unread)


def usd_of(nanoseconds: int, usd_per_hour: Fraction) -> Fraction:
    """What that time of a replica costs."""
    return Fraction(nanoseconds, HOUR_NS) * usd_per_hour


@dataclass(frozen=True, slots=True)
class BillRow:
    """Lines summed up. `labels`: by the dimensions asked for. `shown`: `usd`, rounded so that rows add up."""

    labels: tuple[str, ...]
    share: TimeShare
    amounts: Amounts
    usd: Fraction
    prefill_usd: Fraction
    decode_usd: Fraction
    shown: Decimal = Decimal(0)

    @property
    def usd_per_mtok_in(self) -> float | None:
        """Of the work alone; by all prompt tokens, the cached ones among them."""
        return _per_million(self.prefill_usd, self.amounts.prompt_tokens)

    @property
    def usd_per_mtok_out(self) -> float | None:
        return _per_million(self.decode_usd, self.amounts.output_tokens)


def _per_million(usd: Fraction, tokens: int) -> float | None:
    return float(usd * 1_000_000 / tokens) if tokens else None


def rows_by(lines: Iterable[BillLine], by: Sequence[Dimension]) -> list[BillRow]:
    """The lines summed up by those dimensions and by share, work first, the largest amounts first (by hour: the oldest
    first)."""
    sums: defaultdict[tuple[tuple[str, ...], TimeShare], list[BillLine]] = defaultdict(list)
    for line in lines:
        sums[tuple(label_of(line.key, one) for one in by), line.key.share].append(line)
    summed_up = [_row(labels, share, found) for (labels, share), found in sums.items()]
    shown = rounded([row.usd for row in summed_up])
    rows = [replace(row, shown=amount) for row, amount in zip(summed_up, shown, strict=True)]
    order = list(TimeShare)
    hour = list(by).index(Dimension.HOUR) if Dimension.HOUR in by else None

    def place(row: BillRow) -> tuple[str, int, Fraction, tuple[str, ...]]:
        return "" if hour is None else row.labels[hour], order.index(row.share), -row.usd, row.labels

    return sorted(rows, key=place)


def total_of(rows: Iterable[BillRow]) -> BillRow:
    """All rows as one; its rounded amount is the sum of theirs."""
    found = list(rows)
    return replace(_row((), TimeShare.WORK, found), shown=sum((row.shown for row in found), Decimal(0)))


def _row(labels: tuple[str, ...], share: TimeShare, parts: Sequence["BillLine | BillRow"]) -> BillRow:
    amounts = reduce(Amounts.plus, (one.amounts for one in parts), Amounts())
    usd, prefill_usd, decode_usd = (
        sum((getattr(one, name) for one in parts), Fraction(0)) for name in ("usd", "prefill_usd", "decode_usd")
    )
    return BillRow(labels, share, amounts, usd, prefill_usd, decode_usd)


def label_of(key: LineKey, dimension: Dimension) -> str:
    match dimension:
        case Dimension.TENANT:
            return key.tenant
        case Dimension.CLASS:
            return key.traffic_class
        case Dimension.MODEL:
            return key.model
        case Dimension.GROUP:
            return key.group
        case Dimension.REGION:
            return key.region
        case Dimension.HOME:
            return key.home
        case Dimension.HOUR:
            return hour_name(key.hour_ns)


def hour_name(hour_ns: int) -> str:
    """An hour by its begin, in UTC: `2026-11-23T00`."""
    return datetime.fromtimestamp(hour_ns // NS, UTC).strftime("%Y-%m-%dT%H")


def hour_named(name: str) -> int:
    """The begin of the hour of that name. Raises ValueError."""
    return int(datetime.strptime(name, "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()) * NS


def hour_of(at_ns: int) -> int:
    """The begin of the hour of that moment."""
    return at_ns - at_ns % HOUR_NS


def rounded(amounts: Sequence[Fraction], digits: int = DIGITS) -> list[Decimal]:
    """The amounts with so many digits, none off by a whole unit of the last one, and their sum the rounded sum: the
    largest remainders are rounded up (Hamilton's method)."""
    unit = 10**digits
    total = round(sum(amounts, Fraction(0)) * unit)
    wholes = [amount * unit // 1 for amount in amounts]
    by_rest = sorted(range(len(amounts)), key=lambda i: (wholes[i] - amounts[i] * unit, i))
    for i in by_rest[: total - sum(wholes)]:
        wholes[i] += 1
    return [Decimal(whole).scaleb(-digits) for whole in wholes]


KeyT = TypeVar("KeyT")


def divided(whole: int, weights: Mapping[KeyT, int]) -> dict[KeyT, int]:
    """A whole number in proportion to weights of at least 0, of which one is above; the parts add up to it. The largest
    remainders are rounded up, the first one of equals."""
    total = sum(weights.values())
    parts = {key: whole * weight // total for key, weight in weights.items()}
    rest = whole - sum(parts.values())
    for key in sorted(weights, key=lambda key: -(whole * weights[key] % total))[:rest]:
        parts[key] += 1
    return parts


def summed(pairs: Iterable[tuple[LineKey, Amounts]]) -> tuple[BillLine, ...]:
    """One line a key, those of nothing left out, in the order of the keys."""
    sums: defaultdict[LineKey, Amounts] = defaultdict(Amounts)
    for key, amounts in pairs:
        sums[key] = sums[key].plus(amounts)
    return tuple(BillLine(key, amounts) for key, amounts in sorted(sums.items()) if any(amounts.values()))
