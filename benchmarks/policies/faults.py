"""What goes wrong around an autoscaler in a scenario: a replica becomes unresponsive or fails, another hand writes the
number of replicas.

An unresponsive replica is suspect to the scheduler, as a gateway tells it when a feed ends: what runs there runs on,
nothing new is placed. With `phantom`, its counts stay as they were though the requests have ended: that is how leaked
counters and hung streams look to whoever reads them.
"""

import math
from dataclasses import dataclass
from functools import partial

from autoscaling.policies.policy import ScalingPolicy
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds, ScalingDecision
from autoscaling.signals.signals import Signals
from cluster.spec import DEFAULT_GROUP
from deployments.cell.control import Control
from deployments.scheduling import ReplicaStats
from deployments.scheduling.replica import ReplicaStatus
from planning.simulator.cell import CellSimulator


@dataclass(frozen=True, slots=True)
class FeedOutage:
    """The replica of that number (by the order of starting, from 0) is unresponsive from `from_s` until `to_s`."""

    replica: int
    from_s: float
    to_s: float = math.inf
    phantom: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """At `at_s` somebody else sets the number of replicas."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """At `at_s` the replica of that number fails."""

    at_s: float
    replica: int


@dataclass(frozen=True, slots=True)
class Faults:
    """All that goes wrong in one run."""

    outages: tuple[FeedOutage, ...] = ()
    writes: tuple[Write, ...] = ()
    failures: tuple[ReplicaFailure, ...] = ()


NO_FAULTS = Faults()


class MisledAutoscaler(Autoscaler):
    """An autoscaler that is shown phantom counts of some replicas, by name."""

    def __init__(self, policy: ScalingPolicy, bounds: Bounds) -> None:
        super().__init__(policy, bounds)
        self.phantoms: set[str] = set()
        self._kept: dict[str, ReplicaStats] = {}

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        if self.phantoms:
            signals = signals.showing(replicas=tuple(map(self._shown, signals.replicas)))
        return super().decide(signals, controls)

    def _shown(self, replica: ReplicaStats) -> ReplicaStats:
        if replica.replica_id not in self.phantoms or replica.status != ReplicaStatus.UNRESPONSIVE:
            return replica
        return self._kept.setdefault(replica.replica_id, replica)


def inflict(faults: Faults, cell: CellSimulator, autoscaler: MisledAutoscaler) -> None:
    """Makes the faults happen to a cell that has not run yet; `autoscaler` is its own."""
    for outage in faults.outages:
        cell.at(outage.from_s, partial(_begin, outage, cell, autoscaler))
        if outage.to_s < math.inf:
            cell.at(outage.to_s, partial(_end, outage, cell, autoscaler))
    for write in faults.writes:
        cell.at(write.at_s, partial(_set, write, cell))
    for failure in faults.failures:
        cell.at(failure.at_s, partial(_fail, failure, cell))


def _begin(outage: FeedOutage, cell: CellSimulator, autoscaler: MisledAutoscaler, now: float) -> None:
    if outage.replica < len(cell.replicas) and cell.replicas[outage.replica].serves:
        name = cell.replicas[outage.replica].name
        cell.scheduler.replica_unresponsive(name, now)
        if outage.phantom:
            autoscaler.phantoms.add(name)


def _end(outage: FeedOutage, cell: CellSimulator, autoscaler: MisledAutoscaler, now: float) -> None:
    """The replica reports again, and takes work unless it drains."""
    if outage.replica < len(cell.replicas):
        replica = cell.replicas[outage.replica]
        autoscaler.phantoms.discard(replica.name)
        if replica.serves and not replica.draining:
            cell.scheduler.replica_up(replica.name, replica.kind.capacity, now)
            cell.step(now)


def _set(write: Write, cell: CellSimulator, now: float) -> None:
    assert cell.scaling is not None
    cell.scaling.apply(write.replicas - len(cell.fleet.staying(DEFAULT_GROUP)), now)


def _fail(failure: ReplicaFailure, cell: CellSimulator, now: float) -> None:
    replica = cell.replicas[failure.replica]
    if replica.ended_s == math.inf:
        cell.fleet.fail(replica, now)
