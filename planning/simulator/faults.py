"""What goes wrong around a simulated cell's autoscaler: a replica that becomes unresponsive, and another hand that
writes the number of replicas.

An unresponsive replica is suspect to the scheduler, as a gateway tells it when a feed ends: what runs there runs on,
nothing new is placed. With `phantom`, its counts stay as they were though the requests have ended: that is how
leaked counters and hung streams look to whoever reads them. Called by the cell's scaling loop.
"""

import math
from dataclasses import dataclass

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
