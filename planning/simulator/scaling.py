"""The scaling of a simulated cell: asks an autoscaler in even steps, as Ray Serve's controller does, and starts or
drains replicas by its answer.

Like Serve, a step down stops replicas that have not become ready first, then the newest; a replica that drains does not
come back.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoscaling.forecast.forecaster import Forecaster
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.scaler.groups import GroupDemand, GroupOverflow
from autoscaling.signals.signals import Signals, signals_of
from planning.simulator.fleet import SimulatedCell


@dataclass(frozen=True)
class SimulatedScaling:
    """`autoscaler` decides from second 0; times of day begin at `start_unix_s`. The cell runs at least until `until_s`.

    `attainment` by class. `own_overflow`, of a group beside others: what finds out how much of its demand it cannot
    carry.
    """

    autoscaler: Autoscaler
    until_s: float
    attainment: Mapping[str, float] = field(default_factory=dict)
    start_unix_s: float = 0.0
    forecaster: Forecaster | None = None
    own_overflow: GroupOverflow | None = None


class ScalingLoop:
    """Of one group of a cell. `decisions`: what was decided; `reasons`: how often for which reason. `demand`, where
    there are several groups: what this one is to carry, by the `overflow` of all of them."""

    def __init__(
        self,
        scaling: SimulatedScaling,
        cell: SimulatedCell,
        group: str,
        demand: GroupDemand | None = None,
        overflow: dict[str, float] | None = None,
    ) -> None:
        self.decisions: list[ScalingDecision] = []
        self.peers_spare: Callable[[float], float] = lambda now: 0.0
        """The room that other cells would give this one at a time."""
        self.reasons: Counter[str] = Counter()
        self._scaling = scaling
        self._cell = cell
        self._kind = cell.fleet.kinds[group]
        self._demand = demand
        self._overflow = {} if overflow is None else overflow
        self._own_overflow = scaling.own_overflow or GroupOverflow(self._kind.start_up_s)
        cell.at(0.0, self._tick)

    def _tick(self, now: float) -> None:
        scaling, cell = self._scaling, self._cell
        signals = self._signals(now)
        decision = scaling.autoscaler.decide(signals)
        if self._demand is not None:
            self._overflow[self._kind.group] = self._own_overflow.decided(signals, decision)
        self.reasons[decision.reason] += 1
        if decision.changes or not self.decisions or _why(decision) != _why(self.decisions[-1]):
            self.decisions.append(decision)
        self.apply(decision.requested - decision.applied, now)
        if now < scaling.until_s or not cell.idle:
            cell.at(now + scaling.autoscaler.policy.period_s, self._tick)

    def _signals(self, now: float) -> Signals:
        scaling, cell = self._scaling, self._cell
        unix_s = scaling.start_unix_s + now
        forecaster = scaling.forecaster
        forecast = None if forecaster is None else forecaster.forecast(unix_s)
        failed = forecaster is not None and forecaster.failed
        snapshot, epoch = cell.scheduler.snapshot(now, etas=False), 1
        if self._demand is not None:
            snapshot, epoch = self._demand.of(snapshot, epoch, self._overflow)
        starts = self._kind.starts
        signals = signals_of(
            snapshot,
            now,
            unix_s,
            len(cell.fleet.staying(self._kind.group)),
            scaling.attainment,
            epoch=epoch,
            forecast=forecast,
            forecast_failed=failed,
            next_start=None if starts is None else starts.next_start(),
            peers_spare=self.peers_spare(now),
        )
        if forecaster is not None:
            forecaster.look(signals)
        return signals

    def apply(self, more: int, now: float) -> None:
        """So many replicas start, or drain where that is negative."""
        fleet = self._cell.fleet
        for _ in range(more):
            fleet.start(self._kind, now, self._kind.start_up_s)
        if more < 0:
            staying = fleet.staying(self._kind.group)
            leaving = [
                *(r for r in reversed(staying) if r.ready_s > now),
                *(r for r in reversed(staying) if r.ready_s <= now),
            ]
            for replica in leaving[:-more]:
                fleet.drain(replica, now)
            self._cell.step(now)


def scaling_loops(scalings: Mapping[str, SimulatedScaling | None], cell: SimulatedCell) -> dict[str, ScalingLoop]:
    """The loops of the groups that scale, by name, in the order given. A group that does not scale carries all that it
    is offered, as far as the others know."""
    overflow: dict[str, float] = {}
    return {
        group: ScalingLoop(scaling, cell, group, GroupDemand(group) if len(scalings) > 1 else None, overflow)
        for group, scaling in scalings.items()
        if scaling is not None
    }


def _why(decision: ScalingDecision) -> tuple[str, str | None]:
    return decision.reason, decision.concern
