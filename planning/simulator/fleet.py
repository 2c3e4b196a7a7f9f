"""The replicas of a simulated cell, of one group or several: how each comes, serves and goes.

A replica starts (`WARMING` for its start-up time), is `READY`, and leaves in one of two ways: it drains (what runs
ends, nothing new comes) or it fails (what runs is lost, and a successor starts). While it is cordoned nothing new
comes, and it stays.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import ItlHistogram
from deployments.scheduling import Lease, Scheduler
from deployments.scheduling.replica import Capacity
from planning.simulator.outcome import Life, SimulationOutcome
from planning.simulator.starts import SimulatedStarts


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    """What the replicas of a group have in common: the scheduler's `capacity`, the engine's `limits` and `cost`. One
    that starts takes `start_up_s`; `starts`: where it depends on nodes how long a start takes."""

    capacity: Capacity
    limits: EngineModelLimits
    cost: CostModel
    start_up_s: float
    starts: SimulatedStarts | None = None

    @property
    def group(self) -> str:
        """The group's name."""
        return self.capacity.group


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """One replica. Times are seconds from the start; infinite while they have not come."""

    number: int
    kind: ReplicaKind
    engine: EngineModel
    started_s: float
    ready_s: float
    ended_s: float = math.inf
    drained_s: float = math.inf
    due_s: float = math.inf
    """When it is to be ready."""
    leases: int = 0

    def life(self, now: float) -> Life:
        """Its life until now."""
        ready_s, ended_s = min(self.ready_s, now), min(self.ended_s, now)
        return Life(min(self.started_s, ended_s), ready_s, ended_s, self.drained_s, self.kind.group)

    @property
    def name(self) -> str:
        """As the scheduler knows it: names order by number."""
        return f"r{self.number:05}"

    @property
    def draining(self) -> bool:
        """It takes no new work."""
        return self.drained_s < math.inf

    @property
    def serves(self) -> bool:
        """Ready, or draining."""
        return self.ready_s < math.inf and self.ended_s == math.inf


class SimulatedCell(Protocol):
    """What a cell offers to those who act on it (its fleet, its scaling)."""

    scheduler: Scheduler
    fleet: "SimulatedFleet"

    @property
    def idle(self) -> bool:
        """Whether everything that ever arrives has come and ended."""
        ...

    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        """Calls `call` at `time_s`."""
        ...

    def step(self, now: float) -> None:
        """The scheduler decides."""
        ...

    def lost(self, lease: Lease, now: float) -> None:
        """A request was lost with its replica."""
        ...


class SimulatedFleet:
    """The replicas that there ever were, by number and by name. `kinds`: one for each group. Replicas at the beginning
    take no time to start.

    `starts_reported`: the scheduler knows when the next replica will be ready, as it does live where something scales
    (`scheduling/outlook.py`).
    """

    def __init__(self, cell: SimulatedCell, kinds: Sequence[ReplicaKind], starts_reported: bool = False) -> None:
        self.kinds = {kind.group: kind for kind in kinds}
        self.replicas: list[SimulatedReplica] = []
        self.by_name: dict[str, SimulatedReplica] = {}
        self._cell = cell
        self._scheduler = cell.scheduler
        self._starts_reported = starts_reported

    def sum_up(self, out: SimulationOutcome, now: float) -> None:
        """Writes into the outcome what the engines and lives of all replicas come to."""
        itl = ItlHistogram()
        for replica in self.replicas:
            itl.merge(replica.engine.itl)
        out.itl_s = {share: itl.quantile(share) for share in (0.5, 0.9, 0.99)} if itl.counts else {}
        out.ended_s = now
        out.preemptions = sum(replica.engine.preemptions for replica in self.replicas)
        out.lifetimes = tuple(replica.life(now) for replica in self.replicas)

    def staying(self, group: str) -> list[SimulatedReplica]:
        """Those of a group that start or serve and do not drain, the oldest first."""
        return [
            replica
            for replica in self.replicas
            if replica.ended_s == math.inf and replica.drained_s == math.inf and replica.kind.group == group
        ]

    def start(self, kind: ReplicaKind, now: float, start_up_s: float, wait_s: float = 0.0) -> None:
        """A replica starts, and is ready after so many seconds; where starts depend on nodes, only a 0 counts. It waits
        `wait_s` for its node first, and is not paid for meanwhile."""
        engine = EngineModel(kind.limits, kind.cost)
        replica = SimulatedReplica(len(self.replicas), kind, engine, now + wait_s, math.inf)
        self.replicas.append(replica)
        self.by_name[replica.name] = replica
        if kind.starts is not None:
            if start_up_s > 0:
                start_up_s = kind.starts.begin(replica.number, now)
            else:
                kind.starts.there(replica.number)
        start_up_s += wait_s
        if start_up_s <= 0:
            self._ready(replica, now)
        else:
            replica.due_s = now + start_up_s
            self._cell.at(replica.due_s, lambda then: self._ready(replica, then))
            self._tell_starts(kind, now)

    def drain(self, replica: SimulatedReplica, now: float) -> None:
        """It takes no new work, and goes when what it has is done. One that has not become ready goes at once."""
        replica.drained_s = min(replica.drained_s, now)
        if replica.ready_s < math.inf:
            self._scheduler.replica_draining(replica.name, now)
        self.gone_if_done(replica, now)

    def gone_if_done(self, replica: SimulatedReplica, now: float) -> None:
        """Ends one that drains and has nothing left."""
        if replica.draining and not replica.leases:
            replica.ended_s = now
            if replica.kind.starts is not None:
                replica.kind.starts.ended(replica.number)
            if replica.ready_s < math.inf:
                self._scheduler.replica_lost(replica.name, now)
            else:
                self._tell_starts(replica.kind, now)

    def _tell_starts(self, kind: ReplicaKind, now: float) -> None:
        """The scheduler learns when the group's next replica will be ready."""
        if self._starts_reported:
            starting = (one for one in self.replicas if one.ready_s == one.ended_s == math.inf and one.kind is kind)
            due_s = min((one.due_s for one in starting), default=math.inf)
            self._scheduler.expect_replica(due_s if due_s < math.inf else None, now, kind.group)

    def _ready(self, replica: SimulatedReplica, now: float) -> None:
        if replica.ended_s == math.inf:
            replica.ready_s = now
            if replica.kind.starts is not None:
                replica.kind.starts.ready(replica.number)
            self._tell_starts(replica.kind, now)
            self._scheduler.replica_up(replica.name, replica.kind.capacity, now)
            self._cell.step(now)

    def lose_zone(self, share: float, wait_s: float, now: float) -> None:
        """That share of the replicas (rounded up, the oldest first) fails. Their successors wait so long for nodes."""
        there = [replica for replica in self.replicas if replica.ended_s == math.inf]
        for replica in there[: math.ceil(share * len(there))]:
            self.fail(replica, now, wait_s)

    def fail(self, replica: SimulatedReplica, now: float, wait_s: float = 0.0) -> None:
        """Its requests are lost, and their clients get an error; Serve starts a successor."""
        replica.ended_s = now
        if replica.kind.starts is not None:
            replica.kind.starts.ended(replica.number)
        replica.engine.next_s = math.inf
        if replica.ready_s < math.inf:
            for lease in self._scheduler.replica_lost(replica.name, now):
                self._cell.lost(lease, now)
        if not replica.draining and wait_s < math.inf:
            self.start(replica.kind, now, replica.kind.start_up_s, wait_s)
        self._cell.step(now)
