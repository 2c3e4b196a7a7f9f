"""A worksheet's streams as expected figures, and streams, prices and plans as they are by what was recorded. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.spec import ClusterSpec, Pool
from deployments.traffic.counts import LengthCounts, Stream
from planning.capacity.problem import PriceKind
from planning.drift.comparison import ALL_REGIONS, Drift
from planning.drift.expected import (
    Expected,
    ExpectedLengths,
    ExpectedStream,
    FloatArray,
    IntArray,
    Tolerance,
    lengths_of,
)
from planning.drift.measures import DriftQuantity
from planning.plans.answer import WorksheetPlan
from planning.plans.question import Case, case_of
from planning.plans.samples import Lengths2D
from planning.plans.traffic import RequestStream
from planning.worksheet import GpuPrice, Worksheet

Part = tuple[RequestStream, FloatArray]
"""A stream of the worksheet, and its requests/s in one region by hour, without growth."""


def expected_from(sheet: Worksheet, streams: Sequence[RequestStream], tolerance: Tolerance | None = None) -> Expected:
    """What the worksheet's streams are together, by model, class and region."""
    growth = {one.name: one.factor for one in sheet.demand}
    parts: defaultdict[Stream, list[Part]] = defaultdict(list)
    for stream in streams:
        for region, rates in stream.rates.items():
            now = np.array(rates) / growth.get(stream.name, 1.0)
            parts[Stream(stream.model, stream.traffic_class, region)].append((stream, now))
    found = (_expected(key, of_key, growth, sheet.time_zone) for key, of_key in parts.items())
    return Expected(tuple(found), tolerance or Tolerance())


def _expected(key: Stream, parts: list[Part], growth: Mapping[str, float], time_zone: str) -> ExpectedStream:
    hourly = sum((rates for _, rates in parts), np.zeros(len(parts[0][1])))
    grown = sum(float(rates.sum()) * growth.get(stream.name, 1.0) for stream, rates in parts)
    hits = sum(float(rates.sum() * stream.lengths.cached.mean()) for stream, rates in parts)
    tokens = sum(float(rates.sum() * stream.lengths.prompts.mean()) for stream, rates in parts)
    return ExpectedStream(
        key,
        tuple(hourly.tolist()),
        _lengths([(stream.lengths.prompts, rates) for stream, rates in parts]),
        _lengths([(stream.lengths.outputs, rates) for stream, rates in parts]),
        hits / tokens if hits else None,  # a worksheet that states no share plans for none
        grown / float(hourly.sum()) if hourly.any() else 1.0,
        time_zone,
    )


def _lengths(parts: list[tuple[IntArray, FloatArray]]) -> ExpectedLengths:
    """Of all parts, by how often each comes at each hour."""
    weights = np.array([rates for _, rates in parts])
    weights = weights / np.maximum(weights.sum(axis=0), 1e-12)
    whole = np.array([rates.sum() for _, rates in parts])
    whole = whole / whole.sum() if whole.any() else np.full(len(parts), 1 / len(parts))
    means = np.array([tokens.mean() for tokens, _ in parts])
    mean = float(whole @ means)
    hours = weights.any(axis=0)
    factors = tuple(np.where(hours, means @ weights / mean, 1.0).tolist())
    if all((tokens == tokens[0]).all() for tokens, _ in parts):  # only means are stated
        return ExpectedLengths(mean, factors=factors)
    shares: Counter[int] = Counter()
    square = 0.0
    of_parts = [lengths_of(_counted(tokens)) for tokens, _ in parts]
    for share, of_part in zip(whole.tolist(), of_parts, strict=True):
        square += share * (of_part.spread + 1) * of_part.mean**2
        for bucket, one in (of_part.shares or {}).items():
            shares[bucket] += share * one
    found = ExpectedLengths(mean, max(0.0, square / mean**2 - 1), shares, factors)
    if (tokens := found.tail_tokens) is None:
        return found
    tails = np.array([one.above(tokens) for one in of_parts])
    return replace(found, tails=tuple(np.where(hours, tails @ weights, whole @ tails).tolist()))


def _counted(tokens: IntArray) -> LengthCounts:
    found = LengthCounts()
    for one in tokens.tolist():
        found.add(one)
    return found


def as_recorded(streams: Iterable[RequestStream], drifts: Iterable[Drift]) -> tuple[RequestStream, ...]:
    """The worksheet's streams with the figures that are off as they were observed: rates, mean lengths and prefix
    shares. Lengths and prefixes of a stream are those of all its regions, by their rates."""
    known = {(drift.stream, drift.quantity): drift for drift in drifts}
    return tuple(_moved(one, known) for one in streams)


_Known = Mapping[tuple[Stream, DriftQuantity], Drift]


def _moved(stream: RequestStream, known: _Known) -> RequestStream:
    def ratio(region: str, quantity: DriftQuantity) -> float:
        places = (Stream(stream.model, stream.traffic_class, one) for one in (region, ALL_REGIONS))
        drift = next((known[place, quantity] for place in places if (place, quantity) in known), None)
        return 1.0 if drift is None or drift.ratio is None else drift.ratio

    def mean_ratio(quantity: DriftQuantity) -> float:
        weights = {region: sum(rates) for region, rates in stream.rates.items()}
        total = sum(weights.values())
        return sum(weight * ratio(region, quantity) for region, weight in weights.items()) / total if total else 1.0

    rates = {
        region: tuple(ratio(region, DriftQuantity.RATE) * rate for rate in hours)
        for region, hours in stream.rates.items()
    }
    prompts = _scaled(stream.lengths.prompts, mean_ratio(DriftQuantity.PROMPT_TOKENS))
    outputs = _scaled(stream.lengths.outputs, mean_ratio(DriftQuantity.OUTPUT_TOKENS))
    held = stream.lengths.cached / stream.lengths.prompts * mean_ratio(DriftQuantity.PREFIX_SHARE)
    cached = np.minimum((held * prompts).astype(np.int64), prompts - 1)
    return replace(stream, rates=rates, lengths=Lengths2D(prompts, cached, outputs))


def _scaled(tokens: IntArray, ratio: float) -> IntArray:
    found: IntArray = np.maximum(1, np.rint(tokens * ratio)).astype(np.int64)
    return found


def case_as_recorded(case: Case, drifts: Iterable[Drift], prices: Iterable["PriceDrift"]) -> Case:
    """The same question with the figures that are off as they were observed, and with the prices of the cluster."""
    new = {(one.gpu, one.region, one.kind): one for one in prices}
    kept = [_without(stated, new) for stated in case.sheet.gpu_prices]
    added = [
        GpuPrice.model_validate({"gpu": one.gpu, "region": one.region, _key(one.kind): one.observed_usd})
        for one in new.values()
    ]
    sheet = case.sheet.model_copy(update={"gpu_prices": (*added, *(one for one in kept if one is not None))})
    return case_of(sheet, case.spec, as_recorded(case.streams, drifts), case.offers, case.rejected)


@dataclass(frozen=True, slots=True)
class PriceDrift:
    """A price that the cluster's spec states otherwise than the worksheet (or the spec that it plans for): US dollars a
    GPU-hour of a pool."""

    gpu: str
    region: str
    pool: str
    kind: PriceKind
    expected_usd: float
    observed_usd: float


PRICE_TOLERANCE = 0.02
"""Prices are exact; so much is rounding."""


def price_drifts(sheet: Worksheet, spec: ClusterSpec, live: ClusterSpec) -> tuple[PriceDrift, ...]:
    """Where a pool's price in the spec of the cluster is not the one that the plan is made with: the worksheet's, else
    that of the same pool in its spec."""
    found = []
    for region in live.regions:
        for pool in region.pools:
            expected = _price(sheet, spec, region.name, pool)
            observed = pool.price_usd_per_hour
            if expected and observed and abs(observed / expected - 1) > PRICE_TOLERANCE:
                kind = _kind(pool)
                found.append(PriceDrift(pool.accelerator, region.name, pool.name, kind, expected, observed))
    return tuple(found)


def _price(sheet: Worksheet, spec: ClusterSpec, region: str, pool: Pool) -> float | None:
    for stated in sheet.gpu_prices:
        if (stated.gpu, stated.region) == (pool.accelerator, region):
            usd: float | None = getattr(stated, _key(_kind(pool)))
            if usd is not None:
                return usd
    pools = [one for known in spec.regions if known.name == region for one in known.pools if one.name == pool.name]
    return pools[0].price_usd_per_hour if pools else None


def _kind(pool: Pool) -> PriceKind:
    return PriceKind.SPOT if pool.spot else PriceKind.ON_DEMAND


def _key(kind: PriceKind) -> str:
    return f"{kind.value}_usd_per_gpu_hour"


def _without(stated: GpuPrice, new: Mapping[tuple[str, str, PriceKind], PriceDrift]) -> GpuPrice | None:
    """A stated price without those that are replaced; None where nothing is left."""
    replaced = {_key(kind): None for kind in PriceKind if (stated.gpu, stated.region, kind) in new}
    left = stated.model_copy(update=replaced)
    return left if any(getattr(left, _key(kind)) is not None for kind in PriceKind) else None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Replicas of a group in a region, the fewest and the most of any hour, by the worksheet and as recorded."""

    group: str
    region: str
    expected: tuple[int, int]
    needed: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlanChange:
    """What drift does to the plan: US dollars an hour on average; None where there is no placement."""

    groups: tuple[GroupChange, ...]
    expected_usd_per_hour: float | None
    needed_usd_per_hour: float | None


def plan_change(expected: WorksheetPlan, needed: WorksheetPlan) -> PlanChange:
    """The difference of two plans."""
    before, after = ({(one.offer.group, one.region): one.bounds for one in plan.groups} for plan in (expected, needed))
    groups = tuple(
        GroupChange(*key, before.get(key, (0, 0)), after.get(key, (0, 0))) for key in sorted({*before, *after})
    )
    prices = (plan.usd_per_hour if plan.feasible else None for plan in (expected, needed))
    return PlanChange(groups, *prices)
