"""The basis of re-plans from a worksheet and its spec: the groups that run, at the rates that the planner finds.

A plan may choose among candidates; a re-plan moves replicas between the groups and regions that the spec has, each on
its own pool. What the worksheet says of residency, the spec's lists narrow further: of the model, the class and the
stream's tenants.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cluster.spec import ClusterSpec, Model, Region
from deployments.accounting.tariffs import usd_per_replica_hour
from planning.capacity.problem import LaneDemand, PriceKind, Problem, Quota, Site
from planning.plans.offers import GroupOffer
from planning.plans.planner import PlanLimits, case_from, found_rates, notes_of
from planning.plans.prices import prices_of
from planning.plans.question import Case, Rates, question_of, serves, site_of
from planning.plans.rates import RateOf
from planning.plans.traffic import Band
from planning.replan.basis import ReplanBasis, SiteKey
from planning.replan.demand import PlannedBand, PlannedDemand
from planning.worksheet import SpotPrices, Worksheet


@dataclass(frozen=True, slots=True)
class ReplanCase:
    """What a re-planner starts with. `notes`: what the plan cannot know or serve."""

    basis: ReplanBasis
    planned: PlannedDemand
    notes: tuple[str, ...] = ()


def replan_case(sheet: Worksheet, spec: ClusterSpec, rate: RateOf, report: Callable[[str], None]) -> ReplanCase:
    """Finds the rates of the spec's groups, with the simulator. Raises PlanError, TraceError and ValueError."""
    case = case_from(sheet.model_copy(update={"candidates": ()}), spec)
    return case_with_rates(case, found_rates(case, rate, PlanLimits(), report))


def case_with_rates(case: Case, rates: Rates) -> ReplanCase:
    """At rates that are known."""
    utilisation = 1 - case.sheet.headroom.spare_share
    whole = question_of(case, rates, utilisation).problem
    found = [
        (SiteKey(region, offer.view.group_key), _site(case, rates, offer, region), case.spec.region(region), offer)
        for offer in case.offers
        if serves(case, rates, offer)
        for region in offer.regions
    ]
    lanes = tuple(_lane(case.spec, case.sheet, band) for band in case.bands)
    sites = tuple(site for _, site, _, _ in found)
    quotas = (*whole.quotas, *_pool_quotas(case.spec, sites))
    problem = Problem(lanes, sites, (1.0,), quotas, whole.limits, whole.rtt_s, whole.usd_per_request)
    bounds = [_bounds(case.spec, key, region, offer) for key, _, region, offer in found]
    keys = tuple(key for key, _, _, _ in found)
    basis = ReplanBasis(
        problem, keys, tuple(low for low, _ in bounds), tuple(high for _, high in bounds), _peaks(case.bands)
    )
    planned = (
        PlannedBand(lane.title, lane.model, band.lane, band.stream.traffic_class, band.demand())
        for lane, band in zip(lanes, case.bands, strict=True)
    )
    return ReplanCase(basis, PlannedDemand(tuple(planned), case.sheet.time_zone), tuple(notes_of(case)))


def prices_now(basis: ReplanBasis, sheet: Worksheet, spec: ClusterSpec) -> dict[SiteKey, float]:
    """What a replica of each site costs by this worksheet and spec, which may have changed since."""
    return {
        key: _usd(sheet, spec, spec.view(key.group), spec.region(key.region), site.gpu)[1]
        for key, site in zip(basis.sites, basis.problem.sites, strict=True)
    }


def _site(case: Case, rates: Rates, offer: GroupOffer, region: str) -> Site:
    view = case.spec.view(offer.view.group_key)
    kind, usd = _usd(case.sheet, case.spec, view, case.spec.region(region), offer.gpu)
    return site_of(case, rates, offer, region, {kind: usd})


def _usd(sheet: Worksheet, spec: ClusterSpec, view: Model, region: Region, gpu: str) -> tuple[PriceKind, float]:
    """By the kind of the pool on which it runs; without a known price, 0."""
    pool = spec.pool_of(view, region)
    kind = PriceKind.SPOT if pool.spot else PriceKind.ON_DEMAND
    kinds = {"on_demand": True, "spot": sheet.prices.spot or SpotPrices()}
    either = sheet.model_copy(update={"prices": sheet.prices.model_copy(update=kinds)})
    priced = prices_of(gpu, view, region, either, spec).get(kind)
    usd = float(usd_per_replica_hour(spec, view, pool, region)) if priced is None else priced.usd_per_replica_hour
    return kind, usd


def _lane(spec: ClusterSpec, sheet: Worksheet, band: Band) -> LaneDemand:
    stream = band.stream
    demand = dict.fromkeys(stream.rates, (0.0,))
    return LaneDemand(band.name, stream.model, demand, stream.ttft_s, _residency(spec, sheet, band))


def _residency(spec: ClusterSpec, sheet: Worksheet, band: Band) -> frozenset[str] | None:
    """What all lists of the worksheet and the spec have in common; None: all regions."""
    stream = band.stream
    tenants = next(one.tenants for one in sheet.demand if one.name == stream.name) or ()
    lists = [
        stream.residency,
        spec.model(stream.model).residency,
        *(one.residency for one in spec.classes if one.name == stream.traffic_class),
        *(one.residency for one in spec.tenants if one.name in tenants),
    ]
    named = [frozenset(one) for one in lists if one is not None]
    return frozenset.intersection(*named) if named else None


def _pool_quotas(spec: ClusterSpec, sites: Iterable[Site]) -> list[Quota]:
    """As many GPUs as the spec's pools have, by region, GPU and price kind."""
    used = {(site.region, site.gpu, kind) for site in sites for kind in site.prices}
    gpus: dict[tuple[str, str, PriceKind], int] = {}
    for region in spec.regions:
        for pool in region.pools:
            key = (region.name, pool.accelerator, PriceKind.SPOT if pool.spot else PriceKind.ON_DEMAND)
            if pool.accelerator != "cpu" and key in used:
                gpus[key] = gpus.get(key, 0) + pool.gpus
    return [Quota(region, gpu, count, kind) for (region, gpu, kind), count in sorted(gpus.items())]


def _bounds(spec: ClusterSpec, key: SiteKey, region: Region, offer: GroupOffer) -> tuple[int, int]:
    """The spec's own: of a fixed number of replicas, only that number."""
    view = spec.view(key.group)
    pool, counts = spec.pool_of(view, region), view.replicas
    highest = spec.max_replicas(view)
    lowest = highest if spec.autoscaling_of(view).policy == "fixed" else counts.min
    if pool.accelerator != "cpu":
        highest = min(highest, pool.gpus // offer.gpus)
    return min(lowest, highest), highest


def _peaks(bands: Iterable[Band]) -> dict[tuple[str, str], float]:
    """The busiest hour's requests/s by model and origin, and of all origins."""
    curves: dict[tuple[str, str], list[float]] = {}
    for band in bands:
        for origin, rates in band.demand().items():
            for key in ((band.stream.model, origin), (band.stream.model, "")):
                before = curves.setdefault(key, [0.0] * len(rates))
                curves[key] = [one + other for one, other in zip(before, rates, strict=True)]
    return {key: max(curve) for key, curve in curves.items()}
