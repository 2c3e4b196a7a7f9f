"""Why there is no placement, and what each requirement costs.

An infeasible problem is reduced to requirements that clash by leaving out one after the other: what stays infeasible
without a requirement does not need it (the deletion filter of Chinneck and Dravnieks, ORSA Journal on Computing 3(2),
1991). A requirement's price is what the cost falls by where it asks for less. Costs are those of the relaxed program
(fractions of replicas), which is quick.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from planning.capacity.problem import LaneDemand, Limits, Problem, Quota
from planning.capacity.program import MAX_REPLICAS, build
from planning.capacity.solver import relax, solve

Change = Callable[[Problem], Problem]
_LIMIT_S = 20.0
_STEP = 0.1
"""What is asked less of a requirement, where it has no unit: 10 %."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that a user asked for: the problem without it, and with a little less of it (None: all or nothing).
    `step` says how much less."""

    title: str
    without: Change
    eased: Change | None = None
    step: str = ""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """What the placement would save (US dollars over the period) without a requirement, and with a `step` less of it
    (None: it has no steps)."""

    requirement: str
    without_usd: float
    step: str
    step_usd: float | None


def requirements(problem: Problem) -> list[Requirement]:
    """Everything that can be asked less of: quotas, TTFT, residency, survival, spot, spares, headroom."""
    found = [_of_quota(problem, quota) for quota in problem.quotas]
    for lane in problem.lanes:
        found += _of_lane(lane)
    return found + _of_limits(problem.limits)


def clash(problem: Problem) -> tuple[str, ...]:
    """Requirements that cannot hold together, none of which can be left out of the set. Empty: a placement exists, or
    no proof of the opposite was found in time."""
    if _is_possible(problem):
        return ()
    kept: list[Requirement] = []
    for requirement in requirements(problem):
        less = requirement.without(problem)
        if _is_possible(less):
            kept.append(requirement)
        else:
            problem = less
    if kept:
        return tuple(requirement.title for requirement in kept)
    unserved = tuple(f"{lane} from {origin}: fits no site" for lane, origin in build(problem).unserved)
    return unserved or (f"the demand takes more than {MAX_REPLICAS:,} replicas of a group in a region",)


def savings(problem: Problem) -> tuple[Relaxation, ...]:
    """What each requirement that binds costs, the dearest first. A TTFT's saving is by sites that it keeps out; rates
    stay as they were found."""
    now = _cost(problem)
    if now == math.inf:
        return ()
    found = []
    for one in requirements(problem):
        saved = now - _cost(one.without(problem))
        if saved > 1e-6 * now:
            step = None if one.eased is None else max(0.0, now - _cost(one.eased(problem)))
            found.append(Relaxation(one.title, saved, one.step, step))
    return tuple(sorted(found, key=lambda one: -one.without_usd))


def _cost(problem: Problem) -> float:
    program = build(problem)
    return math.inf if program.unserved else relax(program, limit_s=_LIMIT_S).cost


def _is_possible(problem: Problem) -> bool:
    """Whether any placement exists. What fractions cannot do, whole replicas cannot either."""
    if _cost(problem) == math.inf:
        return False
    found = solve(build(problem), gap=1.0, limit_s=_LIMIT_S)
    return found.values is not None or not found.proved


def _of_quota(problem: Problem, quota: Quota) -> Requirement:
    sizes = [site.gpus for site in problem.sites if any(quota.covers(site, kind) for kind in site.prices)]
    more = min(sizes, default=1)

    def without(p: Problem) -> Problem:
        return replace(p, quotas=tuple(one for one in p.quotas if one != quota))

    def eased(p: Problem) -> Problem:
        return replace(p, quotas=tuple(replace(q, gpus=q.gpus + more) if q == quota else q for q in p.quotas))

    return Requirement(quota.title, without, eased, "1 GPU more" if more == 1 else f"{more} GPUs more")


def _of_lane(lane: LaneDemand) -> list[Requirement]:
    found = []
    if math.isfinite(lane.ttft_s):
        longer = _lane(lane, ttft_s=(1 + _STEP) * lane.ttft_s)
        title = f"TTFT of {lane.title} at most {lane.ttft_s:g} s"
        found.append(Requirement(title, _lane(lane, ttft_s=math.inf), longer, f"{_STEP:.0%} longer"))
    if lane.regions is not None:
        where = ", ".join(sorted(lane.regions)) or "nowhere"
        found.append(Requirement(f"residency of {lane.title}: {where}", _lane(lane, regions=None)))
    return found


def _of_limits(limits: Limits) -> list[Requirement]:
    found = []
    if limits.survive_region:
        found.append(Requirement("survive the loss of any one region", _limits(survive_region=False)))
    if limits.spot_share < 1:
        title, more = f"at most {limits.spot_share:.0%} spot", min(1.0, limits.spot_share + _STEP)
        found.append(Requirement(title, _limits(spot_share=1.0), _limits(spot_share=more), "10 points more"))
    if limits.failures:
        title = f"{limits.failures} spare replica{'s' if limits.failures > 1 else ''} a site"
        found.append(Requirement(title, _limits(failures=0), _limits(failures=limits.failures - 1), "one fewer"))
    if limits.utilisation < 1:
        title, more = f"at most {limits.utilisation:.0%} utilisation", min(1.0, (1 + _STEP) * limits.utilisation)
        found.append(Requirement(title, _limits(utilisation=1.0), _limits(utilisation=more), f"{_STEP:.0%} more"))
    return found


def _lane(lane: LaneDemand, **changes: object) -> Change:
    def changed(problem: Problem) -> Problem:
        lanes = (replace(one, **changes) if one.title == lane.title else one for one in problem.lanes)  # type: ignore[arg-type]
        return replace(problem, lanes=tuple(lanes))

    return changed


def _limits(**changes: object) -> Change:
    def changed(problem: Problem) -> Problem:
        return replace(problem, limits=replace(problem.limits, **changes))  # type: ignore[arg-type]

    return changed
