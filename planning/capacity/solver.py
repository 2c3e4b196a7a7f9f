"""Runs HiGHS on a program, on one thread: the mixed-integer one to a gap or a time limit, or its relaxation."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import highspy

from planning.capacity.program import Program

_TINY_USD = 1e-6
_LARGE = 2_000
"""Whole numbers of a part, beyond which HiGHS finds little in a minute."""
NOTHING: Mapping[int, float] = {}
_FEASIBLE = 2
"""HiGHS' `kSolutionStatusFeasible`."""
_INFEASIBLE = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)


@dataclass(frozen=True, slots=True)
class Solved:
    """Values by column (None: none found), cost and bound. `proved`: within the gap, or shown to be infeasible."""

    values: Sequence[float] | None
    cost: float
    bound: float
    proved: bool


def solve(program: Program, *, gap: float, limit_s: float, fixed: Mapping[int, float] = NOTHING) -> Solved:
    """The mixed-integer program, to within `gap` of the optimum or for `limit_s` seconds of wall time: part by part
    where it falls apart, since HiGHS takes far longer for independent parts together. `fixed`: columns with their
    values."""
    until_s, parts = time.monotonic() + limit_s, program.parts(fixed)
    values = [fixed.get(column, 0.0) for column in range(len(program.cost))]
    cost = bound = sum(program.cost[column] * value for column, value in fixed.items())
    proved = True
    for left, (part, columns) in zip(range(len(parts), 0, -1), parts, strict=True):
        part_s = max(0.0, until_s - time.monotonic()) / left
        found = _part(part, gap, part_s)
        if found.values is None:
            return found
        for column, value in zip(columns, found.values, strict=True):
            values[column] = value
        cost, bound, proved = cost + found.cost, bound + found.bound, proved and found.proved
    return Solved(values, cost, bound, proved or cost - bound <= gap * cost)


def _part(program: Program, gap: float, limit_s: float) -> Solved:
    """Where anything is reserved for all hours: first hour by hour, which leaves the solver a beginning. Of a large
    part it would find nothing better in a minute."""
    if not program.common:
        return _solve(program, gap, limit_s)
    began_s, is_large = time.monotonic(), sum(program.integer) > _LARGE
    first = _by_hour(program, gap, limit_s if is_large else limit_s / 2)
    if first.proved or (is_large and first.values is not None):
        return first
    found = _solve(program, gap, max(0.0, began_s + limit_s - time.monotonic()), first.values)
    return found if found.cost <= first.cost + _TINY_USD else replace(first, bound=max(first.bound, found.bound))


def _by_hour(program: Program, gap: float, limit_s: float) -> Solved:
    """What is reserved, by the relaxed program and rounded; then each hour by itself."""
    began_s, relaxed = time.monotonic(), relax(program, limit_s=limit_s)
    if relaxed.values is None:
        return relaxed
    reserved = {column: float(round(relaxed.values[column])) for column in program.common}
    found = solve(program, gap=gap, limit_s=limit_s - (time.monotonic() - began_s), fixed=reserved)
    if found.values is None:
        return Solved(None, math.inf, relaxed.cost, False)
    return Solved(found.values, found.cost, relaxed.cost, found.cost - relaxed.cost <= gap * found.cost)


def _solve(program: Program, gap: float, limit_s: float, start: Sequence[float] | None = None) -> Solved:
    """One part, from a placement that is known.

    Whole numbers of HiGHS are off by up to 1e-6, which a capacity of many replicas does not forgive: they are rounded,
    and what is left, a linear program, is solved again.
    """
    solver = _solver(limit_s)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("mip_abs_gap", _TINY_USD)
    solver.passModel(program.to_highs())
    if start is not None:
        known = highspy.HighsSolution()
        known.col_value = list(start)
        solver.setSolution(known)
    _run(solver)
    status, info = solver.getModelStatus(), solver.getInfo()
    proved = status in (highspy.HighsModelStatus.kOptimal, *_INFEASIBLE)
    if status in _INFEASIBLE or info.primal_solution_status != _FEASIBLE:
        bound = float(info.mip_dual_bound) if math.isfinite(info.mip_dual_bound) else 0.0
        return Solved(None, math.inf, math.inf if status in _INFEASIBLE else bound, proved)
    bound = float(info.mip_dual_bound) if any(program.integer) else -math.inf
    values, cost = solver.getSolution().col_value, float(info.objective_function_value)
    for column, whole in enumerate(program.integer):
        if whole:
            solver.changeColBounds(column, round(values[column]), round(values[column]))
    solver.setOptionValue("time_limit", math.inf)
    _run(solver)
    if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        values, cost = solver.getSolution().col_value, float(solver.getInfo().objective_function_value)
    return Solved(values, cost, min(cost, bound) if bound > -math.inf else cost, proved)


def relax(program: Program, *, limit_s: float) -> Solved:
    """The program with fractions of replicas."""
    solver = _solver(limit_s)
    solver.passModel(program.to_highs(relaxed=True))
    _run(solver)
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        return Solved(None, math.inf, math.inf if status in _INFEASIBLE else 0.0, status in _INFEASIBLE)
    cost = float(solver.getInfo().objective_function_value)
    return Solved(solver.getSolution().col_value, cost, cost, True)


def _run(solver: highspy.Highs) -> None:
    """In a thread, since HiGHS lets no handler of a signal run before it ends: Ctrl-C and SIGTERM would wait for it.
    What they raise ends HiGHS, too: a process that exits while HiGHS runs is aborted. (An event, since a `join` that a
    signal ended takes the thread for ended.)"""
    ended = threading.Event()

    def run() -> None:
        try:
            solver.run()
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        ended.wait()
    except BaseException:
        solver.cancelSolve()  # type: ignore[no-untyped-call]
        ended.wait()
        raise


def _solver(limit_s: float) -> highspy.Highs:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", limit_s)
    solver.HandleUserInterrupt = True  # so that it can be cancelled
    return solver
