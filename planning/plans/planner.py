"""From a worksheet to a checked plan: finds rates, places, simulates, and lowers the rates of groups that miss an SLO
in the simulation until none does."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.errors import InputError
from cluster.spec import ClusterSpec
from planning.capacity.clash import clash, savings
from planning.capacity.placement import GAP, Outcome, place
from planning.plans.answer import WorksheetPlan, planned_groups
from planning.plans.check import CellCheck, checks_of
from planning.plans.offers import offers_of
from planning.plans.question import Case, PlacementQuestion, Rates, case_of, question_of, rate_jobs
from planning.plans.rates import GroupRate, RateJob, RateOf, estimated_rate, rates_in
from planning.plans.traffic import streams_of
from planning.worksheet.sheet import Worksheet

_ROUNDS = 4
_LOWERED = 0.92
"""What the rates of a group are multiplied by where an SLO is missed in the simulation, and its requests are among the
late ones."""


class PlanError(InputError):
    """A worksheet that nothing can be planned for; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """`gap`: how far from the optimum a placement may be, as a share; `limit_s`: seconds to search for it. `ranged`:
    simulate with the costs at both ends of their range, too. `explained`: find what limits cost. `shared`: find rates
    of up to so many replicas that share the requests, which is more exact and takes longer. `workers`: processes."""

    gap: float = GAP
    limit_s: float = 60.0
    ranged: bool = True
    explained: bool = True
    shared: int = 1
    workers: int = 1


def case_from(sheet: Worksheet, spec: ClusterSpec) -> Case:
    """What is asked, read and cut into bands. Raises PlanError, and TraceError for a trace."""
    offers, rejected = offers_of(sheet, spec)
    case = case_of(sheet, spec, streams_of(sheet, spec), offers, rejected)
    for stream in case.streams:
        if not any(one.model == stream.model for one in offers):
            reasons = "; ".join(f"{one.group} on {one.gpu}: {one.reason}" for one in rejected)
            raise PlanError(f"no group can serve {stream.model}: {reasons or 'the spec has none'}")
    for stream in case.streams:
        if case.too_long.get(stream.name, 0.0) >= 1.0:
            longest = max(one.context for one in offers if one.model == stream.model)
            raise PlanError(
                f"{stream.name}: all requests are longer than any group's context, {longest:,} tokens; "
                "needed: a candidate with a larger max_model_len"
            )
    for band in case.bands:
        if not case.serving(band):
            raise PlanError(
                f"{band.name}: no group serves lane {band.lane!r} with {band.longest:,} tokens; needed: a candidate "
                "whose lanes and max_model_len allow it"
            )
    return case


def shared_replicas(case: Case, maximum: int) -> dict[tuple[str, str], int]:
    """By model and group, how many replicas would share the requests of the busiest region and hour, by the equation;
    at most `maximum`."""
    found = {}
    for offer in case.offers:
        load = 0.0
        for band in case.bands:
            if offer not in case.serving(band):
                continue
            rate = estimated_rate(offer, band)
            peak = max(max(rates) for rates in band.demand().values())
            load += peak / rate if rate else 0.0
        found[offer.model, offer.group] = max(1, min(maximum, int(load)))
    return found


def planned(
    case: Case, rates: Rates, utilisation: float, limits: PlanLimits, report: Callable[[str], None]
) -> WorksheetPlan:
    """The cheapest placement at those rates; where there is none, with what clashes. Raises PlanError where no group
    meets an SLO, or no price is known."""
    question = question_of(case, rates, utilisation)
    if not question.problem.sites and not question.unpriced:
        raise PlanError(
            f"no group serves a single request within its SLO: {', '.join(map(str, case.offers))}; needed: more "
            "time in demand.slo, or a faster group"
        )
    if not question.problem.sites:
        raise PlanError(
            f"no price is known of {', '.join(question.unpriced)}; needed: gpu_prices in the worksheet, or a price in "
            "the spec's pools"
        )
    sites = f"{len(question.problem.lanes)} lanes on {len(question.problem.sites)} sites"
    report(f"placing {sites}, at most {limits.limit_s:.0f} s; then a simulation of each region")
    placement = place(question.problem, gap=limits.gap, limit_s=limits.limit_s)
    notes = tuple(f"no price is known of {one}: left out" for one in question.unpriced) + tuple(
        f"{lane} from {origin}: nothing serves it while {lost} is lost, since no other region may"
        for lane, origin, lost in placement.unprotected
    )
    if placement.outcome in (Outcome.PROVED, Outcome.TIME_LIMIT):
        groups = planned_groups(case, question, placement, rates)
        return WorksheetPlan(case, question, placement, rates, utilisation, groups, notes=notes)
    if placement.unserved:
        clashes = tuple(unserved_reason(case, rates, question, *one) for one in placement.unserved)
    else:
        clashes = clash(question.problem) if placement.outcome is Outcome.INFEASIBLE else ()
    return WorksheetPlan(case, question, placement, rates, utilisation, (), clashes, notes=notes)


def unserved_reason(case: Case, rates: Rates, question: PlacementQuestion, lane: str, origin: str) -> str:
    """Why a band's requests from there fit no site: by residency, by the network, by their SLO, or for want of a
    price."""
    band = next(band for band, one in zip(case.bands, question.problem.lanes, strict=True) if one.title == lane)
    stream, offers = band.stream, case.serving(band)
    there = list(dict.fromkeys(region for offer in offers for region in offer.regions))
    allowed = [one for one in there if stream.residency is None or one in stream.residency]
    regions = case.regions_for(band, origin)
    if not allowed:
        names = ", ".join(sorted(stream.residency or ()))
        reason = f"residency allows {names}, and the groups that may serve it are in {', '.join(there)}"
    elif not regions:
        trips = (
            f"{one} {'not known' if (s := case.rtt_s(origin, one)) is None else f'{1e3 * s:.0f} ms'}" for one in allowed
        )
        reason = f"a round trip takes more than half of its TTFT, {1e3 * stream.ttft_s:.0f} ms: {', '.join(trips)}"
    else:
        keys = {one: (one.model, one.group, band.name, origin not in regions) for one in offers}
        missed = [
            f"{one}: {rates[key].bound}" for one, key in keys.items() if key in rates and not rates[key].per_replica
        ]
        unpriced = ", ".join(question.unpriced)
        reason = (
            f"a lone request misses its SLO ({'; '.join(missed)})" if missed else f"no price is known of {unpriced}"
        )
    return f"{lane} from {origin}: fits no site: {reason}"


def found_rates(case: Case, rate: RateOf, limits: PlanLimits, report: Callable[[str], None]) -> Rates:
    """The rates of all bands on all groups that may serve them. One rate is found for bands that are alike. A rate at
    which the network's part of the TTFT is left holds for other regions' requests, too, and is not looked for again."""
    jobs = rate_jobs(case, shared_replicas(case, limits.shared))
    near = {key: job for key, job in jobs.items() if not job.network_s}
    alike: dict[bytes, RateJob] = {}
    for job in near.values():
        alike.setdefault(job.signature, job)
    known = dict(zip(alike, rates_in(list(alike.values()), rate, limits.workers, report), strict=True))
    found = {key: known[job.signature] for key, job in near.items()}
    far = {}
    for key, job in jobs.items():
        if key in near:
            continue
        own = found[*key[:3], False]
        if not own.per_replica or own.ttft_s + job.network_s <= job.band.stream.ttft_s:
            found[key] = own
        else:
            far[key] = job
    found |= zip(far, rates_in(list(far.values()), rate, limits.workers, report), strict=True)
    return {key: found[key] for key in jobs}


def checked_plan(
    case: Case, rate: RateOf, limits: PlanLimits, report: Callable[[str], None]
) -> tuple[WorksheetPlan, tuple[CellCheck, ...]]:
    """The plan, and what its simulation showed. Raises PlanError."""
    utilisation = 1 - case.sheet.headroom.spare_share
    rates = found_rates(case, rate, limits, report)
    lowered: dict[tuple[str, str], float] = {}
    plan = planned(case, rates, utilisation, limits, report)
    checks: tuple[CellCheck, ...] = ()
    for left in reversed(range(_ROUNDS)):
        if not plan.feasible:
            break
        checks = checks_of(plan, limits.ranged, report)
        late = {key for one in checks for key in one.late}
        if not late or not left:
            break
        for key in sorted(late):
            lowered[key] = lowered.get(key, 1.0) * _LOWERED
        plan = planned(case, _at(rates, lowered), utilisation, limits, report)
    if plan.feasible and limits.explained:
        report("what each limit costs")
        plan = replace(plan, savings=savings(plan.question.problem))
    notes = (
        f"{group} of {model}: its rates were lowered by {1 - factor:.0%}, because requests that it served missed an "
        "SLO in the simulation"
        for (model, group), factor in lowered.items()
    )
    return replace(plan, notes=(*plan.notes, *notes, *_cut(checks), *notes_of(case))), checks


def _at(rates: Rates, lowered: Mapping[tuple[str, str], float]) -> dict[tuple[str, str, str, bool], GroupRate]:
    found = {}
    for (model, group, band, far), rate in rates.items():
        factor = lowered.get((model, group), 1.0)
        found[model, group, band, far] = replace(
            rate, per_replica=factor * rate.per_replica, low=factor * rate.low, high=factor * rate.high
        )
    return found


def _cut(checks: Iterable[CellCheck]) -> list[str]:
    """Answers that are cut, the most of all hours."""
    found: dict[tuple[str, str], float] = {}
    for check in checks:
        for one in check.streams:
            found[one.stream, check.region] = max(one.cut, found.get((one.stream, check.region), 0.0))
    return [
        f"{stream} in {region}: {share:.1%} of the answers end at the context of a group that is too small for them; "
        "where that must not be, clients set max_tokens"
        for (stream, region), share in found.items()
        if share >= 0.001
    ]


def notes_of(case: Case) -> list[str]:
    """What a plan of the case leaves out, or does not know."""
    notes = [note for stream in case.streams for note in stream.notes]
    notes += [
        f"{name}: {share:.2%} of the requests are longer than any group's context, and are left out"
        for name, share in case.too_long.items()
    ]
    notes += [f"{offer}: {offer.memory}" for offer in case.offers if offer.memory]
    for stream in case.streams:
        regions = dict.fromkeys(name for offer in case.offers for name in offer.regions)
        for origin in stream.rates:
            unknown = [name for name in regions if case.rtt_s(origin, name) is None]
            if unknown:
                notes.append(
                    f"{origin} to {', '.join(unknown)}: no round trip is known, so that none serves the other's "
                    "requests; give hardware.links in the spec"
                )
    return list(dict.fromkeys(notes))
