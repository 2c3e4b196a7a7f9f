"""A worksheet's streams as expected figures, and streams, prices and plans as they are by what was recorded. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.spec import ClusterSpec, Pool, Region
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.traffic.counts import Stream
from planning.capacity.problem import PriceKind
from planning.drift.comparison import ComparedFigure, DriftQuantity, ExpectedStream
from planning.plans.answer import WorksheetPlan
from planning.plans.question import Case, case_of
from planning.plans.samples import Lengths2D
from planning.plans.traffic import RequestStream
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray
from planning.worksheet.sheet import GpuPrice, Worksheet

Part = tuple[RequestStream, FloatArray]
"""A stream of the worksheet, and its requests/s in one region by hour, without growth."""


def expected_from(sheet: Worksheet, streams: Sequence[RequestStream]) -> tuple[ExpectedStream, ...]:
    """What the worksheet's streams are together, by model, class and region."""
    growth = {one.name: one.factor for one in sheet.demand}
    parts: defaultdict[Stream, list[Part]] = defaultdict(list)
    for stream in streams:
        for region, rates in stream.rates.items():
            now = np.array(rates) / growth.get(stream.name, 1.0)
            parts[Stream(stream.model, stream.traffic_class, region)].append((stream, now))
    return tuple(_expected(key, of_key, growth, sheet.time_zone) for key, of_key in parts.items())


def _expected(key: Stream, parts: list[Part], growth: Mapping[str, float], time_zone: str) -> ExpectedStream:
    hourly = sum((rates for _, rates in parts), np.zeros(len(parts[0][1])))
    grown = sum(float(rates.sum()) * growth.get(stream.name, 1.0) for stream, rates in parts)
    hits = sum(float(rates.sum() * stream.lengths.cached.mean()) for stream, rates in parts)
    tokens = sum(float(rates.sum() * stream.lengths.prompts.mean()) for stream, rates in parts)
    return ExpectedStream(
        key,
        tuple(hourly.tolist()),
        _means([(stream.lengths.prompts, rates) for stream, rates in parts]),
        _means([(stream.lengths.outputs, rates) for stream, rates in parts]),
        hits / tokens if hits else None,  # a worksheet that states no share plans for none
        grown / float(hourly.sum()) if hourly.any() else 1.0,
        time_zone,
    )


def _means(parts: list[tuple[IntArray, FloatArray]]) -> tuple[float, ...]:
    """The mean length of each hour, of all parts by their rates; of all hours where an hour has none."""
    rates = np.array([rates for _, rates in parts])
    means = np.array([tokens.mean() for tokens, _ in parts])
    whole = float(means @ rates.sum(axis=1) / rates.sum()) if rates.any() else float(means.mean())
    total = rates.sum(axis=0)
    found: list[float] = np.where(total > 0, means @ rates / np.maximum(total, 1e-12), whole).tolist()
    return tuple(found)


def as_recorded(streams: Iterable[RequestStream], figures: Iterable[ComparedFigure]) -> tuple[RequestStream, ...]:
    """The worksheet's streams with the figures that are off as they were observed: rates, mean lengths and prefix
    shares. Lengths and prefixes of a stream are those of all its regions, by their rates."""
    known = {(one.stream, one.quantity): off.ratio for one in figures if (off := one.off) and off.expected}
    return tuple(_moved(one, known) for one in streams)


def _moved(stream: RequestStream, known: Mapping[tuple[Stream, DriftQuantity], float]) -> RequestStream:
    def ratio(region: str, quantity: DriftQuantity) -> float:
        return known.get((Stream(stream.model, stream.traffic_class, region), quantity), 1.0)

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


def case_as_recorded(case: Case, figures: Iterable[ComparedFigure], prices: Iterable["PriceDrift"]) -> Case:
    """The same question with the figures that are off as they were observed, and with the prices of the cluster."""
    new = {(one.gpu, one.region, one.kind): one for one in prices}
    kept = [_without(stated, new) for stated in case.sheet.gpu_prices]
    added = [
        GpuPrice.model_validate({"gpu": one.gpu, "region": one.region, one.kind.price_key: one.observed_usd})
        for one in new.values()
    ]
    sheet = case.sheet.model_copy(update={"gpu_prices": (*added, *(one for one in kept if one is not None))})
    return case_of(sheet, case.spec, as_recorded(case.streams, figures), case.offers, case.rejected)


@dataclass(frozen=True, slots=True)
class PriceDrift:
    """A price that the cluster's spec states otherwise than the worksheet (or the spec that it plans for): US dollars a
    GPU-hour of a pool, on a CPU a replica-hour."""

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
            observed = _of_pool(live, region, pool)
            if expected and observed and abs(observed / expected - 1) > PRICE_TOLERANCE:
                kind = _kind(pool)
                found.append(PriceDrift(pool.accelerator, region.name, pool.name, kind, expected, observed))
    return tuple(found)


def _price(sheet: Worksheet, spec: ClusterSpec, region: str, pool: Pool) -> float | None:
    for stated in sheet.gpu_prices:
        if (stated.gpu, stated.region) == (pool.accelerator, region):
            usd: float | None = getattr(stated, _kind(pool).price_key)
            if usd is not None:
                return usd
    own = ((known, one) for known in spec.regions for one in known.pools)
    return next((_of_pool(spec, *at) for at in own if (at[0].name, at[1].name) == (region, pool.name)), None)


def _of_pool(spec: ClusterSpec, region: Region, pool: Pool) -> float | None:
    """As a worksheet says it: on a CPU of a replica, the first model's there."""
    if pool.accelerator != "cpu" or not pool.price_usd_per_hour:
        return pool.price_usd_per_hour
    views = (view for view in spec.views_in(region) if spec.pool_of(view, region) == pool)
    return next((float(usd_per_replica_hour(spec, view, pool, region)) for view in views), None)


def _kind(pool: Pool) -> PriceKind:
    return PriceKind.SPOT if pool.spot else PriceKind.ON_DEMAND


def _without(stated: GpuPrice, new: Mapping[tuple[str, str, PriceKind], PriceDrift]) -> GpuPrice | None:
    """A stated price without those that are replaced; None where nothing is left."""
    replaced = {kind.price_key: None for kind in PriceKind if (stated.gpu, stated.region, kind) in new}
    left = stated.model_copy(update=replaced)
    return left if any(getattr(left, kind.price_key) is not None for kind in PriceKind) else None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Replicas of a group in a region, the fewest and the most of any hour, by the worksheet and as recorded."""

    model: str
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
    before, after = (
        {(one.offer.model, one.offer.group, one.region): one.bounds for one in plan.groups}
        for plan in (expected, needed)
    )
    groups = tuple(
        GroupChange(*key, before.get(key, (0, 0)), after.get(key, (0, 0))) for key in sorted({*before, *after})
    )
    prices = (plan.usd_per_hour if plan.feasible else None for plan in (expected, needed))
    return PlanChange(groups, *prices)
