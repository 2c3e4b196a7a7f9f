"""The loop of a re-planner: looks at the cells every few seconds, and re-plans every few minutes.

What it decides is in `planning/replan`; this gives it readings and the time, logs what it decided, and then orders it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from cli.replan.cells import Cells
from planning.replan import Observed, Replan, ReplanBasis, ReplanSettings, ReplanState, SiteKey, replan
from planning.replan.demand import Arrivals, DemandForecast
from planning.replan.from_worksheet import ReplanCase
from planning.replan.log import ReplanLog

LOOK_EVERY_S = 10.0
LOST_AFTER_S = 60.0
"""A region that has not answered for so long counts as lost."""
SURPRISE = 1.2
"""Where so many times the demand is expected that the last re-plan was made for, the next one comes at once."""
SOONEST_S = 30.0
LIFETIMES = 3.0
"""Bounds hold for so many periods: a re-plan that fails, and one after it, change nothing."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Re-plans come every `every_s`; rates are counted over `window_s`."""

    every_s: float
    window_s: float


class ReplanLoop:
    """`prices`: what a replica of each site costs now."""

    def __init__(
        self,
        case: ReplanCase,
        cells: Cells,
        settings: ReplanSettings,
        timing: Timing,
        prices: Callable[[], dict[SiteKey, float]],
        log: ReplanLog | None = None,
    ) -> None:
        self.cells = cells
        now = time.time()
        until_s = now + LIFETIMES * timing.every_s
        # Of a region that is lost before it was heard, the worksheet's rates are all that is known.
        self.state = ReplanState(before_loss=case.planned.demand(cells.by_region, now, until_s))
        self._settings = settings
        self._timing = timing
        self._prices = prices
        self._log = log
        self._arrivals = Arrivals(timing.window_s)
        self._began_s = now
        self.take(case)

    def take(self, case: ReplanCase) -> None:
        """Another basis, at the start or because the worksheet or the spec has changed. Raises OSError of the log."""
        self._basis: ReplanBasis = case.basis
        self.forecast = DemandForecast(case.planned, self._timing.every_s * LIFETIMES)
        if self._log is not None:
            self._log.begin(case.basis, self._settings, self.state)

    def look(self) -> None:
        """One reading of all cells."""
        self.cells.look()
        for region, cell in self.cells.by_region.items():
            for model, (at_s, reading) in cell.readings.items():
                if at_s == cell.heard_s:
                    self._arrivals.look(region, model, at_s, reading.epoch, reading.flows)

    def observed(self) -> Observed | None:
        """What is known now; None before each region that answers has been counted for a window."""
        now = time.time()
        lost = frozenset(
            region
            for region, cell in self.cells.by_region.items()
            if now - max(cell.heard_s, self._began_s) > LOST_AFTER_S
        )
        rates = {}
        for region, cell in self.cells.by_region.items():
            if region in lost:
                continue
            if not cell.heard_s:
                return None
            for model in cell.readings:
                found = self._arrivals.rates(region, model)
                if found is None:
                    return None
                rates[region, model] = found
        demand = self.forecast.expected(now, rates)
        known = {lane.title for lane in self._basis.problem.lanes}
        demand = {key: rate for key, rate in demand.items() if key[0] in known}
        return Observed(now, demand, self.cells.states(now - LOST_AFTER_S), self._prices(), lost)

    def due(self, observed: Observed) -> bool:
        """Whether to re-plan: after a period, or soon where much more is expected than was planned for."""
        if not self.state.expected:
            return True
        at_s, before = self.state.expected[-1]
        passed_s = observed.unix_s - at_s
        return passed_s >= self._timing.every_s or (
            passed_s >= SOONEST_S and sum(observed.demand.values()) > SURPRISE * sum(before.values())
        )

    def replan(self, observed: Observed) -> Replan:
        """Decides and logs, before anything is ordered. Raises OSError where it cannot be logged."""
        plan = replan(self._basis, self._settings, self.state, observed)
        if self._log is not None:
            self._log.add(observed, plan)
        self.state = plan.state
        return plan

    def order(self, plan: Replan, why: str) -> dict[str, str]:
        """Orders the bounds in all cells; by region, what went wrong."""
        regions = dict.fromkeys(one.site.region for one in plan.bounds)
        plans = {region: plan.of(region) for region in regions if region in self.cells.by_region}
        return self.cells.bound(plans, LIFETIMES * self._timing.every_s, why)
