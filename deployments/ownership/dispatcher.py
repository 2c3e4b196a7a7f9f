"""The dispatcher: where a gateway keeps its own clients' requests of one model, from `submit` to the end of the lease,
whoever owns the model meanwhile.

It is the submitter of `roles.py`. When the owner changes, what waits is handed to the new one with its age, and what
runs goes on: the new owner learns of its lease, the bytes come from the engine as before. While there is no owner,
requests wait here, no longer than they may.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from cluster.spec import DEFAULT_GROUP, Model
from deployments.cell.departure import Lost
from deployments.openai.prompt import TokenRatio
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.record import (
    BOOKED,
    QUEUED,
    GuestNotTaken,
    QueueTimeout,
    Records,
    Rejected,
    RequestRecord,
    RequestState,
)
from deployments.ownership.replicas import ExpectedStarts, Replicas
from deployments.ownership.roles import Owner, PeerLease
from deployments.ownership.takeover import KnownSuspicions, Losses, booking_of
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import BOOKING_HEADER, EPOCH_HEADER, Finished, FirstTokens, ReplicaFacts, ReplicaState
from deployments.scheduling import Admission, Ending, LadderOrder, Lease, Placement, Request, Snapshot, Suspicion

RESUBMIT_S = 0.5
"""A request whose lease was refused as overtaken goes to a new owner at once, and to the same one after so long."""


class Dispatcher:
    """One model at one gateway. All methods run in the gateway's event loop."""

    def __init__(self, model: Model, gateway_id: str = "here") -> None:
        self.model = model
        self.replicas = Replicas()
        self.records = Records()
        """Of this gateway's clients; and where it owns the model, of all requests."""
        self.context_tokens = 0
        """The longest context of the model's groups here, in tokens; 0: it has only one group."""
        self.ratio = TokenRatio()
        self.handed_on = 0
        """Requests that were handed to another owner while they waited."""
        self.on_ready: Callable[[ReplicaFacts], None] = lambda facts: None
        self.on_overtaken: Callable[[int], None] = lambda highest: None
        self.losses = Losses()
        self.suspicions = KnownSuspicions()
        self._gateway_id = gateway_id
        self.owner: Owner | None = None
        """Who decides now; `own`: if it is this gateway."""
        self.own: LaneOwner | None = None
        self._starts = ExpectedStarts()
        self._ladder = LadderOrder()

    @property
    def longest_context(self) -> int:
        """The longest context that a prompt may have here, in tokens."""
        return self.context_tokens or self.model.settings.max_model_len

    @property
    def is_ready(self) -> bool:
        """Whether a request would find an owner and a replica."""
        known = self.own is None or bool(self.own.scheduler.replica_ids)
        return self.owner is not None and bool(self.replicas.open) and known

    def follow(self, owner: Owner | None) -> None:
        """From now on `owner` decides (None: nobody does for now). The one before gets no more reports."""
        assert not isinstance(owner, LaneOwner) or owner.records is self.records, "one table of records in a process"
        before, self.owner = self.own, owner
        self.own = owner if isinstance(owner, LaneOwner) else None
        if before is not None and before is not owner:
            before.close()
        for record in self.records.here:
            if record.state in BOOKED or record.state is RequestState.AWAY:
                self.records.move(record, RequestState.DECLARED)
            elif record.state is RequestState.WAITING:
                self.records.disown(record)
            record.again_s = 0.0
        if self.own is not None:
            self.own.recall(self.suspicions)
            self.own.cordon(self.replicas.cordoned)
            self.own.order_ladder(self._ladder)
            for group, ready_at_s in self._starts.ready_at_s.items():
                self.own.expect_replica(ready_at_s, group)
        for record in self.records.here if owner is not None else ():
            if owner is not None and record.state is RequestState.DECLARED and record.lease is not None:
                owner.hold(self, record.lease.attempt_id, record.lease.replica_id)
        self.hand_on(time.monotonic())

    def cordon(self, replica_ids: frozenset[str]) -> None:
        """Operators keep new work off these replicas, and off no others."""
        if replica_ids != self.replicas.cordoned:
            self.replicas.cordoned = replica_ids
            if self.own is not None:
                self.own.cordon(replica_ids)

    def order_ladder(self, order: LadderOrder) -> None:
        """How far an operator has the ladder go."""
        if order != self._ladder:
            self._ladder = order
            if self.own is not None:
                self.own.order_ladder(order)

    def expect_replica(self, ready_at_s: float | None, group: str = DEFAULT_GROUP) -> None:
        """An autoscaler says when the group's next replica should be ready (None: it knows of none)."""
        if self._starts.take(ready_at_s, group) and self.own is not None:
            self.own.expect_replica(ready_at_s, group)

    async def submit(self, request: Request, hop: HopFacts | None = None) -> Admission:
        """Takes a request to the owner, and returns its answer. If it is accepted, `placement` must be awaited next,
        unless it is `cached`. Raises QueueTimeout; for a guest, which came by `hop`, GuestNotTaken."""
        if hop is not None and self.records.get(request.request_id) is not None:  # each attempt is handed over once
            raise GuestNotTaken(HopRefusal.TWICE)
        record = self.records.enter(request, self)
        record.hop = hop
        answer = record.answer
        assert answer is not None
        try:
            if self.owner is not None:
                self._submit(record, self.owner)
            admission = answer.result() if answer.done() else await answer
        except BaseException:
            self._leave(record)
            raise
        if not admission.accepted or request.cached:
            self.records.leave(record)
        return admission

    async def placement(self, request: Request) -> Placement | PeerLease:
        """Waits until the request is placed, or handed over. Raises QueueTimeout, Rejected; when cancelled, the lane
        entry (or an unseen lease) is gone at once."""
        record = self.records.client_of(request.request_id)
        assert record is not None
        assert record.placement is not None
        try:
            return await record.placement
        except BaseException:
            self._leave(record)
            raise

    def url_of(self, lease: Lease) -> str | None:
        """Where the lease's replica listens; None when it was lost."""
        record = self.records.client_of(lease.request.request_id)
        return self.replicas.url_of(lease.replica_id) or (record.url if record is not None and record.url else None)

    def credentials(self, lease: Lease) -> dict[str, str]:
        """The headers by which the engine knows under whose epoch, and for what, the lease was given."""
        record = self.records.client_of(lease.request.request_id)
        epoch = record.epoch if record is not None else 0
        return {EPOCH_HEADER: str(epoch), BOOKING_HEADER: booking_of(lease, self._gateway_id).encode()}

    def first_token(self, lease: Lease, ago_s: float = 0.0) -> None:
        """The first token is there since `ago_s`, by the replica's word or by the first byte."""
        if self.owner is not None:
            self.owner.first_token(lease.attempt_id, ago_s)

    def first_tokens(self, message: FirstTokens) -> None:
        """A replica's word of first tokens. The owner hears it whoever holds them, and where nobody does any more."""
        if self.owner is not None:
            for attempt_id in message.request_ids:
                self.owner.first_token(attempt_id)

    def died(self, lease: Lease) -> None:
        """The lease's replica, or its engine, died while it ran; `refused` or `release` comes next."""
        self.replicas.set_aside(lease.replica_id)
        if self.owner is not None:
            self.owner.died(lease.attempt_id)

    def release(self, lease: Lease, ending: Ending) -> None:
        """Ends a lease; one that ended before (its replica was lost) is left alone."""
        record = self.records.holder_of(lease)
        if record is not None:
            if self.owner is not None:
                self.owner.release(lease.attempt_id, ending)
            self.records.leave(record)

    def refused(self, lease: Lease, state: ReplicaState | None) -> None:
        """The replica took no work (it drains; None: no connection): the request waits again, and `placement` must be
        awaited again."""
        self.replicas.set_aside(lease.replica_id)
        record = self._wait_again(lease)
        if self.owner is None:
            self.records.disown(record)
        else:
            self.owner.refused(self, lease, state)

    def came_back(self, lease: Lease, refusal: HopRefusal) -> None:
        """The peer cell does not have the request: it waits again, and `placement` must be awaited again."""
        record = self._wait_again(lease)
        record.lease = None
        assert record.request is not None
        if refusal is HopRefusal.LOST:
            record.request = replace(record.request, hops=1)
        if self.owner is None:
            self.records.disown(record)
        else:
            self.owner.refused(self, replace(lease, request=record.request), refusal)

    def overtaken(self, lease: Lease, highest: int) -> None:
        """The engine has seen a later epoch than the lease's, `highest`: nothing was done, and the request waits for
        the later owner."""
        record = self._again(lease)
        if self.owner is not None and self.owner.epoch > record.epoch:
            self.hand_on(time.monotonic())
            return
        record.again_s = time.monotonic() + RESUBMIT_S
        if self.own is not None:
            self.on_overtaken(highest)

    def too_long(self, lease: Lease) -> None:
        """The request is longer than was estimated, and than its replica's context: it waits for a longer one."""
        record, longest = self._again(lease), self.replicas.context_of(lease.replica_id)
        assert record.request is not None
        most = max(record.request.max_prompt_tokens, longest + 1)
        record.request = replace(record.request, max_prompt_tokens=most)
        self.hand_on(time.monotonic())

    def when_lost(self, lease: Lease, tell: Callable[[], None]) -> None:
        """`tell` is called if the lease's replica, or peer cell, is lost while the lease stands."""
        self._record(lease.request).tell_lost = tell

    def hand_on(self, now: float) -> None:
        """Hands what nobody has to the owner, and gives up what waited too long without one. Called now and then."""
        if not self.records.counts[RequestState.UNOWNED]:
            return
        for record in self.records.here:
            if record.state is not RequestState.UNOWNED or record.request is None:
                continue
            if record.request.expires_s <= now:
                record.fail(QueueTimeout())
            elif self.owner is not None and record.again_s <= now:
                self.handed_on += record.admission is not None
                self._submit(record, self.owner)

    def admitted(self, request_id: str, admission: Admission) -> None:
        record = self.records.client_of(request_id)
        if record is None or record.answer is None:
            return
        if admission.accepted:
            record.admission = admission
        if admission.clamp_tokens is not None and record.request is not None:
            record.request = replace(record.request, max_tokens=admission.clamp_tokens, clamped=True)
        if not record.answer.done():
            record.answer.set_result(admission)
        elif not admission.accepted:
            record.fail(Rejected(admission))

    def placed(self, placement: Placement, url: str) -> None:
        record = self.records.client_of(placement.request.request_id)
        assert self.owner is not None
        if record is None or record.placement is None or record.placement.done():  # it was given up a moment ago
            self.owner.release(placement.lease.attempt_id, Ending.CANCELLED)
            return
        record.url, record.epoch = url, self.owner.epoch
        record.placement.set_result(placement)

    def handed_over(self, peer_lease: PeerLease) -> None:
        record = self.records.client_of(peer_lease.hop.request_id)
        assert self.owner is not None
        if record is None or record.placement is None or record.placement.done():  # it was given up a moment ago
            self.owner.release(peer_lease.lease.attempt_id, Ending.CANCELLED)
            return
        record.epoch = self.owner.epoch
        record.placement.set_result(peer_lease)

    def recalled(self, attempt_id: str) -> None:
        record = self.records.of_attempt_id(attempt_id)
        if record is not None:
            record.lose()

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        """`submit` raises GuestNotTaken; `placement`, where a later owner has no peers."""
        record = self.records.client_of(request_id)
        if record is not None:
            record.fail(GuestNotTaken(refusal))

    def expired(self, request_id: str) -> None:
        if (record := self.records.client_of(request_id)) is not None:
            record.fail(QueueTimeout())

    def moved(self) -> None:
        """See `roles.Submitter`. The next owner comes by `follow`."""

    def suspected(self, reported: tuple[Suspicion, ...]) -> None:
        self.suspicions.take(reported)

    def replica_up(self, facts: ReplicaFacts) -> None:
        """A replica's feed says that it is ready. This gateway, if it owns the model, takes it into use once the
        replica knows its epoch."""
        self.replicas.up(facts)
        if self.own is not None:
            self.on_ready(facts)

    def replica_state(self, replica_id: str, state: ReplicaState | None) -> None:
        """A known replica drains, is unhealthy, or is unresponsive (None)."""
        self.replicas.set_aside(replica_id)
        if self.own is not None:
            self.own.replica_state(replica_id, state)

    def replica_lost(self, replica_id: str) -> None:
        """A replica's process is gone: its requests fail, except those whose whole answer is already on its way."""
        self.replicas.lost(replica_id)
        if self.own is not None:
            self.own.replica_lost(replica_id)
        for record in self.records.here:
            if record.lease is not None and record.lease.replica_id == replica_id and not record.complete:
                record.lose()

    def finished(self, message: Finished) -> None:
        """A replica's account of a request, whoever's it was."""
        self.losses.dropped(message, time.monotonic())
        record = self.records.of_attempt_id(message.request_id)
        if record is not None:
            record.complete = message.usage.sequences > 0
        if self.own is not None:
            self.own.finished(message)

    def peer_finished(self, message: Finished) -> None:
        """A peer cell's account of a request of a client here, whose lease has ended."""
        if self.owner is not None:
            self.owner.peer_finished(message)

    def snapshot(self) -> Snapshot | None:
        """The scheduler's snapshot now, if this gateway owns the model."""
        return None if self.own is None else self.own.snapshot()

    def __len__(self) -> int:
        return len(self.records.here)

    @property
    def held(self) -> Lost:
        """The requests that are lost with this gateway, if it ends now."""
        return self.records.lost

    def _record(self, request: Request) -> RequestRecord:
        record = self.records.client_of(request.request_id)
        assert record is not None
        return record

    def _submit(self, record: RequestRecord, owner: Owner) -> None:
        assert record.request is not None
        owner.submit(self, record.request, record.admission is not None, record.hop)

    def _wait_again(self, lease: Lease) -> RequestRecord:
        """Its lease was of no use, and another placement is waited for."""
        record = self._record(lease.request)
        assert record.request is not None
        record.await_placement(replace(record.request, attempts=lease.attempt))
        return record

    def _again(self, lease: Lease) -> RequestRecord:
        """As `_wait_again`; also a later owner knows of the lease, and hears that it is over. Nobody has the request
        then."""
        record = self._wait_again(lease)
        if self.owner is not None:
            self.owner.release(lease.attempt_id, Ending.FAILED)
        self.records.disown(record)
        return record

    def _leave(self, record: RequestRecord) -> None:
        """Nobody waits for the request any more."""
        if record.placement is None:
            return
        if self.owner is not None and record.lease is not None:
            self.owner.release(record.lease.attempt_id, Ending.CANCELLED)
        elif self.owner is not None and record.state in QUEUED:
            self.owner.cancel(record.request_id)
        self.records.leave(record)
