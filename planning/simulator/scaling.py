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
from planning.simulator.faults import FaultyFacts, ScalingFaults, Write
from planning.simulator.fleet import SimulatedCell


def _no_peers(now: float) -> float:
    return 0.0


NO_FAULTS = ScalingFaults()


@dataclass(frozen=True)
class SimulatedScaling:
    """`autoscaler` decides from second 0; times of day begin at `start_unix_s`. The cell runs at least until `until_s`.

    `attainment` by class. `start_up_s` of each replica that is started, in the order of starting, the last one for all
    further. `faults`: what goes wrong around the autoscaler. `own_overflow`, of a group beside others: what finds out
    how much of its demand it cannot carry.
    """

    autoscaler: Autoscaler
    until_s: float
    attainment: Mapping[str, float] = field(default_factory=dict)
    start_unix_s: float = 0.0
    start_up_s: tuple[float, ...] = (60.0,)
    forecaster: Forecaster | None = None
    faults: ScalingFaults = NO_FAULTS
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
        self.peers_spare: Callable[[float], float] = _no_peers
        """The room that other cells would give this one at a time."""
        self.reasons: Counter[str] = Counter()
        self._scaling = scaling
        self._cell = cell
        self._kind = cell.fleet.kinds[group]
        self._demand = demand
        self._overflow = {} if overflow is None else overflow
        self._own_overflow = scaling.own_overflow or GroupOverflow(scaling.start_up_s[0])
        self._started = 0
        self._faulty = FaultyFacts(scaling.faults.feed_outages, cell)
        for write in scaling.faults.writes:
            cell.at(write.at_s, lambda now, write=write: self._written(write, now))  # type: ignore[misc]
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
        self._apply(decision.requested - decision.applied, now)
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
        return self._faulty.shown(signals)

    def _written(self, write: Write, now: float) -> None:
        self._apply(write.replicas - len(self._cell.fleet.staying(self._kind.group)), now)

    def _apply(self, more: int, now: float) -> None:
        fleet, times_s = self._cell.fleet, self._scaling.start_up_s
        for _ in range(more):
            fleet.start(self._kind, now, times_s[min(self._started, len(times_s) - 1)])
            self._started += 1
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
