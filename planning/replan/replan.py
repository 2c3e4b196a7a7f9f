"""Makes one re-plan of the last one's state and of what is observed. Pure; the same for the command and the simulator.

    target   = the cheapest placement of the expected demand from the last target (`program.py`), within what the spec
               allows and what could be had lately
    floor    follows the target (`floors.py`): up by a step, or at once where the floors do not cover the demand and
             the loss of a region; down by a step, as far as the ready replicas cover both without what goes
    ceiling  = floor + slack, within the spec and the quotas

So the floors cover the demand, and the loss that must be survived, wherever the target does. A site whose capacity
cannot be had is asked for no more than there is; the rest is planned elsewhere, and tried there again after a while.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planning.replan.basis import Demand, Observed, ReplanBasis, ReplanSettings, SiteKey
from planning.replan.floors import FloorPath, ceilings_over
from planning.replan.program import Counts, FoundReplicas, Moment
from planning.replan.result import PlanCoverage, Replan, ReplanReason, ReplanState, ScarceSite, SiteBounds


def replan(basis: ReplanBasis, settings: ReplanSettings, state: ReplanState, observed: Observed) -> Replan:
    """The bounds until the next re-plan. `state`: of the last one."""
    demand, state = _expected(settings, state, observed)
    scarce = _scarce(settings, state, observed)
    moment = _moment(basis, settings, observed, demand, scarce)
    before, floors = _from_what_runs(state, observed, moment)
    target = moment.best(before)
    path = FloorPath(moment, observed, floors, target.counts)
    ceilings, usd = ceilings_over(moment, path.floors), moment.usd_per_hour
    reasons = _reasons(state, observed, moment, before, target)
    bounds = tuple(
        SiteBounds(
            key,
            floors[key],
            path.floors[key],
            ceilings[key],
            target.counts[key],
            reasons[key],
            usd[key],
            path.held.get(key),
        )
        for key in moment.bounds
    )
    left = replace(
        state,
        targets=target.counts,
        floors=path.floors,
        reasons=reasons,
        usd_per_hour=usd,
        bounds=moment.bounds,
        scarce=scarce,
        lost=observed.lost,
    )
    return Replan(
        observed.unix_s,
        bounds,
        target.served,
        _usd(floors, usd),
        _usd(path.floors, usd),
        _usd(target.counts, usd),
        _coverage(moment, target),
        target.missing,
        target.unserved,
        left,
    )


def _usd(counts: Counts, usd: Mapping[SiteKey, float]) -> float:
    return sum(count * usd[key] for key, count in counts.items())


def _expected(settings: ReplanSettings, state: ReplanState, observed: Observed) -> tuple[Demand, ReplanState]:
    """The demand to plan for, the highest of the last `hold_s`, and the state that remembers it."""
    now, lost = observed.unix_s, observed.lost
    here = {key: rate for key, rate in observed.demand.items() if key[1] not in lost}
    recent = (*((at, one) for at, one in state.expected if now - at <= settings.hold_s), (now, here))
    before = state.before_loss if lost else here
    demand = _of_lost(before, here, lost)
    for _, one in recent:
        for key, rate in one.items():
            if key[1] not in lost:
                demand[key] = max(rate, demand.get(key, 0.0))
    return demand, replace(state, expected=recent, before_loss=before)


def _of_lost(before: Demand, here: Demand, lost: frozenset[str]) -> dict[tuple[str, str], float]:
    """Of a lost region's demand, what does not arrive elsewhere by now: its clients go to other cells, in their own
    time."""
    found: dict[tuple[str, str], float] = {}
    for lane in dict.fromkeys(lane for lane, origin in before if origin in lost):
        gone = {key: rate for key, rate in before.items() if key[0] == lane and key[1] in lost}
        whole = sum(gone.values())
        came = sum(max(0.0, rate - before.get(key, 0.0)) for key, rate in here.items() if key[0] == lane)
        left = max(0.0, 1.0 - came / whole) if whole else 0.0
        found |= {key: left * rate for key, rate in gone.items()}
    return found


def _scarce(settings: ReplanSettings, state: ReplanState, observed: Observed) -> dict[SiteKey, ScarceSite]:
    """What could not be had. A site that has got more than that meanwhile is no longer scarce."""
    found, now = {}, observed.unix_s
    for key, one in observed.states.items():
        before = state.scarce.get(key)
        tried = before is not None and now >= before.until_unix_s
        if one.room is not None and (before is None or tried or one.room < before.room):
            wait_s = settings.retry_s if before is None else before.wait_s * (2.0 if tried else 1.0)
            wait_s = min(wait_s, settings.longest_retry_s)
            found[key] = ScarceSite(one.room, now + wait_s, wait_s)
        elif before is not None and one.ready <= before.room:
            found[key] = before
    return found


def _moment(
    basis: ReplanBasis,
    settings: ReplanSettings,
    observed: Observed,
    demand: Demand,
    scarce: Mapping[SiteKey, ScarceSite],
) -> Moment:
    bounds = {}
    for key, lowest, highest in zip(basis.sites, basis.minimums, basis.maximums, strict=True):
        if key.region in observed.lost or key not in observed.states:
            continue
        one = scarce.get(key)
        if one is not None and observed.unix_s < one.until_unix_s:
            highest = min(highest, one.room)
        bounds[key] = (min(lowest, highest), highest)
    usd = {key: observed.usd_per_hour.get(key, listed) for key, listed in basis.usd_per_hour.items() if key in bounds}
    survive = frozenset[str]() if observed.lost else _binding(basis, demand)
    return Moment(basis, demand, usd, bounds, survive, settings)


def _binding(basis: ReplanBasis, demand: Demand) -> frozenset[str]:
    """The models that must survive the loss of a region now. While one is lost, none must survive another loss."""
    limits = basis.problem.limits
    if not limits.survive_region:
        return frozenset()
    models = {lane.title: lane.model for lane in basis.problem.lanes}
    curves: dict[tuple[str, str], float] = {}
    for (lane, origin), rate in demand.items():
        for key in ((models[lane], origin), (models[lane], "")):
            curves[key] = curves.get(key, 0.0) + rate
    return frozenset(
        model
        for (model, origin), rate in curves.items()
        if rate > 0 and rate >= limits.binding * basis.peaks.get((model, origin), 0.0)
    )


def _from_what_runs(
    state: ReplanState, observed: Observed, moment: Moment
) -> tuple[dict[SiteKey, int], dict[SiteKey, int]]:
    """Targets and floors where the last re-plan left them; of a site that it did not know, or that was lost, what runs
    there."""
    targets, floors = {}, {}
    for key, (lowest, highest) in moment.bounds.items():
        runs = observed.states[key].applied
        floors[key] = state.floors.get(key, runs)
        targets[key] = min(highest, max(lowest, state.targets.get(key, runs)))
    return targets, floors


def _coverage(moment: Moment, target: FoundReplicas) -> PlanCoverage:
    if target.covers:
        return PlanCoverage.ALL
    alone = replace(moment, survive=frozenset()).with_counts(target.counts)
    return PlanCoverage.NOT_A_LOSS if alone.covers else PlanCoverage.NOT_ALL


def _reasons(
    state: ReplanState, observed: Observed, moment: Moment, before: Counts, target: FoundReplicas
) -> dict[SiteKey, ReplanReason]:
    """Why each target is what it is: the last of the causes that changed it. What has not changed keeps its reason
    until its floor is there."""
    reasons = {}
    for key, count in target.counts.items():
        kept = state.reasons.get(key, ReplanReason.FIRST)
        if state.targets.get(key, 0) > moment.bounds[key][1]:
            kept = ReplanReason.ROOM
        reasons[key] = kept if state.floors.get(key) != count else ReplanReason.STEADY
    changed = [key for key, count in target.counts.items() if count != before[key]]
    if not changed:
        return reasons
    last = before
    for reason, counts in _causes(state, observed, moment, before, target):
        for key in changed:
            if counts[key] != last[key]:
                reasons[key] = reason
        last = counts
    risen = [key for key in changed if reasons[key] is ReplanReason.DEMAND and target.counts[key] > before[key]]
    if moment.survive and risen:
        alone = replace(moment, survive=frozenset()).best(before).counts
        reasons |= {key: ReplanReason.LOSS for key in risen if alone[key] < target.counts[key]}
    return reasons


def _causes(
    state: ReplanState, observed: Observed, moment: Moment, before: Counts, target: FoundReplicas
) -> Iterator[tuple[ReplanReason, Counts]]:
    """The targets with only the demand changed since the last re-plan; then with what can be had, too; then with the
    prices."""
    if not state.floors:
        yield ReplanReason.FIRST, target.counts
        return
    usd = {key: state.usd_per_hour.get(key, now) for key, now in moment.usd_per_hour.items()}
    same_prices = usd == moment.usd_per_hour
    earlier = replace(moment, usd_per_hour=usd)
    if observed.lost != state.lost:
        cause = ReplanReason.REGION_LOST if observed.lost - state.lost else ReplanReason.REGION_BACK
    else:
        cause = ReplanReason.ROOM
        same_room = state.bounds == moment.bounds
        bounds = {key: state.bounds.get(key, now) for key, now in moment.bounds.items()}
        only_demand = same_room and same_prices
        found = target if only_demand else replace(earlier, bounds=bounds).best(before)
        yield ReplanReason.DEMAND, found.counts
        if same_room:
            cause = ReplanReason.DEMAND
    yield cause, target.counts if same_prices else earlier.best(before).counts
    if not same_prices:
        yield ReplanReason.PRICE, target.counts
