"""Runs HiGHS on a program: the mixed-integer one to a gap or a time limit, or its relaxation."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import highspy
import numpy as np

from planning.capacity.program import Program

Clock = Callable[[], float]
"""Seconds: `time.monotonic`, or `time.process_time` where other programs need the processor, too."""


_BUSY = 20.0
"""How many seconds of the wall one of the clock takes at most, on a busy machine."""
SHORTEST_S = 0.05
"""The solver is not started for less."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a search ends, by a clock. `began`: by the wall and by the clock."""

    at_s: float
    clock: Clock
    began: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def after(cls, limit_s: float, clock: Clock) -> Self:
        """The one that many seconds from now."""
        now_s = clock()
        return cls(now_s + limit_s, clock, (time.monotonic(), now_s))

    @property
    def left_s(self) -> float:
        return max(0.0, self.at_s - self.clock())

    @property
    def late(self) -> bool:
        """Whether nothing is left."""
        return self.clock() >= self.at_s

    def wall_s(self, share: float = 1.0) -> float:
        """What a share of the time that is left is by the wall, which the solver's limits are of: as the clock has run
        so far."""
        if self.clock is time.monotonic:
            return share * self.left_s
        wall_s, clock_s = time.monotonic() - self.began[0], self.clock() - self.began[1]
        return share * self.left_s * (min(_BUSY, wall_s / clock_s) if clock_s > 0 else 1.0)

    def part(self, share: float) -> Self:
        """A deadline after that share of the time that is left."""
        return replace(self, at_s=self.clock() + share * self.left_s)


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
    solver = solver_with_limit(limit_s)
    solver.setOptionValue("mip_allow_restart", False)  # a fifth faster on one hour's programs, as is the next
    solver.setOptionValue("mip_detect_symmetry", False)
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
    solver = solver_with_limit(limit_s)
    solver.passModel(program.to_highs(relaxed=True))
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status != highspy.HighsModelStatus.kOptimal:
        return Solved(None, math.inf, math.inf if status in _INFEASIBLE else 0.0, status in _INFEASIBLE), ()
    cost = float(info.objective_function_value)
    solution = solver.getSolution()
    return Solved(solution.col_value, cost, cost, True), solution.row_dual


_ROUND = 1e-6
_FEASIBLE = 2
"""HiGHS' `kSolutionStatusFeasible`."""
_INFEASIBLE = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)


def solver_with_limit(limit_s: float) -> highspy.Highs:
    """HiGHS on one thread, with a limit by the wall."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", max(limit_s, SHORTEST_S))
    return solver
