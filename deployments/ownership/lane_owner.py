"""The owner of a model in the gateway that owns it: the live shell around the pure scheduler, in that gateway's event
loop.

It gives the scheduler the time, tells submitters what was decided, runs the scheduler's time-outs, and keeps which
lease is whose. It decides nothing itself. A lease whose submitter is gone (its gateway died) stands until the replica
says that it ended.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from cluster.spec import DEFAULT_GROUP, ClusterSpec
from deployments.decision_log import DecisionLog
from deployments.ownership.peering import LanePeering
from deployments.ownership.record import OVER, QUEUED, Records, RequestRecord, RequestState, split
from deployments.ownership.replicas import Replicas, capacity_of, cordon, tell_state
from deployments.ownership.roles import Channels, Submitter
from deployments.ownership.takeover import KnownSuspicions, Running, peer_usage_of
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import Finished, ReplicaFacts, ReplicaState
from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Binding,
    Ending,
    LadderOrder,
    Lease,
    RejectCause,
    Request,
    Scheduler,
    SchedulingPolicy,
    Snapshot,
    Suspicion,
)
from deployments.scheduling.recorder import RecordingScheduler

log = logging.getLogger("raylane.suspects")

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
        decision_log: DecisionLog | None = None,
        records: Records | None = None,
    ) -> None:
        self.epoch = epoch
        self.scheduler = (
            Scheduler(policy)
            if decision_log is None
            else RecordingScheduler(policy, decision_log.write, decision_log.due, decision_log.lost)
        )
        self._log = decision_log
        self.replicas = replicas or Replicas()
        self._binding = binding
        self.records = Records() if records is None else records
        """What is known of each request: the table of this gateway's dispatcher."""
        self.reconciled = 0
        """How often a replica's report of what runs disagreed with the scheduler, which was then corrected."""
        self._channels = Channels()
        self._known = KnownSuspicions()
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
        parts = self.epoch, self.scheduler, self.records, self._enter, self._step
        self.peering = LanePeering(spec, cell, model, *parts, now_s)

    def recall(self, known: KnownSuspicions) -> None:
        """What this gateway has heard of owners before on queries of death; from now on it hears of this one."""
        self._known = known
        for one in known.all():
            self.scheduler.recall(one, now_s())

    def submit(
        self, submitter: Submitter, request: Request, admitted: bool = False, hop: HopFacts | None = None
    ) -> None:
        """Takes a request into the lane, or turns it away. One that is known here is recognised, whatever became of
        what was said before of it.

        `request.attempts` is the last attempt that the submitter has heard of. No later one is issued again, whoever
        issued it.
        """
        record = self.records.get(request.request_id)
        is_held = record is not None and (record.placement is not None or record.state is RequestState.DECLARED)
        if record is not None and is_held and record.submitter is not submitter:  # the scheduler may not know of it
            submitter.admitted(request.request_id, Admission(AdmissionKind.REJECT, "", RejectCause.DUPLICATE_ID))
        elif record is None or record.state in OVER or record.state is RequestState.UNOWNED:
            self._enter(submitter, request, admitted, 0 if record is None else record.attempt, hop)
        elif record.submitter is not None and record.submitter is not submitter:
            submitter.admitted(request.request_id, self.scheduler.submit(request, now_s()))
        elif record.state is RequestState.WAITING and request.attempts <= record.attempt:
            record.tell_again(submitter)
        elif record.submitter is None or request.attempts >= record.attempt:
            self._wait_again(record, submitter, request)

    def cancel(self, request_id: str, submitter: Submitter | None = None) -> None:
        """A request that waits, or is with a peer cell, is given up. `submitter`: only if it holds it."""
        record = self.records.get(request_id)
        if record is not None and record.state in QUEUED and submitter in (None, record.submitter):
            self._withdraw(record)
            self._step()

    def hold(self, submitter: Submitter, attempt_id: str, replica_id: str = "") -> None:
        """A lease of an owner before is the submitter's: true as soon as its replica says so too. A peer cell says
        nothing of it; it is recalled where the peer is silent."""
        record = self.records.of_attempt_id(attempt_id)
        if record is not None and record.state is RequestState.ORPHANED:
            self.records.move(record, RequestState.RUNNING)
            record.submitter = submitter
        elif (named := split(attempt_id)) is not None and self.records.is_news(*named):
            self.records.begin(*named, RequestState.DECLARED, submitter)
        if self.peering is not None:
            self.peering.held(attempt_id, replica_id)

    def first_token(self, attempt_id: str, ago_s: float = 0.0) -> None:
        """The first token is there. Submitters and replicas both tell; of an adopted lease nothing is known before."""
        record = self.records.of_attempt_id(attempt_id)
        if record is not None and record.state is RequestState.AWAY and self.peering is not None:
            self.peering.first_token(record, now_s() - ago_s)
        if record is None or (lease := record.booked) is None or (record.answered and not record.adopted):
            return
        record.answered = True
        self.scheduler.first_token(lease, now_s())
        self._step()

    def died(self, attempt_id: str) -> None:
        """See `roles.Owner`. Until the replica speaks again nothing new goes there."""
        record = self.records.of_attempt_id(attempt_id)
        if record is not None and record.state is RequestState.AWAY:
            self.scheduler.died_away(record.request_id, now_s())
            self._step()
        elif record is not None and record.booked is not None:
            self.scheduler.died(record.booked, now_s())
            self.replica_state(record.booked.replica_id, None)

    def release(self, attempt_id: str, ending: Ending) -> None:
        """Ends a lease; one that ended before (its replica was lost) is left alone."""
        record = self.records.of_attempt_id(attempt_id)
        if record is None:
            return
        if record.state is RequestState.DECLARED:
            self.records.move(record, RequestState.CLOSED)
        elif record.state is RequestState.AWAY:
            self._withdraw(record, is_due=ending is Ending.FINISHED)
            self._step()
        elif record.booked is not None:
            is_due = record.state is RequestState.RUNNING  # its engine's account
            self._end(record, ending, RequestState.ENDED if is_due else RequestState.CLOSED)
            self._step()

    def refused(self, submitter: Submitter, lease: Lease, state: ReplicaState | HopRefusal | None) -> None:
        """The replica took no work (it drains; None: no connection), or the peer cell did not: the request waits again,
        first in its lane."""
        record = self.records.of_attempt_id(lease.attempt_id)
        if isinstance(state, HopRefusal):
            if record is not None and record.state is RequestState.AWAY and self.peering is not None:
                self.peering.came_back(record, state, now_s())
                self._step()
                return
        else:
            self.replica_state(lease.replica_id, state)
        self.submit(submitter, replace(lease.request, attempts=lease.attempt), admitted=True)

    def finished(self, message: Finished) -> None:
        """An engine's account of a request, which may come before or after its lease ends."""
        record = self.records.of_ended(message.request_id)
        if record is None or record.lease is None:
            return
        if record.state in (RequestState.RUNNING, RequestState.ORPHANED, RequestState.ENDED):
            self.scheduler.learn(record.lease, message.usage, now_s())
            if record.state is RequestState.RUNNING:
                self.records.move(record, RequestState.ANSWERED if message.usage.sequences else RequestState.ABORTED)
            elif record.state is RequestState.ENDED:
                self.records.move(record, RequestState.CLOSED)
            else:
                self.release(message.request_id, Ending.FINISHED if message.usage.sequences else Ending.FAILED)

    def peer_finished(self, message: Finished) -> None:
        """See `roles.Owner`."""
        record = self.records.of_attempt_id(message.request_id)
        if record is not None and record.state is RequestState.ENDED and record.lease is not None:
            self.scheduler.learn(record.lease, peer_usage_of(message.usage, record.lease), now_s())
            self.records.move(record, RequestState.CLOSED)

    def join(self, submitter: Submitter, gateway_id: str, channel: int) -> bool:
        """Another gateway's channel opens, which hears of all suspects, and when this owner stops deciding. False if a
        later one came first."""
        if not self._channels.open(submitter, gateway_id, channel):
            return False
        if suspects := self.scheduler.suspicions(now_s()):
            submitter.suspected(suspects)
        return True

    def left(self, submitter: Submitter) -> None:
        """A submitter is gone: what waits for it is given up, what runs for it stands until its replica tells."""
        self._channels.ended(submitter)
        for record in self.records.of_submitter(submitter):
            if record.state in QUEUED:
                self._withdraw(record)
            elif record.state is RequestState.RUNNING:
                self.records.orphan(record)
            elif record.state is RequestState.DECLARED:
                self.records.move(record, RequestState.CLOSED)
            else:
                self._end(record, record.ending, RequestState.CLOSED)
        self._step()

    def replica_up(self, facts: ReplicaFacts, running: Iterable[Running] = ()) -> None:
        """A replica is ready (or ready again), knows this owner's epoch, and runs what it says."""
        now = now_s()
        self.scheduler.replica_up(facts.replica_id, capacity_of(facts, self._binding), now)
        reported = {one.lease.attempt_id: one for one in running}
        for one in reported.values():
            self._adopt(one, now)
        for record in self.records.leased_on(facts.replica_id):
            if record.state is RequestState.ORPHANED and f"{record.request_id}-{record.attempt}" not in reported:
                self.reconciled += 1
                self._end(record, Ending.FAILED, RequestState.CLOSED)
        self._step()

    def replica_state(self, replica_id: str, state: ReplicaState | None) -> None:
        """A known replica drains, is unhealthy, or is unresponsive (None; one that drains goes on draining then)."""
        self.replicas.set_aside(replica_id)
        tell_state(self.scheduler, replica_id, state, now_s())
        self._step()

    def replica_lost(self, replica_id: str) -> None:
        """A replica's process is gone: its leases end as failed, but for those whose whole answer it has sent."""
        on_it = self.records.leased_on(replica_id)
        for record in on_it:
            if record.state is RequestState.ANSWERED:
                self._end(record, Ending.FINISHED, RequestState.CLOSED)
        self.scheduler.replica_lost(replica_id, now_s())
        for record in on_it:
            self.records.move(record, RequestState.CLOSED)
        self._step()

    def cordon(self, replica_ids: frozenset[str]) -> None:
        """Operators keep new work off these replicas, and off no others."""
        if cordon(self.scheduler, replica_ids, now_s()):
            self._step()

    def order_ladder(self, order: LadderOrder) -> None:
        """How far an operator has the ladder go."""
        if order != self.scheduler.ladder.ordered:
            self.scheduler.order_ladder(order, now_s())
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
        self.records.end_ownership()
        if self._log is not None:
            self._log.close()

    def _enter(self, submitter: Submitter, request: Request, admitted: bool, issued: int, hop: HopFacts | None) -> None:
        """A request that is nowhere here, of which attempts up to `issued` are known: into the lane, if it may."""
        now, peering = now_s(), self.peering
        if issued > request.attempts:
            request = replace(request, attempts=issued)
        if request.cached:
            submitter.admitted(request.request_id, self.scheduler.submit(request, now))
            return
        if peering is None and request.guest_of:
            submitter.guest_refused(request.request_id, HopRefusal.SPEC)
            return
        if peering is not None and peering.bars(submitter, request, admitted, hop, now):
            return
        admission = self.scheduler.submit(request, now, admitted)
        if admission.accepted:
            record = self.records.begin(request.request_id, request.attempts, RequestState.WAITING, submitter)
            record.admission = admission
        elif peering is not None and peering.takes_rejected(submitter, request, admission, admitted, now):
            return
        submitter.admitted(request.request_id, admission)
        if admission.accepted:
            self._step()
            if peering is not None and peering.consider(request.request_id, now):
                self._step()

    def _adopt(self, running: Running, now: float) -> None:
        """Takes over a lease of an owner before: its replica says that it runs it, and whoever holds it has said so, or
        will."""
        reported = running.lease
        record = self.records.of_attempt_id(reported.attempt_id)
        declared = record is not None and record.state is RequestState.DECLARED
        if not declared and not self.records.is_news(reported.request.request_id, reported.attempt):
            return
        lease = self.scheduler.adopt(reported, running.started, now)
        if lease is None:
            return
        self.reconciled += 1
        submitter = record.submitter if record is not None and declared else None
        state = RequestState.ORPHANED if submitter is None else RequestState.RUNNING
        record = self.records.begin(reported.request.request_id, reported.attempt, state, submitter, lease)
        record.adopted = record.answered = True

    def _wait_again(self, record: RequestRecord, submitter: Submitter, request: Request) -> None:
        """What is known here is of no use: its replica took no work, or its submitter never heard of it. It waits
        again, for the next attempt."""
        lease = record.booked
        if lease is not None and not record.adopted and request.attempts <= record.attempt:
            self.scheduler.release(lease, Ending.REFUSED, None, now_s())
            self.records.begin(record.request_id, record.attempt, RequestState.WAITING, submitter).tell_again(submitter)
            self._step()
            return
        if lease is not None:  # the scheduler knows too little of the request
            self._end(record, Ending.FAILED, RequestState.CLOSED)
        elif record.state in QUEUED:
            self._withdraw(record)
        else:
            self.records.move(record, RequestState.CLOSED)
        self._enter(submitter, request, True, record.attempt, None)

    def _withdraw(self, record: RequestRecord, is_due: bool = False) -> None:
        """`is_due`: a peer's account of it, which counts if the request had a place here."""
        was_booked = self.scheduler.cancel(record.request_id, now_s())
        if self.peering is not None:
            self.peering.gone(record.request_id)
        self.records.move(record, RequestState.ENDED if is_due and was_booked else RequestState.CLOSED)

    def _end(self, record: RequestRecord, ending: Ending, state: RequestState) -> None:
        assert record.lease is not None
        self.scheduler.release(record.lease, ending, None, now_s())
        self.records.move(record, state)

    def _step(self) -> None:
        if self._closed:
            return
        step = self.scheduler.step(now_s())
        if self.peering is not None:
            step = self.peering.stepped(step, now_s())
        for request in step.expired:
            self.records.left_lane(request.request_id).expired(request.request_id)
        for gone in step.turned_away:
            self.records.left_lane(gone.request.request_id).admitted(gone.request.request_id, gone.admission)
        for placement in step.placements:
            submitter = self.records.left_lane(placement.request.request_id, placement.lease)
            submitter.placed(placement, self.replicas.url_of(placement.replica_id) or "")
        if step.suspicions:
            self._tell(step.suspicions)
        self._set_timer(self.scheduler.next_wakeup())

    def _tell(self, news: tuple[Suspicion, ...]) -> None:
        """All gateways hear whose standing as a query of death has changed; a ban sounds the alarm."""
        self._known.take(news)
        for submitter in self._channels.open_ones:
            submitter.suspected(news)
        for one in news:
            if one.banned:
                log.error(
                    "ALARM: query of death: %d replicas died while a body of digest %s ran; it is refused from now on",
                    one.deaths,
                    one.key,
                )
            elif one.deaths:
                log.warning("a replica died while a body of digest %s ran", one.key)

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
