"""Whole replicas from a relaxed program, without a search: in one step (`round_up`), or by diving (`dive`)."""

import math
from collections.abc import Callable

import highspy
import numpy as np

from planning.capacity.problem import PriceKind
from planning.capacity.program import Program
from planning.capacity.solver import Solved, solver_with_limit

_ROUND = 1e-6
_SURE = 0.1
"""Fractions so close to a whole number are rounded at once."""


def round_up(program: Program, relaxed: Solved) -> Solved:
    """A placement from the relaxed one: fractions of spot replicas become on demand, those of all others whole
    replicas. No values where that breaks a quota or the share of spot, or where demand cannot be split at will."""
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
    rows = (*program.quotas.values(), *program.spots.values())
    if any(program.activity(row, rounded) > program.row_upper[row] + _ROUND for row in rows):
        return none
    return Solved(rounded, float(np.dot(values, program.cost)), relaxed.bound, False)


def dive(program: Program, late: Callable[[], bool]) -> Solved:
    """Whole numbers by diving (Berthold, Primal Heuristics for Mixed Integer Programs, 2006): fractions are rounded a
    few at a time, and the relaxed program is solved again after each time. What is then not needed is left out, and
    each replica is replaced by others where that is cheaper. Once it is `late`, the rest is rounded up. No values where
    that ends at rows that cannot hold. The bound is that of the relaxed program."""
    diving = _Diving(program)
    if not diving.run():
        return Solved(None, math.inf, math.inf if diving.infeasible else 0.0, diving.infeasible)
    bound, first = diving.cost, diving.values
    if diving.to_whole(math.inf, late):
        diving.drop(late)
        diving.replace(late)
        return Solved(diving.values.tolist(), float(np.dot(diving.values, program.cost)), bound, False)
    rounded = round_up(program, Solved(first.tolist(), bound, bound, False))
    return Solved(rounded.values, rounded.cost, bound, False)


class _Diving:
    """The relaxed program with bounds of whole columns that get closer."""

    def __init__(self, program: Program) -> None:
        self.columns = np.flatnonzero(program.integer)
        self.values = np.zeros(len(program.cost))
        self.cost, self.infeasible = 0.0, False
        self._price = np.array(program.cost)
        self._spot = [column for (_, kind, _), column in program.counts.items() if kind is PriceKind.SPOT]
        """Rounded down first: a spot replica may need others that are paid for otherwise."""
        self._first_lower, self._first_upper = np.array(program.lower), np.array(program.upper)
        self._lower, self._upper = self._first_lower.copy(), self._first_upper.copy()
        self._solver = solver_with_limit(math.inf)
        self._solver.passModel(program.to_highs(relaxed=True))

    def run(self) -> bool:
        """Solves it again; False: without an answer."""
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            self.infeasible = status == highspy.HighsModelStatus.kInfeasible
            return False
        self.values = np.array(self._solver.getSolution().col_value)
        self.cost = float(self._solver.getInfo().objective_function_value)
        return True

    def to_whole(self, below_usd: float, late: Callable[[], bool]) -> bool:
        """Rounds until all is whole; False: it is late, or not cheaper than that, or a row cannot hold."""
        for column in self._spot:
            self._bound(column, self._lower[column], np.floor(self.values[column] + _ROUND))
        if not self.run():
            return False
        while self.cost < below_usd and not late():
            part = self.values[self.columns] % 1
            part[part > 1 - _ROUND] = 0.0
            if not (part > _ROUND).any():
                self.values[self.columns] = np.round(self.values[self.columns])
                return True
            if not self._round_some(part):
                return False
        return False

    def _round_some(self, part: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
        """Rounds the fractions that are nearly whole; if there are none, the largest if it is a half or more, and
        otherwise the smallest down. What cannot be rounded down is rounded up."""
        open_ = part > _ROUND
        up, down = part >= 1 - _SURE, open_ & (part <= _SURE)
        if not up.any() and not down.any():
            if part.max() >= 0.5:
                up = part == part.max()
            else:
                down = open_ & (part == part[open_].min())
        floors = np.floor(self.values[self.columns])
        for column, floor in zip(self.columns[up].tolist(), floors[up].tolist(), strict=True):
            self._bound(column, floor + 1, self._upper[column])
        below = list(zip(self.columns[down].tolist(), floors[down].tolist(), strict=True))
        for column, floor in below:
            self._bound(column, self._lower[column], floor)
        if self.run():
            return True
        for column, floor in below:
            self._bound(column, floor + 1, self._first_upper[column])
        return bool(below) and self.run()

    def drop(self, late: Callable[[], bool]) -> None:
        """Takes away one replica after the other that is not needed, the dearest first."""
        known = self.values
        for column in self.columns.tolist():
            self._bound(column, known[column], known[column])
        for column in self._dearest(known):
            while known[column] > self._first_lower[column] and not late():
                self._bound(column, known[column] - 1, known[column] - 1)
                if not self.run():
                    self._bound(column, known[column], known[column])
                    break
                known = self.values
                known[self.columns] = np.round(known[self.columns])
        self.values = known

    def replace(self, late: Callable[[], bool]) -> None:
        """Takes away one replica of a site after the other, the dearest first, and adds others where that costs
        less."""
        best, best_usd = self.values, float(np.dot(self.values, self._price))
        for column in self._dearest(best):
            if late() or best[column] <= self._first_lower[column]:
                continue
            for other in self.columns.tolist():
                self._bound(other, best[other], self._first_upper[other])
            self._bound(column, self._first_lower[column], best[column] - 1)
            if self.run() and self.cost < best_usd and self.to_whole(best_usd, late):
                self.drop(late)
                usd = float(np.dot(self.values, self._price))
                if usd < best_usd - _ROUND:
                    best, best_usd = self.values, usd
        self.values = best

    def _dearest(self, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[int]:
        used = [column for column in self.columns.tolist() if values[column] > 0.5 and self._price[column] > 0]
        return sorted(used, key=lambda column: -self._price[column])

    def _bound(self, column: int, lower: float, upper: float) -> None:
        self._lower[column], self._upper[column] = lower, upper
        self._solver.changeColBounds(column, lower, upper)
