"""What goes wrong: around a simulated cell's autoscaler (`ScalingFaults`), and with whole cells and the links between
them (`Fault`).

Around an autoscaler, a replica becomes unresponsive, or another hand writes the number of replicas. An unresponsive
replica is suspect to the scheduler, as a gateway tells it when a feed ends: what runs there runs on, nothing new is
placed. With `phantom`, its counts stay as they were though the requests have ended: that is how leaked counters and
hung streams look to whoever reads them. Called by the cell's scaling loop.

A `Fault` is data alone: the simulator of several cells (`cells.py`) and live drills of the tests run the same timeline.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autoscaling.signals.signals import Signals
from deployments.scheduling import ReplicaStats
from deployments.scheduling.replica import ReplicaStatus
from planning.simulator.fleet import SimulatedCell


@dataclass(frozen=True, slots=True)
class FeedOutage:
    """The replica of that number (by the order of starting, from 0) is unresponsive from `from_s` until `to_s`."""

    replica: int
    from_s: float
    to_s: float = math.inf
    phantom: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.to_s:
            raise ValueError(f"from_s={self.from_s}, to_s={self.to_s}: allowed: 0 <= from_s < to_s")


@dataclass(frozen=True, slots=True)
class Write:
    """At `at_s` somebody else sets the number of replicas."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class ScalingFaults:
    """All that goes wrong in one run."""

    feed_outages: tuple[FeedOutage, ...] = ()
    writes: tuple[Write, ...] = ()


class FaultyFacts:
    """The feed outages of one run: tells the scheduler, and keeps what phantom counts show."""

    def __init__(self, feed_outages: tuple[FeedOutage, ...], cell: SimulatedCell) -> None:
        self._cell = cell
        self._kept: dict[str, ReplicaStats] = {}
        self._phantoms: set[str] = set()
        for feed_outage in feed_outages:
            cell.at(feed_outage.from_s, lambda now, feed_outage=feed_outage: self._begin(feed_outage, now))  # type: ignore[misc]
            if feed_outage.to_s < math.inf:
                cell.at(feed_outage.to_s, lambda now, feed_outage=feed_outage: self._end(feed_outage, now))  # type: ignore[misc]

    def shown(self, signals: Signals) -> Signals:
        """The signals with the phantom counts."""
        if not self._phantoms:
            return signals
        return signals.showing(
            replicas=tuple(self._as_shown(one) if one.replica_id in self._phantoms else one for one in signals.replicas)
        )

    def _as_shown(self, replica: ReplicaStats) -> ReplicaStats:
        if replica.status != ReplicaStatus.UNRESPONSIVE:
            return replica
        return self._kept.setdefault(replica.replica_id, replica)

    def _begin(self, feed_outage: FeedOutage, now: float) -> None:
        if (
            feed_outage.replica < len(self._cell.fleet.replicas)
            and self._cell.fleet.replicas[feed_outage.replica].serves
        ):
            name = self._cell.fleet.replicas[feed_outage.replica].name
            self._cell.scheduler.replica_unresponsive(name, now)
            if feed_outage.phantom:
                self._phantoms.add(name)

    def _end(self, feed_outage: FeedOutage, now: float) -> None:
        if feed_outage.replica >= len(self._cell.fleet.replicas):
            return
        replica = self._cell.fleet.replicas[feed_outage.replica]
        self._phantoms.discard(replica.name)
        self._cell.fleet.heard(replica, now)


class FaultKind(StrEnum):
    """What befalls cells."""

    REGION_LOSS = "region-loss"
    """A cell is gone with its gateways and replicas: its clients and peers see resets. It starts again at the end, and
    its replicas take their start-up time."""
    ZONE_LOSS = "zone-loss"
    """A share of a cell's replicas is gone. Their successors start at once in other zones, or wait for nodes."""
    PARTITION = "partition"
    """Nothing crosses the link between two cells, and both live on."""
    SLOW_LINK = "slow-link"
    """What crosses the link between two cells takes longer."""


_OF_LINKS = (FaultKind.PARTITION, FaultKind.SLOW_LINK)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, from `at_s` on for `for_s` seconds (infinite: for good), in seconds from the start.

    `cell`: of a loss, by its name in the spec; `link`: the two cells of a partition or a slow link. `share`: of the
    cell's replicas that a zone loss takes (above 0, at most 1; rounded up); with `room_elsewhere` their successors
    start at once, else at the end. `more_rtt_s`: by how much a slow link's round trip is longer.

    Raises ValueError for a value that cannot be.
    """

    kind: FaultKind
    at_s: float
    for_s: float = math.inf
    cell: str = ""
    link: tuple[str, str] | None = None
    share: float = 0.5
    more_rtt_s: float = 0.2
    room_elsewhere: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < math.inf:
            raise ValueError(f"{self.kind}: at_s={self.at_s}: allowed: a time from the start, in seconds")
        if not self.for_s > 0:
            raise ValueError(f"{self.kind}: for_s={self.for_s}: allowed: above 0")
        if self.kind in _OF_LINKS:
            if self.link is None or self.link[0] == self.link[1]:
                raise ValueError(f"{self.kind}: link={self.link}: allowed: the names of two cells")
        elif not self.cell:
            raise ValueError(f"{self.kind}: cell={self.cell!r}: allowed: the name of a cell")
        if not 0 < self.share <= 1:
            raise ValueError(f"{self.kind}: share={self.share}: allowed: above 0, at most 1")
        if not 0 <= self.more_rtt_s < math.inf:
            raise ValueError(f"{self.kind}: more_rtt_s={self.more_rtt_s}: allowed: 0 or more seconds")

    @property
    def until_s(self) -> float:
        """When it ends."""
        return self.at_s + self.for_s

    @property
    def cells(self) -> frozenset[str]:
        """The cells that it befalls: one, or the two ends of the link."""
        return frozenset((self.cell,) if self.link is None else self.link)


def check_timeline(faults: Sequence[Fault], cells: Collection[str]) -> None:
    """Raises ValueError for a fault of a cell that is not one of `cells`, and for two faults of one kind that overlap
    at the same place."""
    ended_s: dict[tuple[FaultKind, frozenset[str]], float] = {}
    for fault in sorted(faults, key=lambda one: one.at_s):
        if unknown := sorted(fault.cells - set(cells)):
            raise ValueError(f"{fault.kind}: no cell {', '.join(unknown)}; allowed: {', '.join(cells)}")
        place = (fault.kind, fault.cells)
        if fault.at_s < ended_s.get(place, 0.0):
            where = " and ".join(sorted(fault.cells))
            raise ValueError(
                f"{fault.kind}: two of them overlap at {where}, at {fault.at_s:g} s; allowed: one at a time"
            )
        ended_s[place] = fault.until_s
