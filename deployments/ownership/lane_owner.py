"""The owner of a model in the gateway that owns it: the live shell around the pure scheduler, in that gateway's event
loop.

It gives the scheduler the time, tells submitters what was decided, runs the scheduler's time-outs, and keeps which
lease is whose. It decides nothing itself. A lease whose submitter is gone (its gateway died) stands until the replica
says that it ended.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from cluster.spec import DEFAULT_GROUP, ClusterSpec
from deployments.decision_log import DecisionLog
from deployments.ownership.entries import OVER, QUEUED, Adoption, Entries, EntryState, OwnedRequest
from deployments.ownership.hop_messages import HopReport
from deployments.ownership.peering import LanePeering
from deployments.ownership.replicas import Replicas, capacity_of, cordon, tell_state
from deployments.ownership.roles import Channels, Submitter
from deployments.ownership.takeover import Running, Telling, usage_of
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import Finished, ReplicaFacts, ReplicaState
from deployments.scheduling import Binding, Ending, Lease, Request, Scheduler, SchedulingPolicy, Snapshot
from deployments.scheduling.recorder import RecordingScheduler

_DEFAULT_BINDING = Binding()


def now_s() -> float:
    """The time; whole nanoseconds, so that a log of it gives the same numbers back."""
    return time.monotonic_ns() / 1e9


class LaneOwner:
    """Runs one model's scheduler. All methods run in the gateway's event loop; none blocks. `replicas` is shared with
    the gateway's dispatcher. `peering`: where cells help each other."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        binding: Binding = _DEFAULT_BINDING,
        epoch: int = 1,
        replicas: Replicas | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        self.epoch = epoch
        self.scheduler: Scheduler = (
            Scheduler(policy) if log is None else RecordingScheduler(policy, log.write, log.due, log.lost)
        )
        self._log = log
        self.replicas = replicas or Replicas()
        self._binding = binding
        self.entries = Entries()
        """What is known of each request."""
        self.adoption = Adoption(self.scheduler, self.entries)
        self._channels = Channels()
        self.telling = Telling(self.scheduler, self._channels)
        self.peering: LanePeering | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def configure(self, policy: SchedulingPolicy, binding: Binding) -> None:
        """Changes the policy; what waits keeps waiting."""
        now = now_s()
        self._binding = binding
        self.scheduler.configure(policy, now)
        for facts in self.replicas.ready:
            if facts.replica_id in self.scheduler.replica_ids:
                self.scheduler.replica_up(facts.replica_id, capacity_of(facts, binding), now)
        self._step()

    def help_peers(self, spec: ClusterSpec, cell: str, model: str) -> None:
        """From now on this cell and its peers serve each other's requests of the model."""
        parts = self.epoch, self.scheduler, self.entries, self._enter
        self.peering = LanePeering(spec, cell, model, *parts, now_s)

    def submit(
        self, submitter: Submitter, request: Request, admitted: bool = False, hop: HopFacts | None = None
    ) -> None:
        """Takes a request into the lane, or turns it away. One that is known here is recognised, whatever became of
        what was said before of it.

        `request.attempts` is the last attempt that the submitter has heard of. No later one is issued again, whoever
        issued it.
        """
        entry = self.entries.get(request.request_id)
        if entry is None or entry.state in OVER:
            self._enter(submitter, request, admitted, 0 if entry is None else entry.attempt, hop)
        elif entry.submitter is not None and entry.submitter is not submitter:
            submitter.admitted(request.request_id, self.scheduler.submit(request, now_s()))
        elif entry.state is EntryState.WAITING and request.attempts <= entry.attempt:
            entry.tell_again(submitter)
        elif entry.submitter is None or request.attempts >= entry.attempt:
            self._wait_again(entry, submitter, request)

    def cancel(self, request_id: str, submitter: Submitter | None = None) -> None:
        """A request that waits, or is with a peer cell, is given up. `submitter`: only if it holds it. A recorded hop
        may come to two gateways of a cell, and whoever sends the second one leaves."""
        entry = self.entries.get(request_id)
        if entry is not None and entry.state in QUEUED and submitter in (None, entry.submitter):
            self._withdraw(entry)
            self._step()

    def hold(self, submitter: Submitter, attempt_id: str) -> None:
        """A lease of an owner before is the submitter's: true as soon as its replica says so too."""
        self.adoption.hold(submitter, attempt_id)

    def first_token(self, attempt_id: str) -> None:
        """The first token is there. Submitters and replicas both tell; of an adopted lease nothing is known before."""
        entry = self.entries.of_attempt_id(attempt_id)
        if entry is None or (lease := entry.booked) is None or (entry.answered and not entry.adopted):
            return
        entry.answered = True
        self.scheduler.first_token(lease, now_s())
        self._step()

    def died(self, attempt_id: str) -> None:
        """See `roles.Owner`. Until the replica speaks again nothing new goes there."""
        entry = self.entries.of_attempt_id(attempt_id)
        if entry is not None and entry.booked is not None:
            self.scheduler.died(entry.booked, now_s())
            self.replica_state(entry.booked.replica_id, None)

    def release(self, attempt_id: str, ending: Ending) -> None:
        """Ends a lease; one that ended before (its replica was lost) is left alone."""
        entry = self.entries.of_attempt_id(attempt_id)
        if entry is None:
            return
        if entry.state is EntryState.DECLARED:
            self.entries.move(entry, EntryState.CLOSED)
        elif entry.booked is not None:
            self._end(entry, ending, EntryState.ENDED if entry.state is EntryState.RUNNING else EntryState.CLOSED)
            self._step()

    def refused(self, submitter: Submitter, lease: Lease, state: ReplicaState | None) -> None:
        """The replica took no work (it drains; None: no connection): the request waits again, first in its lane."""
        self.replica_state(lease.replica_id, state)
        self.submit(submitter, replace(lease.request, attempts=lease.attempt), admitted=True)

    def hop_reported(self, report: HopReport) -> None:
        if self.peering is not None and self.peering.reported(report, now_s()):
            self._step()

    def finished(self, message: Finished) -> None:
        """An engine's account of a request, which may come before or after its lease ends."""
        entry = self.entries.of_ended(message.request_id)
        if entry is None or entry.lease is None:
            return
        if entry.state in (EntryState.RUNNING, EntryState.ORPHANED, EntryState.ENDED):
            self.scheduler.learn(entry.lease, usage_of(message), now_s())
            if entry.state is EntryState.RUNNING:
                self.entries.move(entry, EntryState.ANSWERED if message.sequences else EntryState.ABORTED)
            elif entry.state is EntryState.ENDED:
                self.entries.move(entry, EntryState.CLOSED)
            else:
                self.release(message.request_id, Ending.FINISHED if message.sequences else Ending.FAILED)

    def join(self, submitter: Submitter, gateway_id: str, channel: int) -> bool:
        """Another gateway's channel opens, which gets a message when this owner stops deciding. False if a later one
        came first."""
        return self._channels.open(submitter, gateway_id, channel) and self.telling.greet(submitter, now_s())

    def left(self, submitter: Submitter) -> None:
        """A submitter is gone: what waits for it is given up, what runs for it stands until its replica tells."""
        self._channels.ended(submitter)
        for entry in self.entries.of_submitter(submitter):
            if entry.state in QUEUED:
                self._withdraw(entry)
            elif entry.state is EntryState.RUNNING:
                self.entries.orphan(entry)
            elif entry.state is EntryState.DECLARED:
                self.entries.move(entry, EntryState.CLOSED)
            else:
                self._end(entry, entry.ending, EntryState.CLOSED)
        self._step()

    def replica_up(self, facts: ReplicaFacts, running: Iterable[Running] = ()) -> None:
        """A replica is ready (or ready again), knows this owner's epoch, and runs what it says."""
        now = now_s()
        self.scheduler.replica_up(facts.replica_id, capacity_of(facts, self._binding), now)
        for gone in self.adoption.adopt(facts.replica_id, running, now):
            self._end(gone, Ending.FAILED, EntryState.CLOSED)
        self._step()

    def replica_state(self, replica_id: str, state: ReplicaState | None) -> None:
        """A known replica drains, is unhealthy, or is unresponsive (None; one that drains goes on draining then)."""
        self.replicas.set_aside(replica_id)
        tell_state(self.scheduler, replica_id, state, now_s())
        self._step()

    def replica_lost(self, replica_id: str) -> None:
        """A replica's process is gone: its leases end as failed, but for those whose whole answer it has sent."""
        on_it = self.entries.leased_on(replica_id)
        for entry in on_it:
            if entry.state is EntryState.ANSWERED:
                self._end(entry, Ending.FINISHED, EntryState.CLOSED)
        self.scheduler.replica_lost(replica_id, now_s())
        for entry in on_it:
            self.entries.move(entry, EntryState.CLOSED)
        self._step()

    def cordon(self, replica_ids: frozenset[str]) -> None:
        """Operators keep new work off these replicas, and off no others."""
        if cordon(self.scheduler, replica_ids, now_s()):
            self._step()

    def expect_replica(self, ready_at_s: float | None, group: str = DEFAULT_GROUP) -> None:
        """The group's next replica should be ready then (on this process's clock); None: nobody knows of one."""
        self.scheduler.expect_replica(ready_at_s, now_s(), group)
        self._step()

    def snapshot(self, etas: bool = True) -> Snapshot:
        """The scheduler's snapshot now; `etas`: with wait estimates."""
        return self.scheduler.snapshot(now_s(), etas)

    def close(self) -> None:
        """Decides nothing more: another gateway owns the model."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._channels.end_all()
        if self._log is not None:
            self._log.close()

    def _enter(self, submitter: Submitter, request: Request, admitted: bool, issued: int, hop: HopFacts | None) -> None:
        """A request that is nowhere here, of which attempts up to `issued` are known: into the lane, if it may."""
        now, peering = now_s(), self.peering
        if issued > request.attempts:
            request = replace(request, attempts=issued)
        if peering is None and request.guest_of:
            submitter.guest_refused(request.request_id, HopRefusal.SPEC)
            return
        if peering is not None and peering.bars(submitter, request, admitted, hop, now):
            return
        admission = self.scheduler.submit(request, now, admitted)
        if admission.accepted:
            entry = self.entries.begin(request.request_id, request.attempts, EntryState.WAITING, submitter)
            entry.admission = admission
        elif peering is not None and peering.takes_rejected(submitter, request, admission, now):
            return
        submitter.admitted(request.request_id, admission)
        if admission.accepted:
            self._step()
            if peering is not None:
                peering.consider(request.request_id, now)

    def _wait_again(self, entry: OwnedRequest, submitter: Submitter, request: Request) -> None:
        """What is known here is of no use: its replica took no work, or its submitter never heard of it. It waits
        again, for the next attempt."""
        lease = entry.booked
        if lease is not None and not entry.adopted and request.attempts <= entry.attempt:
            self.scheduler.release(lease, Ending.REFUSED, None, now_s())
            self.entries.begin(entry.request_id, entry.attempt, EntryState.WAITING, submitter).tell_again(submitter)
            self._step()
            return
        if lease is not None:  # the scheduler knows too little of the request
            self._end(entry, Ending.FAILED, EntryState.CLOSED)
        elif entry.state in QUEUED:
            self._withdraw(entry)
        else:
            self.entries.move(entry, EntryState.CLOSED)
        self._enter(submitter, request, True, entry.attempt, None)

    def _withdraw(self, entry: OwnedRequest) -> None:
        self.scheduler.cancel(entry.request_id, now_s())
        if self.peering is not None:
            self.peering.gone(entry.request_id)
        self.entries.move(entry, EntryState.CLOSED)

    def _end(self, entry: OwnedRequest, ending: Ending, state: EntryState) -> None:
        assert entry.lease is not None
        self.scheduler.release(entry.lease, ending, None, now_s())
        self.entries.move(entry, state)

    def _step(self) -> None:
        if self._closed:
            return
        step = self.scheduler.step(now_s())
        if self.peering is not None:
            step = self.peering.stepped(step, now_s())
        for request in step.expired:
            self.entries.left_lane(request.request_id).expired(request.request_id)
        for gone in step.turned_away:
            self.entries.left_lane(gone.request.request_id).admitted(gone.request.request_id, gone.admission)
        for placement in step.placements:
            submitter = self.entries.left_lane(placement.request.request_id, placement.lease)
            submitter.placed(placement, self.replicas.url_of(placement.replica_id) or "")
        if step.suspicions:
            self.telling.tell(step.suspicions)
        self._set_timer(self.scheduler.next_wakeup())

    def _set_timer(self, at_s: float | None) -> None:
        """`_step` is to be called then, though nothing else happens; None: not at all. An earlier time stays set."""
        if self._timer is not None:
            if at_s is not None and self._timer_s <= at_s:
                return
            self._timer.cancel()
            self._timer = None
        if at_s is not None:
            self._timer_s = at_s
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at_s - now_s()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._step()
