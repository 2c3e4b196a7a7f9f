"""Small random problems, and their optima by a plain program: a share for each lane, origin, hour and site, nothing
merged or taken apart."""

import itertools
import math

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from planning.capacity.problem import LaneDemand, Limits, PriceKind, Problem, Quota, Site

HOURLY = PriceKind.ON_DEMAND


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    """One model, two lanes, two regions, two groups, two hours."""
    rate = st.sampled_from([0.0, 1.0, 2.5, 4.0])
    regions, hours = ("a", "b"), 2
    lanes = tuple(
        LaneDemand(
            name,
            "m",
            {origin: tuple(draw(rate) for _ in range(hours)) for origin in regions},
            ttft_s=draw(st.sampled_from([0.2, 2.0])),
            regions=draw(st.sampled_from([None, frozenset({"a"})])),
        )
        for name in ("short", "long")
    )
    sites = []
    for region, (gpu, long_rate) in itertools.product(regions, (("small", None), ("large", 2.0))):
        rates = {"short": draw(st.sampled_from([1.0, 3.0]))} | ({"long": long_rate} if long_rate else {})
        prices = {HOURLY: draw(st.sampled_from([1.0, 2.0, 3.5]))}
        if draw(st.booleans()):
            prices[PriceKind.RESERVED] = draw(st.sampled_from([0.5, 0.7])) * prices[HOURLY]
        sites.append(Site(gpu, "m", region, gpu, 1, rates, prices))
    quotas = draw(st.sampled_from([(), (Quota("a", "large", 2),)]))
    limits = Limits(
        utilisation=draw(st.sampled_from([1.0, 0.8])),
        failures=draw(st.sampled_from([0, 1, 2])),
        survive_region=draw(st.booleans()),
        binding=draw(st.sampled_from([1.0, 0.6])),
    )
    return Problem(lanes, tuple(sites), 2, quotas, limits, {("a", "b"): 0.3, ("b", "a"): 0.3})


class _Program:
    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.whole: list[int] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def column(self, cost: float = 0.0, upper: float = 1.0, whole: bool = False) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        self.whole.append(int(whole))
        return len(self.cost) - 1

    def optimum(self) -> float:
        matrix = np.zeros((len(self.rows), len(self.cost)))
        for number, (terms, _, _) in enumerate(self.rows):
            for column, value in terms.items():
                matrix[number, column] += value
        limits = LinearConstraint(matrix, [low for _, low, _ in self.rows], [high for *_, high in self.rows])
        bounds = Bounds(np.zeros(len(self.cost)), np.array(self.upper))
        found = milp(np.array(self.cost), constraints=limits, integrality=np.array(self.whole), bounds=bounds)
        return float(found.fun) if found.success else math.inf


def optimum(problem: Problem) -> float:
    """The least cost; infinite where nothing serves the demand."""
    program, limits = _Program(), problem.limits
    hours, sites = range(problem.hours), list(enumerate(problem.sites))
    reserved = {
        number: program.column(problem.hours * site.prices[PriceKind.RESERVED], 100, True)
        for number, site in sites
        if PriceKind.RESERVED in site.prices
    }
    hourly = {
        (number, hour): program.column(site.prices[HOURLY], 100, True) for number, site in sites for hour in hours
    }

    def replicas(number: int, hour: int) -> list[int]:
        return [hourly[number, hour], *([reserved[number]] if number in reserved else [])]

    def serve(hour: int, share: float, failures: int, lost: str | None = None) -> bool:
        """Shares for an hour; while a region is lost, what nothing else may serve is left out."""
        loads: dict[int, dict[int, float]] = {number: {} for number, _ in sites}
        for lane in problem.lanes:
            for origin, rates in lane.demand.items():
                own = [n for n, site in sites if site.region != lost and problem.serves(lane, origin, site)]
                if rates[hour] <= 0 or (lost is not None and not own):
                    continue
                columns = {number: program.column() for number in own}
                program.rows.append((dict.fromkeys(columns.values(), 1.0), 1.0, 1.0))
                for number, column in columns.items():
                    loads[number][column] = rates[hour] / problem.sites[number].rate(lane.name, origin)
                if not own:
                    return False
        for number, load in loads.items():
            there = replicas(number, hour)
            _at_most(program, load, dict.fromkeys(there, -share), 0.0)
            if failures:
                used = program.column(whole=True)
                _at_most(program, load, {used: float(failures), **dict.fromkeys(there, -1.0)}, 0.0)
                _at_most(program, load, {used: -sum(load.values())}, 0.0)
        return True

    for hour in hours:
        if not serve(hour, limits.utilisation, limits.failures):
            return math.inf
        for quota in problem.quotas:
            own = [one for n, site in sites if quota.covers(site, HOURLY) for one in replicas(n, hour)]
            _at_most(program, dict.fromkeys(own, 1.0), {}, float(quota.gpus))
    if limits.survive_region:
        for hour, lost in itertools.product(problem.binding_hours("m"), problem.regions):
            serve(hour, 1.0, 0, lost)
    return program.optimum()


def _at_most(program: _Program, load: dict[int, float], more: dict[int, float], most: float) -> None:
    program.rows.append((load | more, -math.inf, most))
