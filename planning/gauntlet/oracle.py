"""The oracle: it knows all arrivals and searches for the fewest replica-hours that meet the SLO, given the start-up
time.

    work of a request    prompt * (step of a whole chunk / its tokens) + output * (step of a full batch / its sequences)
                         in replica-seconds
    demand(t)            the work of the arrived requests, spread over the duration of their answers on a full replica,
                         in replicas
    needed(t, m, w)      ceil(m * mean of demand over w), by bins of 10 s; scheduled one start-up time ahead, without
                         gaps shorter than a start

For some w, bisection finds the smallest m that meets the SLO in a real simulation. From the cheapest of these, two
searches take turns while simulations are left:

    reshaping    by windows a little longer than a start. Three simulations, each with every third window lowered, show
                 what one replica less would cost in each window (a queue is gone two windows later). A fourth with all
                 windows raised shows what one more would save. The best levels of all windows together are run. Single
                 effects do not add up exactly, so the aim is corrected by the result.
    trimming     many small cuts at the ends of levels, and a few additions where most requests miss, tried in one
                 simulation. Each is charged with the misses around it; the cheapest by misses are kept.

This is a search, not a proof: the true optimum may be slightly lower. A policy's run that met the SLO for less lowers
the result (`results.py`).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deployments.engine_model.cost_model import Chunk
from planning.gauntlet.run import outcome_of, score_of
from planning.gauntlet.scenario import ScenarioRun
from planning.gauntlet.schedule import (
    AROUND,
    BIN_S,
    Needed,
    SchedulePolicy,
    ScheduleShape,
    affordable,
    apart,
    changed,
    cuts,
    filled,
    raises,
    reshaped,
    scheduled,
)
from planning.scoring import Score
from planning.simulator.bins import Bins

_HALVINGS = 5
_LOW, _HIGH = 0.7, 2.2
_SMOOTHED = (3, 1, 6)
"""Bins over which demand is averaged: always the first, the others if there are enough simulations."""
_ENOUGH = 3 * (_HALVINGS + 2)
_LONGER = (3, 6, 1)
"""By how many bins a window is longer than a start, in turns: removing a replica for less than a start saves
nothing."""
_CUTS = (6, 3, 1)
"""Bins that a cut removes, in turns."""
_APART = 3
_CORRECTIONS = 3


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    needed: Needed
    score: Score
    missed: NDArray[np.bool_]

    def keeps(self, target: float) -> bool:
        return self.score.attainment >= target


class Oracle:
    """The search on one run, with at most `sims` simulations."""

    def __init__(self, run: ScenarioRun, target: float, sims: int) -> None:
        self._run = run
        self._target = target
        self._left = sims
        self._enough = sims >= _ENOUGH
        self._start_up_s = max(run.start_up_s)
        self._bounds = replace(run.bounds, up_per_min=math.inf, down_per_min=math.inf, unresponsive_s=1e-6)
        self._rng = np.random.default_rng(5)

    def best(self) -> ScheduleOutcome:
        """The cheapest schedule found that meets the SLO; if none does, the maximum of replicas."""
        demand = demand_of(self._run)
        found = [self._by_multiplier(demand, bins) for bins in (_SMOOTHED if self._enough else _SMOOTHED[:1])]
        keeping = [tried for tried in found if tried.keeps(self._target)]
        if not keeping:
            return self.run(np.full(len(demand), self._bounds.maximum))
        best = min(keeping, key=lambda tried: tried.score.replica_hours)
        turn, in_vain = 0, 0
        while self._left > _APART + 1 and in_vain < len(_LONGER):
            before, number = best, turn % len(_LONGER)
            best = self._reshaped(best, math.ceil(self._start_up_s / BIN_S) + _LONGER[number])
            if self._left >= 2:
                best = self._trimmed(best, _CUTS[number])
            turn, in_vain = turn + 1, in_vain + 1 if best is before else 0
        return best

    def run(self, needed: Needed) -> ScheduleOutcome:
        self._left -= 1
        run, bounds = self._run, self._bounds
        whole = filled(np.clip(needed, bounds.minimum, bounds.maximum), self._start_up_s, run.replicas)
        out = outcome_of(run, SchedulePolicy(scheduled(whole, self._start_up_s, run.replicas)), self._target, bounds)
        missed = ~(np.nan_to_num(out.ttft_s, nan=np.inf) <= run.workload.ttft_slo_s)
        return ScheduleOutcome(whole, score_of(run, out, self._target), missed)

    def _by_multiplier(self, demand: NDArray[np.float64], bins: int) -> ScheduleOutcome:
        even = np.convolve(demand, np.ones(bins), mode="same") / np.convolve(
            np.ones(len(demand)), np.ones(bins), mode="same"
        )
        low, high = _LOW, _HIGH
        best = self._multiplied(even, high)
        if not best.keeps(self._target):
            return best
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = self._multiplied(even, middle)
            if tried.keeps(self._target):
                high, best = middle, tried
            else:
                low = middle
        return best

    def _multiplied(self, demand: NDArray[np.float64], multiplier: float) -> ScheduleOutcome:
        return self.run(np.ceil(multiplier * demand - 1e-9).astype(np.int64))

    def _reshaped(self, base: ScheduleOutcome, width: int) -> ScheduleOutcome:
        window = (np.arange(len(base.needed)) + int(self._rng.integers(width))) // width
        before = _by(window, self._misses(base))
        upper = _by(window, self._misses(self.run(base.needed + 1))) - before
        lower = np.zeros(len(before))
        for turn in range(_APART):
            chosen = np.arange(len(before)) % _APART == turn
            more = _by(window, self._misses(self.run(base.needed - chosen[window]))) - before
            lower += np.where(
                chosen, sum(np.concatenate([more[after:], np.zeros(after)]) for after in range(_APART)), 0
            )
        shape = ScheduleShape(
            base.needed, window, lower, upper, self._start_up_s / BIN_S, self._bounds.minimum, self._bounds.maximum
        )
        best, allowed = base, float(self._allowed(base))
        aim = allowed
        for _ in range(min(_CORRECTIONS, self._left)):
            needed, foreseen = reshaped(shape, aim)
            if np.array_equal(needed, base.needed):
                break
            tried = self.run(needed)
            if tried.keeps(self._target) and tried.score.replica_hours < best.score.replica_hours:
                best = tried
            aim = allowed - 1.2 * (int(tried.missed.sum()) - int(base.missed.sum()) - foreseen)
        return best

    def _trimmed(self, base: ScheduleOutcome, width: int) -> ScheduleOutcome:
        before = self._misses(base)
        added = raises(base.needed, before, self._bounds.maximum, width)
        changes = apart([*added, *cuts(base.needed, self._bounds.minimum, width, self._rng)])
        if not changes:
            return base
        more = self._misses(self.run(changed(base.needed, changes))) - before
        charges = [int(more[change.begin : change.end + AROUND].sum()) for change in changes]
        chosen = affordable([change.replica_bins for change in changes], charges, self._allowed(base))
        while chosen and self._left:
            tried = self.run(changed(base.needed, [changes[index] for index in chosen]))
            if tried.keeps(self._target):
                return tried if tried.score.replica_hours < base.score.replica_hours else base
            chosen = chosen[: len(chosen) // 2]
        return base

    def _allowed(self, base: ScheduleOutcome) -> int:
        return math.floor((1 - self._target) * len(base.missed) + 1e-9) - int(base.missed.sum())

    def _misses(self, tried: ScheduleOutcome) -> NDArray[np.float64]:
        """Misses by bin of their arrival."""
        misses: NDArray[np.float64] = (
            Bins(BIN_S, len(tried.needed)).counts(self._run.workload.arrived_s[tried.missed]).astype(np.float64)
        )
        return misses


def demand_of(run: ScenarioRun) -> NDArray[np.float64]:
    """See the module's docstring; by bins of `BIN_S`."""
    serving, work = run.serving, run.workload
    limits, cost = serving.limits, serving.cost
    chunk = limits.step_tokens
    per_prompt_s = (cost.step_s([Chunk(chunk, 0)], 0, 0.0, 1) - cost.base_s(0)) / chunk
    step_s = cost.base_s(limits.sequences)
    decode_s = work.output_tokens * step_s
    bins = Bins(BIN_S, math.ceil(run.until_s / BIN_S))
    busy_s = work.prompt_tokens * per_prompt_s + decode_s / limits.sequences
    return bins.spread(work.arrived_s, work.arrived_s + decode_s, busy_s) / BIN_S


def _by(window: NDArray[np.int64], amounts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of the bins' amounts in each window."""
    sums: NDArray[np.float64] = np.bincount(window, weights=amounts, minlength=int(window[-1]) + 1).astype(np.float64)
    return sums
