"""The facts of one moment from which a scaling policy decides: the scheduler's snapshot, and what it lacks. Pure data:
the controller and the simulator make them in the same way, policies read them, logs store them.

Counts are cumulative since the scheduler's start, so a policy takes differences over any span, and a lost reading loses
nothing. They start again when the scheduler does: check `epoch` before taking a difference. Work is in prefill tokens:
uncached prompt plus weighted expected output, as the scheduler counts it.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployments.scheduling import LaneStats, ReplicaStats, Snapshot
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.snapshot import FlowStats
from deployments.starts.phases import Phase, PhaseSeconds

_READY = (ReplicaStatus.READY, ReplicaStatus.EJECTED)
_ATTAINMENT = 0.99
"""Of a class that the spec does not name."""
_EMPTY = Snapshot((), (), 0, 0, 0, 0, {}, {}, None, None, None, 0.0, (), 0, 0.0, 0, 0)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected rate of arriving work (tokens a second) from `at_s` on, in even steps of `step_s`, and its standard
    error. It is made from history, outside the policy; logs store it."""

    at_s: float
    step_s: float
    work_per_s: tuple[float, ...]
    error: tuple[float, ...]

    def most_between(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """The largest expected rate, with its standard error, in that span; None where the forecast does not reach."""
        first = max(0, int((start_s - self.at_s) // self.step_s))
        last = int((end_s - self.at_s) // self.step_s)
        if last < 0 or first >= len(self.work_per_s):
            return None
        found = range(first, min(last, len(self.work_per_s) - 1) + 1)
        best = max(found, key=lambda index: self.work_per_s[index])
        return self.work_per_s[best], self.error[best]


@dataclass(frozen=True, slots=True)
class NextStart:
    """The phases of the next replica's start, in their order, and the seconds of each; those that it skips are left
    out."""

    phases: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.phases)


@dataclass(frozen=True, slots=True)
class Signals:
    """One moment of one model in one cell.

    `at_s` is monotonic, `unix_s` is the time of day; `age_s`: the age of the scheduler's `snapshot` when it was read.
    `applied`: the number of replicas last set on the platform; `starting` of these are not ready yet, `begun` of those
    have a node and report from there how their start goes (a first download of a large model takes long).
    `schedulable`: how many could run at most on the existing nodes (None: unknown). `attainment`: the share of its
    requests that each class is to answer in time. `forecast` is None where nobody made one; `forecast_failed`: a
    forecast was wanted, and failed. `next_start`: what the next replica's start should take; None where nothing is
    known of its phases. `peers_spare`: so many replicas' worth of room other cells would give this one now
    (`deployments/peering`; 0 without peers).
    """

    at_s: float
    unix_s: float
    age_s: float
    epoch: int
    applied: int
    starting: int
    schedulable: int | None
    snapshot: Snapshot
    attainment: Mapping[str, float]
    forecast: Forecast | None = None
    forecast_failed: bool = False
    next_start: NextStart | None = None
    begun: int = 0
    peers_spare: float = 0.0

    def showing(self, **changed: Any) -> "Signals":
        """The same with other fields of the snapshot."""
        return replace(self, snapshot=replace(self.snapshot, **changed))

    def allowed(self, traffic_class: str) -> float:
        """The share of a class's requests that may miss its TTFT."""
        return 1.0 - self.attainment.get(traffic_class, _ATTAINMENT)

    @property
    def replicas(self) -> tuple[ReplicaStats, ...]:
        return self.snapshot.replicas

    @property
    def lanes(self) -> tuple[LaneStats, ...]:
        return self.snapshot.lanes

    @property
    def flows(self) -> tuple[FlowStats, ...]:
        return self.snapshot.flows

    def count(self, *statuses: ReplicaStatus) -> int:
        return sum(replica.status in statuses for replica in self.replicas)

    @property
    def ready_replicas(self) -> list[ReplicaStats]:
        """Those that report, including one that the scheduler has ejected for being slow."""
        return [replica for replica in self.replicas if replica.status in _READY]

    @property
    def ready(self) -> int:
        return self.count(*_READY)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self.lanes)

    @property
    def running(self) -> int:
        return sum(replica.sequences for replica in self.replicas)

    @property
    def backlog(self) -> float:
        return sum(lane.work_tokens for lane in self.lanes)

    @property
    def arrived(self) -> int:
        return sum(flow.arrived for flow in self.flows)

    @property
    def arrived_work(self) -> float:
        return sum(flow.work for flow in self.flows)

    @property
    def judged(self) -> dict[str, tuple[int, int]]:
        """SLOs met and missed, by class."""
        counts: dict[str, tuple[int, int]] = {}
        for flow in self.flows:
            met, missed = counts.get(flow.traffic_class, (0, 0))
            counts[flow.traffic_class] = (met + flow.met, missed + flow.missed)
        return counts


def signals_of(
    snapshot: Snapshot,
    at_s: float,
    unix_s: float,
    applied: int,
    attainment: Mapping[str, float],
    *,
    epoch: int = 1,
    age_s: float = 0.0,
    schedulable: int | None = None,
    forecast: Forecast | None = None,
    forecast_failed: bool = False,
    next_start: NextStart | None = None,
    begun: int = 0,
    peers_spare: float = 0.0,
) -> Signals:
    """The facts of that moment. See `Signals`."""
    there = sum(replica.status != ReplicaStatus.DRAINING for replica in snapshot.replicas)
    starting = max(0, applied - there)
    return Signals(
        at_s,
        unix_s,
        age_s,
        epoch,
        applied,
        starting,
        schedulable,
        snapshot,
        attainment,
        forecast,
        forecast_failed,
        next_start,
        min(begun, starting),
        peers_spare,
    )


def unseen(at_s: float, unix_s: float, applied: int) -> Signals:
    """The owner's state could not be read: only the number of replicas is known."""
    return Signals(at_s, unix_s, math.inf, 0, applied, 0, None, _EMPTY, {})


@dataclass(frozen=True, slots=True)
class PastStart:
    """A start that went well: on which node, and the seconds of its phases."""

    node_id: str
    seconds: PhaseSeconds


def next_start(
    past: Sequence[PastStart], assumed: PhaseSeconds | None, nodes_with_room: Collection[str] | None
) -> NextStart | None:
    """What to expect after `past` (oldest first) of the next start. `nodes_with_room`: ids; None: nobody knows, and
        then the next one goes where one was before. Returns None where nothing is known of any start.

        node                  where a node has room: the shortest seen. Where none has: the longest seen
        fetch, compile        where a node with room had a start of the model: nothing to fetch, and what later starts
                              on a node took to compile. Else what first starts on a node took
        all others            the third quartile of the last starts

    What was never seen is what the spec says of it (`models.start`), else nothing. The sum is the expected time to
    start.
    """
    if not past and assumed is None:
        return None
    given = assumed or {}
    seen: set[str] = set()
    first: list[PastStart] = []
    later: list[PastStart] = []
    for start in past:
        (later if start.node_id in seen else first).append(start)
        seen.add(start.node_id)
    room = nodes_with_room is None or len(nodes_with_room) > 0
    known = room and bool(seen if nodes_with_room is None else seen & set(nodes_with_room))
    alike = later if known else first

    def expected(phase: Phase) -> float:
        if phase is Phase.NODE:
            waits = [start.seconds.get(phase, 0.0) for start in past]
            return min(waits, default=0.0) if room else max([*waits, given.get(phase, 0.0)])
        if phase is Phase.FETCH and known:
            return 0.0
        if phase in (Phase.FETCH, Phase.COMPILE):
            if not alike:
                return 0.0 if known else given.get(phase, 0.0)
            return third_quartile(start.seconds.get(phase, 0.0) for start in alike)
        if not past:
            return given.get(phase, 0.0)
        return third_quartile(start.seconds.get(phase, 0.0) for start in past)

    phases = ((phase.value, round(expected(phase), 3)) for phase in Phase)
    return NextStart(tuple((name, seconds) for name, seconds in phases if seconds > 0))


def third_quartile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[(3 * len(ordered)) // 4]
