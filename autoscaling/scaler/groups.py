"""What of a model's demand each of its groups is to carry, so that no two of them grow for the same requests. Pure: the
controller and the simulator use it alike, before a policy is asked.

A row of the snapshot's demands holds the requests of one lane that the same groups can serve, in an order.

    offered(row, g)   = product of overflow(h) over the groups h before g in the row; 0 where g does not serve it
    overflow(h)       = max(0, 1 - carried / desired)       desired: by the policy of h, for what h is offered
    carried           the requested replicas, where a limit keeps them below the policy's number (a maximum, the cost
                      ceiling, an operator's pin, missing room); the ready ones, where a start takes
                      LATE times as long as expected; else `desired`: what starts in time needs no help

The policy `fixed` knows no demand: for a group that it decides on, `desired` is what the backlog policy would want.

So the first group of a lane is offered all of it, and the next one only what the first cannot carry. While a group
starts replicas, its requests may run on the next group. There they do not count as load: of what runs in g, of its
finished work and of its booked sequences and KV blocks, only the part counts that g is offered. Nor do the SLOs that
its own requests miss because of them: of these the same part counts, the lowest of about the last minute.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoscaling.policies.backlog.replicas import StartUps
from autoscaling.policies.policy import ScalingPolicy
from autoscaling.scaler.decision import Limit, ScalingDecision
from autoscaling.signals.signals import Signals
from deployments.scheduling import LaneStats, ReplicaStats, Snapshot
from deployments.scheduling.snapshot import DemandStats, FlowStats

LATE = 2.0
"""A start that takes so many times as long as expected may never end: a node is gone, or a download hangs."""
_RECOVERY = 1 / 60
"""With each reading, so much of the way back to 1 of the part by which missed SLOs count."""
_BIRTHS = 1 << 20
"""Owners that one controller may see: epochs are numbered beyond each other's range."""
_LIMITED = (
    Limit.MAX_REPLICAS,
    Limit.SCHEDULED_MAX,
    Limit.COST_CEILING,
    Limit.UNSCHEDULABLE,
    Limit.PINNED,
)

Overflow = Mapping[str, float]
"""By group; those that are not named have none."""


def offered(groups: tuple[str, ...], group: str, overflow: Overflow) -> float:
    """The share of a row's requests that `group` is to carry, where `groups` can serve them in that order."""
    if group not in groups:
        return 0.0
    return math.prod(overflow.get(name, 0.0) for name in groups[: groups.index(group)])


_ARRIVED = ("arrived", "work", "prompt_tokens", "met", "missed")
"""What is counted of a class in a lane."""
_SERVED = ("finished", "finished_work", "output_tokens", "counted")
"""...and of a group."""


class _Sums:
    """The group's own part of such counts, each a field of the snapshot's."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._sums = dict.fromkeys(names, 0.0)

    def add(self, now: object, before: object | None, **shares: float) -> None:
        """Of everything that was counted between two snapshots the share `all`, of a named count that one."""
        for name in self._sums:
            new = getattr(now, name) - (0 if before is None else getattr(before, name))
            self._sums[name] += shares.get(name, shares["all"]) * new

    def fields(self) -> dict[str, Any]:
        """The sums, all but work in whole numbers."""
        return {name: one if name.endswith("work") else round(one) for name, one in self._sums.items()}


class GroupDemand:
    """The snapshot as one group is to see it. Its counts begin at 0 with the first snapshot, and with each new owner,
    under an epoch of their own. `born`: a number that is larger after each restart of whoever asks (seconds of Unix
    time), so that a restart is not mistaken for a traffic drop."""

    def __init__(self, group: str, born: int = 0) -> None:
        self.group = group
        self._born = born
        self._epoch: int | None = None
        self._before = Snapshot((), (), 0, 0, 0, 0, {}, {}, None, None, None, 0.0, (), 0, 0.0, 0, 0)
        self._shares: dict[str, float] = {}
        self._flows: dict[tuple[str, str], _Sums] = {}
        self._served = _Sums(_SERVED)
        self._own_lately = 1.0

    def of(self, snapshot: Snapshot, epoch: int, overflow: Overflow) -> tuple[Snapshot, int]:
        """The group's part of the snapshot, and the epoch of its counts."""
        if epoch != self._epoch:
            first = self._epoch is None
            self._epoch, self._flows, self._served = epoch, {}, _Sums(_SERVED)
            self._before = snapshot if first else replace(self._before, flows=(), demands=(), groups=())
        own = self._own_share(snapshot, overflow)
        self._own_lately = min(own, self._own_lately + _RECOVERY * (1.0 - self._own_lately))
        self._count(snapshot, own, overflow)
        self._before = snapshot
        mine = replace(
            snapshot,
            lanes=tuple(self._lane(lane, snapshot.demands, overflow) for lane in snapshot.lanes),
            replicas=tuple(_scaled(one, own) for one in snapshot.replicas if one.group == self.group),
            flows=tuple(self._flow(flow) for flow in snapshot.flows),
            demands=(),
            groups=(),
            **self._served.fields(),
        )
        return mine, epoch + _BIRTHS * self._born

    def _own_share(self, snapshot: Snapshot, overflow: Overflow) -> float:
        """Of what runs in the group, the part that it is offered; 1 where nothing runs."""
        own = whole = 0
        for row in snapshot.demands:
            running = sum(sequences for group, sequences in row.running if group == self.group)
            whole += running
            own += running if offered(row.groups, self.group, overflow) > 0 else 0
        return own / whole if whole else 1.0

    def _count(self, snapshot: Snapshot, own: float, overflow: Overflow) -> None:
        before = {(flow.lane, flow.traffic_class): flow for flow in self._before.flows}
        known = {(row.lane, row.groups): row.work for row in self._before.demands}
        for lane in {row.lane for row in snapshot.demands}:
            rows = [row for row in snapshot.demands if row.lane == lane]
            new = {row: row.work - known.get((lane, row.groups), 0.0) for row in rows}
            if (whole := sum(new.values())) > 0:
                share = sum(work * offered(row.groups, self.group, overflow) for row, work in new.items()) / whole
                self._shares[lane] = share
        for flow in snapshot.flows:
            key = (flow.lane, flow.traffic_class)
            share = self._shares.get(flow.lane, 0.0)
            sums = self._flows.setdefault(key, _Sums(_ARRIVED))
            sums.add(flow, before.get(key), all=share, missed=share * self._own_lately)
        mine = next((one for one in snapshot.groups if one.group == self.group), None)
        if mine is not None:
            earlier = next((one for one in self._before.groups if one.group == self.group), None)
            self._served.add(mine, earlier, all=own)

    def _lane(self, lane: LaneStats, demands: tuple[DemandStats, ...], overflow: Overflow) -> LaneStats:
        rows = [(row, offered(row.groups, self.group, overflow)) for row in demands if row.lane == lane.name]
        waiting = math.ceil(sum(share * row.waiting for row, share in rows))
        work = sum(share * row.work_tokens for row, share in rows)
        return replace(
            lane, waiting=waiting, work_tokens=work, work_s=None, oldest_wait_s=lane.oldest_wait_s if waiting else 0.0
        )

    def _flow(self, flow: FlowStats) -> FlowStats:
        return replace(flow, **self._flows[flow.lane, flow.traffic_class].fields())


def _scaled(replica: ReplicaStats, own: float) -> ReplicaStats:
    if own == 1.0:
        return replica
    return replace(replica, sequences=round(own * replica.sequences), kv_tokens=round(own * replica.kv_tokens))


class GroupOverflow:
    """The share of what a group is offered that it cannot carry. `start_up_s`: how long a start takes, before one was
    seen. `estimator`: what says how many replicas are needed, where the group's own policy does not know."""

    def __init__(self, start_up_s: float, estimator: ScalingPolicy | None = None) -> None:
        self.share = 0.0
        self._estimator = estimator
        self._starts = StartUps(start_up_s)
        self._since_s: float | None = None
        self._ready = 0
        self._due_s = math.inf

    def decided(self, signals: Signals, decision: ScalingDecision) -> float:
        """By that decision and the facts that it was taken by; where the policy was not asked, as before."""
        late = self._is_late(signals)
        desired = carried = decision.desired
        if desired is None or carried is None:
            return self.share
        if self._estimator is not None:
            desired = self._estimator.decide(signals).replicas
        if decision.limit in _LIMITED:
            carried = decision.requested
        if late:
            carried = min(carried, signals.ready)
        self.share = round(1.0 - min(1.0, carried / desired), 3) if desired else 0.0
        return self.share

    def _is_late(self, signals: Signals) -> bool:
        """Whether replicas have been starting for too long, without one that became ready."""
        now, ready = signals.at_s, signals.ready
        if not signals.starting:
            self._since_s = None
        elif self._since_s is None or ready > self._ready:
            self._since_s, self._due_s = now, LATE * self._starts.expected_s
        self._ready = ready
        self._starts.look(signals)
        return self._since_s is not None and now - self._since_s > self._due_s
