"""Runs HiGHS on a program: the mixed-integer one to a gap or a time limit, or its relaxation."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from planning.capacity.problem import PriceKind
from planning.capacity.program import Program

Clock = Callable[[], float]
"""Seconds: `time.monotonic`, or `time.process_time` where other programs need the processor, too."""


_BUSY = 20.0
"""How much longer a program takes by the wall than by the processor's time, at most, on a busy machine."""
_SHORTEST_S = 0.05


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a search ends, by a clock."""

    at_s: float
    clock: Clock

    @property
    def left_s(self) -> float:
        return max(0.0, self.at_s - self.clock())

    def wall_s(self, share: float = 1.0) -> float:
        """What a share of the time that is left is at most by the wall, which the solver's limits are of."""
        return max(_SHORTEST_S, share * self.left_s * (1.0 if self.clock is time.monotonic else _BUSY))

    def part(self, share: float) -> "Deadline":
        """A deadline after that share of the time that is left."""
        return Deadline(self.clock() + share * self.left_s, self.clock)


@dataclass(frozen=True, slots=True)
class Solved:
    """Values by column (None: none found), cost and bound. `proved`: within the gap, or shown to be infeasible."""

    values: Sequence[float] | None
    cost: float
    bound: float
    proved: bool


def solve(
    program: Program,
    *,
    gap: float,
    limit_s: float,
    slack_usd: float = 0.0,
    start: Mapping[int, float] | None = None,
) -> Solved:
    """The mixed-integer program, to within `gap` or `slack_usd` of the optimum. `start`: values of some columns, from
    which the search begins."""
    solver = _solver(limit_s)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("mip_abs_gap", max(slack_usd, _ROUND))
    solver.passModel(program.to_highs())
    if start:
        columns = np.array(list(start), dtype=np.int32)
        solver.setSolution(len(start), columns, np.array(list(start.values()), dtype=np.float64))
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    proved = status in (highspy.HighsModelStatus.kOptimal, *_INFEASIBLE)
    if status in _INFEASIBLE or info.primal_solution_status != _FEASIBLE:
        return Solved(None, math.inf, math.inf if status in _INFEASIBLE else float(info.mip_dual_bound), proved)
    cost = float(info.objective_function_value)
    bound = min(cost, float(info.mip_dual_bound)) if any(program.integer) else cost
    return Solved(solver.getSolution().col_value, cost, bound, proved)


def relax(program: Program, *, limit_s: float) -> tuple[Solved, Sequence[float]]:
    """The program with fractions of replicas, and the dual value of each row: what the cost would change by for one
    unit more on its right side."""
    solver = _solver(limit_s)
    solver.passModel(program.to_highs(relaxed=True))
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status != highspy.HighsModelStatus.kOptimal:
        return Solved(None, math.inf, math.inf if status in _INFEASIBLE else 0.0, status in _INFEASIBLE), ()
    cost = float(info.objective_function_value)
    solution = solver.getSolution()
    return Solved(solution.col_value, cost, cost, True), solution.row_dual


def round_up(program: Program, relaxed: Solved) -> Solved:
    """A placement from the relaxed one: fractions of spot replicas become on demand, those of all others whole
    replicas. No values where that breaks a quota, or where demand cannot be split at will."""
    none = Solved(None, math.inf, relaxed.bound, False)
    if relaxed.values is None:
        return relaxed
    values = np.array(relaxed.values)
    left = dict.fromkeys((site, hour) for site, _, hour in program.counts)
    for site, hour in left:
        columns = {kind: program.counts[site, kind, hour] for kind in PriceKind if (site, kind, hour) in program.counts}
        total = sum(values[column] for column in columns.values())
        last = columns.pop(PriceKind.ON_DEMAND, None)
        if last is None:
            last = columns.popitem()[1]
        for column in columns.values():
            values[column] = math.floor(values[column] + _ROUND)
        values[last] = math.ceil(total - sum(values[column] for column in columns.values()) - _ROUND)
    counts = set(program.counts.values())
    if any(
        whole and column not in counts and values[column] % 1 > _ROUND for column, whole in enumerate(program.integer)
    ):
        return none
    rounded = values.tolist()
    if any(program.activity(row, rounded) > program.row_upper[row] + _ROUND for row in program.quotas.values()):
        return none
    return Solved(rounded, float(np.dot(values, program.cost)), relaxed.bound, False)


_ROUND = 1e-6
_FEASIBLE = 2
"""HiGHS' `kSolutionStatusFeasible`."""
_INFEASIBLE = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)


def _solver(limit_s: float) -> highspy.Highs:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", max(limit_s, 0.1))
    return solver
