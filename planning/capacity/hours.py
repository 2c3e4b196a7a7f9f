"""One model's program in one hour: at a price for what is reserved, or with so many reserved replicas.

What is reserved is the only thing that ties a model's hours together. An hour by itself is a small program, which is
solved many times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planning.capacity.parts import ModelPart, at_hour
from planning.capacity.prices import GpuPrices
from planning.capacity.problem import PriceKind, Problem, Quota
from planning.capacity.program import Shares, build, counts_of, shares_of
from planning.capacity.rounding import dive
from planning.capacity.solver import SHORTEST_S, Deadline, Solved, solve

Reserved = Mapping[int, int]
"""Reserved replicas by site."""
Taken = Mapping[Quota, Sequence[int]]
"""GPUs by hour that other models use of each quota."""


_DIVED = 0.3
"""Of an hour's time, for a first answer."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Where a search stops: within `slack_usd` of the optimum, or at the deadline. `dives`: it only dives."""

    slack_usd: float
    until: Deadline
    dives: bool = False


@dataclass(frozen=True, slots=True)
class HourPlan:
    """Replicas by (site, kind), reserved ones among them. `cost_usd`: what is paid by the hour and for crossing
    regions; `priced_usd`: with the prices of GPUs. `values`: of the program's columns."""

    replicas: Mapping[tuple[int, PriceKind], int]
    cost_usd: float
    priced_usd: float
    values: Sequence[float]

    @property
    def reserved(self) -> dict[int, int]:
        """Those reserved, by site."""
        return {site: count for (site, kind), count in self.replicas.items() if kind is PriceKind.RESERVED}


class HourProgram:
    """Sites are numbered as in the whole problem."""

    def __init__(self, problem: Problem, part: ModelPart, hour: int, gpus: GpuPrices) -> None:
        self._problem, self._part, self._hour = at_hour(problem, part, hour), part, hour
        self._program = program = build(self._problem)
        self._paid = list(program.cost)
        self._priced = list(program.cost)
        self._reserved: dict[int, int] = {}
        for (number, kind, _), column in program.counts.items():
            site = self._problem.sites[number]
            if kind is PriceKind.RESERVED:
                self._reserved[part.sites[number]] = column
                self._paid[column] = self._priced[column] = 0.0
            elif gpus:
                covers = (quota for quota in problem.quotas if quota.covers(site, kind))
                self._priced[column] += site.gpus * sum(gpus.get((quota, hour), 0.0) for quota in covers)
        self._quotas = {
            quota: program.quotas[own, 0] for quota, own in zip(problem.quotas, self._problem.quotas, strict=True)
        }
        self._free: Sequence[float] | None = None
        """Values of an answer that needs no given number of reserved replicas."""

    @property
    def binds(self) -> bool:
        """Whether the loss of a region is to be survived in it."""
        return self._problem.limits.survive_region

    def at_prices(
        self, usd: Mapping[int, float], lower: Reserved, upper: Reserved, effort: Effort
    ) -> tuple[float, HourPlan | None, float]:
        """A lower bound of the cost, a plan, and what that costs more, where a reserved replica costs `usd` by site,
        and GPUs their price."""
        program = self._program
        program.cost = list(self._priced)
        for site, column in self._reserved.items():
            program.cost[column] = usd[site]
            program.lower[column], program.upper[column] = float(lower[site]), float(upper[site])
        self._leave({})
        solved = self._solve(effort, self._free)
        if solved.values is None:
            return solved.bound, None, 0.0
        self._free = solved.values
        return solved.bound, self._plan(solved.values), solved.cost - solved.bound

    def with_reserved(self, reserved: Reserved, taken: Taken, effort: Effort) -> HourPlan | None:
        """The cheapest plan with that many reserved replicas, which are paid for, in what is left of the quotas. None:
        there is none, or it was not found in time."""
        program = self._program
        program.cost = list(self._paid)
        for site, column in self._reserved.items():
            program.lower[column] = program.upper[column] = float(reserved.get(site, 0))
        self._leave(taken)
        solved = self._solve(effort)
        return None if solved.values is None else self._plan(solved.values)

    def shares(self, plan: HourPlan) -> Shares:
        """Where a plan's requests go, as parts of the whole problem's demand."""
        found = shares_of(self._problem, self._program, plan.values)
        return {(self._part.route(route), self._hour): share for (route, _), share in found.items()}

    def _solve(self, effort: Effort, start: Sequence[float] | None = None) -> Solved:
        """From a known answer on, where it is within the bounds and there is time, or else by diving first."""
        program, found = self._program, None
        limit_s = 0.0 if effort.dives else effort.until.wall_s()
        if start is None or limit_s < SHORTEST_S or not program.allows(start):
            dived = effort.until.part(1.0 if effort.dives else _DIVED)
            found = dive(program, lambda: dived.late)
            limit_s = 0.0 if effort.dives else effort.until.wall_s()
            if found.proved or found.cost - found.bound <= effort.slack_usd or limit_s < SHORTEST_S:
                return found
            start = found.values
        known = None if start is None else dict(enumerate(start))
        solved = solve(program, gap=0.0, slack_usd=effort.slack_usd, limit_s=limit_s, start=known)
        if found is None or solved.proved:
            return solved
        best = solved if solved.cost <= found.cost else found
        return Solved(best.values, best.cost, max(solved.bound, found.bound), False)

    def _leave(self, taken: Taken) -> None:
        for quota, row in self._quotas.items():
            used = taken[quota][self._hour] if quota in taken else 0
            self._program.row_upper[row] = float(quota.free(self._hour) - used)

    def _plan(self, values: Sequence[float]) -> HourPlan:
        counts = counts_of(self._program, values)
        return HourPlan(
            {(self._part.sites[number], kind): count for (number, kind, _), count in counts.items()},
            sum(usd * value for usd, value in zip(self._paid, values, strict=True) if value and usd),
            sum(usd * value for usd, value in zip(self._priced, values, strict=True) if value and usd),
            values,
        )
