"""The re-planner beside simulated cells. All cells share one clock, so that it needs no loop of its own: each time an
autoscaler is asked, it hears what that cell sees, and every `every_s` it re-plans from what all of them see.

`ReplannedAutoscaler` takes the place of a cell's autoscaler (`SimulatedScaling.autoscaler`); what bounds it is what
bounds the autoscalers of a live cell.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoscaling.policies.policy import ScalingPolicy
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds, Limit, ScalingDecision
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control, ControlKind
from planning.replan.basis import Observed, ReplanBasis, ReplanSettings, SiteKey, SiteState
from planning.replan.demand import Arrivals, DemandForecast, PlannedDemand
from planning.replan.replan import replan
from planning.replan.result import Replan, ReplanState

_LIFETIMES = 3.0
"""Periods for which bounds hold, and a look-ahead of the demand, as in `cli/replan/loop.py`."""
_LOOK_EVERY_S = 10.0
_LOST_AFTER_S = 60.0


def _no_prices(unix_s: float) -> Mapping[SiteKey, float]:
    return {}


@dataclass(slots=True)
class _Seen:
    """The last that was heard of a site, and when (Unix time)."""

    at_s: float = -math.inf
    state: SiteState = field(default_factory=lambda: SiteState(0, 0))
    room: int | None = None


class SimulatedReplanner:
    """`prices`: a replica's at a time of day, where they are not the basis'.
    `plans`: all re-plans, in their order."""

    def __init__(
        self,
        basis: ReplanBasis,
        planned: PlannedDemand,
        settings: ReplanSettings | None = None,
        every_s: float = 300.0,
        window_s: float = 60.0,
        prices: Callable[[float], Mapping[SiteKey, float]] = _no_prices,
    ) -> None:
        self.plans: list[Replan] = []
        self._basis, self._settings = basis, settings or ReplanSettings()
        self._every_s, self._prices = every_s, prices
        self._models = dict(zip(basis.sites, (site.model for site in basis.problem.sites), strict=True))
        self._arrivals = Arrivals(window_s)
        self._forecast = DemandForecast(planned, _LIFETIMES * every_s)
        self._seen = {key: _Seen() for key in basis.sites}
        self._controls: dict[SiteKey, tuple[Control, ...]] = {}
        self._state = ReplanState()
        self._due_s = -math.inf

    def controls(self, key: SiteKey, signals: Signals) -> tuple[Control, ...]:
        """What bounds that site now. Raises KeyError for a site that is not in the basis."""
        now, seen = signals.unix_s, self._seen[key]
        if now - seen.at_s >= _LOOK_EVERY_S:
            flows = {(flow.lane, flow.traffic_class): flow.arrived for flow in signals.flows}
            self._arrivals.look(key.region, self._models[key], now, signals.epoch, flows)
            seen.at_s, seen.state = now, SiteState(signals.applied, signals.ready, seen.room)
            if now >= self._due_s:
                self._replan(now)
        return self._controls.get(key, ())

    def decided(self, key: SiteKey, decision: ScalingDecision) -> None:
        """An autoscaler decided: it may not get what it asks for."""
        self._seen[key].room = decision.requested if decision.limit is Limit.UNSCHEDULABLE else None

    def _replan(self, now: float) -> None:
        there = {key: one.state for key, one in self._seen.items() if now - one.at_s <= _LOST_AFTER_S}
        lost = frozenset(key.region for key in self._basis.sites) - {key.region for key in there}
        if lost and not self._state.floors:
            return  # not all cells have been heard yet
        rates = {}
        for region, model in dict.fromkeys((key.region, self._models[key]) for key in there):
            found = self._arrivals.rates(region, model)
            if found is None:
                return
            rates[region, model] = found
        observed = Observed(now, self._forecast.expected(now, rates), there, self._prices(now), lost)
        plan = replan(self._basis, self._settings, self._state, observed)
        self._state, self._due_s = plan.state, now + self._every_s
        self.plans.append(plan)
        for one in plan.bounds:
            kinds = ((ControlKind.FLOOR, one.floor), (ControlKind.CEILING, one.ceiling))
            until_s = now + _LIFETIMES * self._every_s
            self._controls[one.site] = tuple(Control(kind, count, until_s, "replan") for kind, count in kinds)


class ReplannedAutoscaler(Autoscaler):
    """The autoscaler of one site, which follows a re-planner."""

    def __init__(
        self, replanner: SimulatedReplanner, key: SiteKey, policy: ScalingPolicy, bounds: Bounds, start_up_s: float
    ) -> None:
        super().__init__(policy, bounds, start_up_s)
        self._replanner, self._key = replanner, key

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        """See `Autoscaler.decide`."""
        decision = super().decide(signals, (*controls, *self._replanner.controls(self._key, signals)))
        self._replanner.decided(self._key, decision)
        return decision
