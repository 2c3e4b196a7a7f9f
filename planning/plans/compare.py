"""What else one could buy: the same tokens elsewhere, or the same model on another GPU type."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planning.capacity.judging import RateSlo
from planning.capacity.placement import Outcome, place
from planning.capacity.problem import PriceKind, Problem
from planning.capacity.rates import RateSearch, cell_of, highest_rate
from planning.capacity.sampling import judged_part
from planning.plans.answer import MILLION, WorksheetPlan, token_prices, volume_mtok
from planning.plans.offers import GroupOffer
from planning.plans.prices import prices_of
from planning.plans.question import Case, question_of
from planning.plans.traffic import Band, workload_of_bands
from planning.simulator.cell import CellSimulator
from planning.workload.arrivals import HOUR_S
from planning.worksheet.sheet import TokenOffer

_GAP, _LIMIT_S = 0.03, 20.0
_TRUSTED_GAP = 0.1
"""A placement that may be further from the optimum says nothing about what a volume costs."""
_SMALLEST, _LARGEST = 1 / 256, 16.0
"""Of the worksheet's volume, what is looked at."""
_STEPS = 8


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Buying a model's tokens instead of serving it: US dollars a day for the worksheet's volume (millions of tokens a
    day, input and output), by the plan and bought. `break_even_mtok_per_day`: below this volume, of the same mix,
    bought tokens are cheaper; 0: at no volume that was looked at, infinite: at each, NaN: placements were not found in
    time. `curve`: volumes a day that were
    looked at, and what serving them costs."""

    offer: TokenOffer
    mtok_per_day: float
    own_usd_per_day: float
    bought_usd_per_day: float
    break_even_mtok_per_day: float
    curve: tuple[tuple[float, float], ...] = ()


def elsewhere(plan: WorksheetPlan, report: Callable[[str], None]) -> tuple[Elsewhere, ...]:
    """For each offer of the worksheet, by placements of that model alone at other volumes."""
    found = []
    for offer in plan.case.sheet.elsewhere:
        arrives = any(volume_mtok(band for band in plan.case.bands if band.stream.model == offer.model))
        if offer.model in plan.models and plan.feasible and arrives:
            report(f"buying {offer.model}'s tokens elsewhere")
            found.append(_elsewhere(plan, offer))
    return tuple(found)


def _elsewhere(plan: WorksheetPlan, offer: TokenOffer) -> Elsewhere:
    days = plan.case.hours / 24
    inputs, outputs = volume_mtok(band for band in plan.case.bands if band.stream.model == offer.model)
    bought = (inputs * offer.usd_per_input_mtok + outputs * offer.usd_per_output_mtok) / days
    volume = (inputs + outputs) / days

    curve: dict[float, float] = {}

    def own(scale: float) -> float:
        if scale not in curve:
            question = question_of(plan.case, plan.rates, plan.utilisation, {offer.model: scale})
            curve[scale] = _usd(question.problem.of_model(offer.model)) / days
        return curve[scale]

    now = next(one.usd_per_day for one in token_prices(plan) if one.model == offer.model)
    curve[1.0] = now
    try:
        even = break_even(own, bought)
    except _NotFoundError:
        even = math.nan
    points = tuple((volume * scale, usd) for scale, usd in sorted(curve.items()) if math.isfinite(usd))
    return Elsewhere(offer, volume, now, bought, volume * even, points)


def break_even(own: Callable[[float], float], bought: float) -> float:
    """The scale of the volume below which buying is cheaper: by bisection, for own costs that grow less than the
    volume. 0: not even the smallest volume; infinite: all that were looked at. `bought`: US dollars at scale 1."""
    low, high = _SMALLEST, _LARGEST
    if own(low) <= low * bought:
        return 0.0
    if own(high) > high * bought:
        return math.inf
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        if own(middle) > middle * bought:
            low = middle
        else:
            high = middle
    return high


class _NotFoundError(Exception):
    """No placement near the optimum was found in time."""


def _usd(problem: Problem) -> float:
    """US dollars of the period; infinite: it cannot be placed. Raises _NotFoundError."""
    found = place(problem, gap=_GAP, limit_s=_LIMIT_S)
    if found.outcome is Outcome.INFEASIBLE:
        return math.inf
    if found.outcome is Outcome.NOTHING_FOUND or found.gap > _TRUSTED_GAP:
        raise _NotFoundError
    return found.cost_usd


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One replica at a load: requests/s, TTFT p50 and p90, the mean time between tokens (seconds), and US dollars a
    million tokens, input and output together."""

    per_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    itl_s: float
    usd_per_mtok: float


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A group of a GPU type: one replica at the load that all of a model's groups hold (`same`), at the highest that it
    holds itself (`best`), and the whole worksheet on this GPU type alone (`fleet_usd_per_hour`; None: it cannot, NaN:
    no placement was found in time)."""

    offer: GroupOffer
    region: str
    usd_per_replica_hour: float
    same: LoadFigures
    best: LoadFigures
    fleet_usd_per_hour: float | None


def side_by_side(plan: WorksheetPlan, search: RateSearch, report: Callable[[str], None]) -> tuple[SideBySide, ...]:
    """The groups of each model with several GPU types, on the bands that all of them may serve."""
    found: list[SideBySide] = []
    for model in plan.models:
        offers = [one for one in plan.case.offers if one.model == model]
        if len({one.gpu for one in offers}) > 1:
            found += _compared(plan, offers, search, report)
    return tuple(found)


def _compared(
    plan: WorksheetPlan, offers: list[GroupOffer], search: RateSearch, report: Callable[[str], None]
) -> list[SideBySide]:
    case = plan.case
    serving = [band for band in case.bands if all(one in case.serving(band) for one in offers)]
    bands = [band for band in serving if any(map(sum, band.demand().values()))]
    priced = [(offer, *_price(case, offer)) for offer in offers]
    known = [(offer, region, usd) for offer, region, usd in priced if usd is not None]
    if not bands or len(known) < 2:
        return []
    rates = {}
    for offer, _, _ in known:
        report(f"side by side: the highest rate of {offer}")
        rates[offer.group] = _highest(offer, bands, search)
    same = min(rates.values())
    if not same:
        return []
    found = []
    for offer, region, usd in known:
        report(f"side by side: {offer}")
        at_same, at_best = (_figures(offer, bands, rate, usd) for rate in (same, rates[offer.group]))
        found.append(SideBySide(offer, region, usd, at_same, at_best, _alone(plan, offer)))
    return found


def _price(case: Case, offer: GroupOffer) -> tuple[str, float | None]:
    """Of the first region that has a price on demand, else of any kind."""
    for name in offer.regions:
        prices = prices_of(offer.gpu, offer.view, case.spec.region(name), case.sheet, case.spec)
        if prices:
            chosen = prices.get(PriceKind.ON_DEMAND) or next(iter(prices.values()))
            return name, chosen.usd_per_replica_hour
    return "", None


def _mix(bands: list[Band], rate: float) -> list[tuple[Band, float, float]]:
    """The bands in the proportions of the worksheet, so many requests/s together."""
    weights = [sum(map(sum, band.demand().values())) for band in bands]
    return [(band, rate * weight / sum(weights), 0.0) for band, weight in zip(bands, weights, strict=True)]


def _highest(offer: GroupOffer, bands: list[Band], search: RateSearch) -> float:
    sample, _ = workload_of_bands(_mix(bands, 1.0), 2_000.0, 0)
    slos: dict[str, RateSlo] = {}
    for stream in dict.fromkeys(band.stream for band in bands):
        slo, known = RateSlo(stream.ttft_s, stream.attainment, stream.itl_s), slos.get(stream.traffic_class)
        slos[stream.traffic_class] = slo if known is None or slo.ttft_s < known.ttft_s else known
    present = {sample.traffic_class[number] for number in range(len(sample))}
    own = {name: slo for name, slo in slos.items() if name in present}
    return highest_rate(
        cell_of(offer.spec, offer.view, offer.cost, 1), offer.step_costs, sample, own, search=search
    ).per_s


def _figures(offer: GroupOffer, bands: list[Band], rate: float, usd: float) -> LoadFigures:
    mix = _mix(bands, rate)
    seconds = min(max(1_500 / rate, 600.0), 6_000 / rate)
    work, _ = workload_of_bands(mix, seconds, 1)
    cell = cell_of(offer.spec, offer.view, offer.cost, 1)
    out = CellSimulator(
        replace(cell, limits=cell.limits.with_prefixes(work.chunk_tokens)), offer.step_costs, work
    ).run()
    part = judged_part(len(work))
    ttft_s, tpot_s = np.nan_to_num(out.ttft_s[part], nan=np.inf), out.tpot_s[part]
    p50, p90 = (float(np.quantile(ttft_s, share, method="lower")) for share in (0.5, 0.9))
    tokens = sum(each * (band.input_tokens + band.output_tokens) for band, each, _ in mix)
    itl_s = float(np.nanmean(tpot_s)) if np.isfinite(tpot_s).any() else math.nan
    return LoadFigures(rate, p50, p90, itl_s, usd / (tokens * HOUR_S / MILLION))


def _alone(plan: WorksheetPlan, offer: GroupOffer) -> float | None:
    """US dollars an hour of the model's whole demand on groups of that GPU type."""
    question = question_of(plan.case, plan.rates, plan.utilisation)
    part = question.problem.of_model(offer.model)
    try:
        usd = _usd(replace(part, sites=tuple(site for site in part.sites if site.gpu == offer.gpu)))
    except _NotFoundError:
        return math.nan
    return usd / plan.case.hours if math.isfinite(usd) else None
