"""Small re-planning cases, and a judge of placements that shares no code with the re-planner."""

from collections.abc import Mapping

import numpy as np
from scipy.optimize import linprog

from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota, Site
from planning.replan import Observed, ReplanBasis, ReplanSettings, ReplanState, SiteKey, SiteState, replan
from planning.replan.result import Replan

REGIONS = ("a", "b", "c")
LANE = "m: all"


def key(region: str, group: str = "m") -> SiteKey:
    return SiteKey(region, group)


def site(region: str, usd: float, *, group: str = "m", model: str = "m", rate: float = 1.0, gpu: str = "L4") -> Site:
    return Site(group, model, region, gpu, 1, {"all": rate}, {PriceKind.ON_DEMAND: usd})


def basis(
    usd: Mapping[str, float],
    *,
    survive: bool = False,
    utilisation: float = 1.0,
    residency: frozenset[str] | None = None,
    quotas: tuple[Quota, ...] = (),
    highest: int = 50,
    lowest: int = 0,
    peaks: Mapping[tuple[str, str], float] | None = None,
) -> ReplanBasis:
    """One model with a group in each region, where a replica serves a request a second."""
    lane = LaneDemand("all", "m", dict.fromkeys(usd, (0.0,)), regions=residency)
    trips = {(one, other): 0.05 for one in usd for other in usd if one != other}
    limits = Limits(utilisation, survive_region=survive)
    problem = Problem((lane,), tuple(site(*each) for each in usd.items()), quotas=quotas, limits=limits, rtt_s=trips)
    keys, count = tuple(key(region) for region in usd), len(usd)
    return ReplanBasis(problem, keys, (lowest,) * count, (highest,) * count, peaks or {})


def observed(
    demand: Mapping[str, float],
    there: Mapping[SiteKey, int],
    *,
    unix_s: float = 0.0,
    usd: Mapping[SiteKey, float] | None = None,
    room: Mapping[SiteKey, int] | None = None,
    lost: frozenset[str] = frozenset(),
) -> Observed:
    """Everything that was asked for runs and is ready."""
    states = {one: SiteState(count, count, (room or {}).get(one)) for one, count in there.items()}
    return Observed(unix_s, {(LANE, region): rate for region, rate in demand.items()}, states, usd or {}, lost)


class Cluster:
    """Re-plans again and again; what a floor asks for is there at the next one, unless `delay`."""

    def __init__(self, of: ReplanBasis, there: Mapping[SiteKey, int], settings: ReplanSettings | None = None) -> None:
        self.basis, self.settings = of, settings or ReplanSettings()
        self.there, self.now = dict(there), 0.0
        self.state = ReplanState()
        self.plans: list[Replan] = []

    def replan(self, demand: Mapping[str, float], *, delay: bool = False, **more: object) -> Replan:
        seen = observed(demand, self.there, unix_s=self.now, **more)  # type: ignore[arg-type]
        plan = replan(self.basis, self.settings, self.state, seen)
        self.plans.append(plan)
        self.state, self.now = plan.state, self.now + 300.0
        if not delay:
            self.there |= {one.site: one.floor for one in plan.bounds}
        return plan


def floors(plan: Replan) -> dict[str, int]:
    return {one.site.region: one.floor for one in plan.bounds}


def targets(plan: Replan) -> dict[str, int]:
    return {one.site.region: one.target for one in plan.bounds}


def covers(
    of: ReplanBasis, counts: Mapping[SiteKey, int], demand: Mapping[tuple[str, str], float], survive: bool
) -> bool:
    """Whether those replicas serve the demand, and with `survive` also without any one region: a flow problem each."""
    limits = of.problem.limits
    regions = {one.region for one in counts}
    scenarios: list[str | None] = [None, *(regions if survive else ())]
    return all(_serves(of, counts, demand, lost, limits.utilisation if lost is None else 1.0) for lost in scenarios)


def _serves(
    of: ReplanBasis,
    counts: Mapping[SiteKey, int],
    demand: Mapping[tuple[str, str], float],
    lost: str | None,
    utilisation: float,
) -> bool:
    """Maximises what is served."""
    flows = []
    for title, origin in demand:
        lane = next(one for one in of.problem.lanes if one.title == title)
        for name, one in zip(of.sites, of.problem.sites, strict=True):
            near = origin == one.region or (origin, one.region) in of.problem.rtt_s
            resident = lane.regions is None or one.region in lane.regions
            each = one.rates.get(lane.name, 0.0)
            if one.model == lane.model and near and resident and each > 0 and one.region != lost and name in counts:
                flows.append(((title, origin), name, each))
    served = {where for where, _, _ in flows}
    needed = {where: rate for where, rate in demand.items() if where in served}
    if not needed:
        return True
    rows, limits = [], []
    for where, rate in needed.items():
        rows.append([1.0 if flow[0] == where else 0.0 for flow in flows])
        limits.append(rate)
    for name in counts:
        rows.append([1.0 / flow[2] if flow[1] == name else 0.0 for flow in flows])
        limits.append(utilisation * counts[name])
    found = linprog(-np.ones(len(flows)), A_ub=np.array(rows), b_ub=np.array(limits))
    return bool(-found.fun >= sum(needed.values()) - 1e-5)
