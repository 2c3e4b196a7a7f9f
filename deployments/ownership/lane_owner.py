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

from cluster.spec import DEFAULT_GROUP
from deployments.cell.scaling_facts import LatencySignals
from deployments.ownership.decision_log import DecisionLog
from deployments.ownership.entries import OVER, Adoption, Entries, EntryState, OwnedRequest, split
from deployments.ownership.handover import Running, Telling, usage_of
from deployments.ownership.replicas import Replicas, cordon
from deployments.ownership.roles import Channels, Submitter
from deployments.protocol import Finished, ReplicaFacts, ReplicaState
from deployments.scheduling import Binding, Capacity, Ending, Lease, Request, Scheduler, SchedulingPolicy, Snapshot
from deployments.scheduling.contract import SchedulerContract
from deployments.scheduling.recorder import RecordingScheduler
from deployments.telemetry.metrics import LatencyWindow

_DEFAULT_BINDING = Binding()


def now_s() -> float:
    """The time; whole nanoseconds, so that a log of it gives the same numbers back."""
    return time.monotonic_ns() / 1e9


class LaneOwner:
    """Runs one model's scheduler. All methods run in the gateway's event loop; none blocks. `replicas` is shared with
    the gateway's dispatcher."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        binding: Binding = _DEFAULT_BINDING,
        epoch: int = 1,
        replicas: Replicas | None = None,
        log: DecisionLog | None = None,
    ) -> None:
        self.epoch = epoch
        self.scheduler: SchedulerContract = (
            Scheduler(policy) if log is None else RecordingScheduler(policy, log.write, log.due, log.lost)
        )
        self._log = log
        self.replicas = replicas or Replicas()
        self._binding = binding
        self.entries = Entries()
        """What is known of each request."""
        self._adoption = Adoption(self.scheduler, self.entries)
        self._channels = Channels()
        self.telling = Telling(self.scheduler, self._channels)
        self._latencies = LatencyWindow()
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
                self.scheduler.replica_up(facts.replica_id, self._capacity(facts), now)
        self._step()

    def submit(self, submitter: Submitter, request: Request, admitted: bool = False) -> None:
        """Takes a request into the lane, or turns it away. One that is known here is recognised, whatever became of
        what was said before of it.

        `request.attempts` is the last attempt that the submitter has heard of. No later one is issued again, whoever
        issued it.
        """
        entry = self.entries.get(request.request_id)
        if entry is None or entry.state in OVER:
            self._enter(submitter, request, admitted, 0 if entry is None else entry.attempt)
        elif entry.submitter is not None and entry.submitter is not submitter:
            submitter.admitted(request.request_id, self.scheduler.submit(request, now_s()))
        elif entry.state is EntryState.WAITING and request.attempts <= entry.attempt:
            self._admit(entry, submitter)
        elif entry.submitter is None or request.attempts >= entry.attempt:
            self._wait_again(entry, submitter, request)

    def cancel(self, request_id: str) -> None:
        """A request that waits is given up."""
        entry = self.entries.get(request_id)
        if entry is not None and entry.state is EntryState.WAITING:
            self._withdraw(entry)
            self._step()

    def hold(self, submitter: Submitter, attempt_id: str) -> None:
        """A lease of an owner before is the submitter's: true as soon as its replica says so too."""
        self._adoption.hold(submitter, attempt_id)

    def first_token(self, attempt_id: str) -> None:
        """The first token is there. Holders and replicas both tell; what is known is no news, but of an adopted lease
        nothing is."""
        entry = self.entries.of_attempt_id(attempt_id)
        if entry is None or (lease := entry.booked) is None or (entry.answered and not entry.adopted):
            return
        now = now_s()
        if not entry.answered:
            entry.answered = True
            self._latencies.first_token(now - lease.request.arrived_s, now)
        self.scheduler.first_token(lease, now)
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
        self.again(submitter, lease)

    def again(self, submitter: Submitter, lease: Lease) -> None:
        """A lease was of no use, and that is not its replica's fault: the request waits again."""
        self.submit(submitter, replace(lease.request, attempts=lease.attempt), admitted=True)

    def finished(self, message: Finished) -> None:
        """An engine's account of a request, which may come before or after its lease ends."""
        if message.sequences:
            self._latencies.ended(message.decode_s, message.output_tokens / message.sequences, now_s())
        entry, named = self.entries.of_attempt_id(message.request_id), split(message.request_id)
        if entry is None:
            if named is not None and self.entries.is_news(*named):
                self.entries.begin(*named, EntryState.CLOSED)
        elif entry.state is EntryState.DECLARED:
            self.entries.move(entry, EntryState.CLOSED)
        elif entry.lease is not None and entry.state in (EntryState.RUNNING, EntryState.ORPHANED, EntryState.ENDED):
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
        """A submitter is gone: what waits for it is given up, what runs for it stands until its replica says that it
        ended."""
        self._channels.ended(submitter)
        for entry in self.entries:
            if entry.submitter is not submitter:
                continue
            if entry.state is EntryState.WAITING:
                self._withdraw(entry)
            elif entry.state is EntryState.RUNNING:
                self.entries.move(entry, EntryState.ORPHANED)
                entry.submitter = None
            elif entry.state is EntryState.DECLARED:
                self.entries.move(entry, EntryState.CLOSED)
            else:
                self._end(entry, entry.ending, EntryState.CLOSED)
        self._step()

    @property
    def reconciled(self) -> int:
        """How often a replica's report of what runs disagreed with the scheduler, which was then corrected."""
        return self._adoption.reconciled

    def replica_up(self, facts: ReplicaFacts, running: Iterable[Running] = ()) -> None:
        """A replica is ready (or ready again), knows this owner's epoch, and runs what it says."""
        now = now_s()
        self.scheduler.replica_up(facts.replica_id, self._capacity(facts), now)
        for gone in self._adoption.adopt(facts.replica_id, running, now):
            self._end(gone, Ending.FAILED, EntryState.CLOSED)
        self._step()

    def replica_state(self, replica_id: str, state: ReplicaState | None) -> None:
        """A known replica drains, is unhealthy, or is unresponsive (None; one that drains goes on draining then)."""
        self.replicas.set_aside(replica_id)
        if state is ReplicaState.DRAINING:
            self.scheduler.replica_draining(replica_id, now_s())
        elif state is not None or not self.scheduler.is_draining(replica_id):
            self.scheduler.replica_unresponsive(replica_id, now_s())
        self._step()

    def replica_lost(self, replica_id: str) -> None:
        """A replica's process is gone: its leases end as failed, but for those whose whole answer it has sent. Who
        streams from it sees that by itself."""
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

    def latencies(self, span_s: float) -> LatencySignals:
        """Of all gateways' requests, over the last `span_s` seconds."""
        return self._latencies.over(span_s, now_s())

    def close(self) -> None:
        """Decides nothing more: another gateway owns the model."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._channels.end_all()
        if self._log is not None:
            self._log.close()

    def _enter(self, submitter: Submitter, request: Request, admitted: bool, issued: int) -> None:
        """A request that is nowhere here, of which attempts up to `issued` are known: into the lane, if there is
        room."""
        request = replace(request, attempts=max(request.attempts, issued))
        admission = self.scheduler.submit(request, now_s(), admitted)
        if admission.accepted:
            entry = self.entries.begin(request.request_id, request.attempts, EntryState.WAITING, submitter)
            entry.admission = admission
        submitter.admitted(request.request_id, admission)
        if admission.accepted:
            self._step()

    def _wait_again(self, entry: OwnedRequest, submitter: Submitter, request: Request) -> None:
        """What is known here is of no use: its replica took no work, or its submitter never heard of it. It waits
        again, for the next attempt."""
        lease = entry.booked
        if lease is not None and not entry.adopted and request.attempts <= entry.attempt:
            self.scheduler.release(lease, Ending.REFUSED, None, now_s())
            self.entries.begin(entry.request_id, entry.attempt, EntryState.WAITING, submitter)
            self._admit(entry, submitter)
            self._step()
            return
        if lease is not None:  # the scheduler knows too little of the request
            self._end(entry, Ending.FAILED, EntryState.CLOSED)
        elif entry.state is EntryState.WAITING:
            self._withdraw(entry)
        else:
            self.entries.move(entry, EntryState.CLOSED)
        self._enter(submitter, request, True, entry.attempt)

    def _admit(self, entry: OwnedRequest, submitter: Submitter) -> None:
        """Repeats the answer to the submitter, which may not have got it."""
        assert entry.admission is not None
        submitter.admitted(entry.request_id, entry.admission)

    def _withdraw(self, entry: OwnedRequest) -> None:
        self.scheduler.cancel(entry.request_id, now_s())
        self.entries.move(entry, EntryState.CLOSED)

    def _end(self, entry: OwnedRequest, ending: Ending, state: EntryState) -> None:
        assert entry.lease is not None
        self.scheduler.release(entry.lease, ending, None, now_s())
        self.entries.move(entry, state)

    def _capacity(self, facts: ReplicaFacts) -> Capacity:
        limits = (facts.max_num_seqs, facts.kv_tokens, facts.max_num_batched_tokens)
        return self._binding.capacity(*limits, facts.group, facts.max_model_len)

    def _step(self) -> None:
        if self._closed:
            return
        step = self.scheduler.step(now_s())
        for request in step.expired:
            self.entries.left_lane(request.request_id).expired(request.request_id)
        for gone in step.turned_away:
            self.entries.left_lane(gone.request.request_id).admitted(gone.request.request_id, gone.admission)
        for placement in step.placements:
            submitter = self.entries.left_lane(placement.request.request_id, placement.lease)
            submitter.placed(placement, self.replicas.url_of(placement.replica_id) or "")
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
