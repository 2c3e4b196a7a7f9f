"""The dispatcher: where a gateway keeps its own clients' requests of one model, from `submit` to the end of the lease,
whoever owns the model meanwhile.

It is the submitter of `roles.py`. When the owner changes, what waits is handed to the new one with its age, and what
runs goes on: the new owner learns of its lease, the bytes come from the engine as before. While there is no owner,
requests wait here, no longer than they may.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from cluster.spec import DEFAULT_GROUP, Model
from deployments.cell.departure import Lost
from deployments.ownership.lane_owner import LaneOwner, now_s
from deployments.ownership.pending_request import GuestNotTaken, PendingRequest, lost_with
from deployments.ownership.replicas import ExpectedStarts, Replicas
from deployments.ownership.roles import Owner, PeerLease
from deployments.ownership.takeover import Known, Losses, booking_of
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import BOOKING_HEADER, EPOCH_HEADER, Finished, FirstTokens, ReplicaFacts, ReplicaState
from deployments.scheduling import Admission, Ending, Lease, Placement, Request, Snapshot, Suspicion

RESUBMIT_S = 0.5
"""A request whose lease was refused as overtaken goes to a new owner at once, and to the same one after so long."""


class Dispatcher:
    """One model at one gateway. All methods run in the gateway's event loop."""

    def __init__(self, model: Model, gateway_id: str = "here") -> None:
        self.model = model
        self.replicas = Replicas()
        self.context_tokens = 0
        """The longest context of the model's groups here, in tokens; 0: it has only one group."""
        self.handed_on = 0
        """Requests that were handed to another owner while they waited."""
        self.on_ready: Callable[[ReplicaFacts], None] = lambda facts: None
        self.on_overtaken: Callable[[int], None] = lambda highest: None
        self.losses = Losses()
        self.suspicions = Known()
        self._gateway_id = gateway_id
        self._owner: Owner | None = None
        self._starts = ExpectedStarts()
        self._pending_requests: dict[str, PendingRequest] = {}

    @property
    def owner(self) -> Owner | None:
        """Who decides now."""
        return self._owner

    @property
    def is_ready(self) -> bool:
        """Whether a request would find an owner and a replica."""
        own, is_open = self.own, bool(self.replicas.open)
        return self._owner is not None and is_open and (own is None or bool(own.scheduler.replica_ids))

    @property
    def own(self) -> LaneOwner | None:
        """The owner, if it is this gateway."""
        return self._owner if isinstance(self._owner, LaneOwner) else None

    def follow(self, owner: Owner | None) -> None:
        """From now on `owner` decides (None: nobody does for now). The one before gets no more reports."""
        before, self._owner = self._owner, owner
        if isinstance(before, LaneOwner) and before is not owner:
            before.close()
        if isinstance(owner, LaneOwner):
            owner.telling.begin(self.suspicions, now_s())
            owner.cordon(self.replicas.cordoned)
            for group, ready_at_s in self._starts.ready_at_s.items():
                owner.expect_replica(ready_at_s, group)
        for pending in list(self._pending_requests.values()):
            if pending.lease is not None and owner is not None:
                owner.hold(self, pending.lease.attempt_id)
            pending.owner = None
            pending.again_s = 0.0
        self.hand_on(time.monotonic())

    def cordon(self, replica_ids: frozenset[str]) -> None:
        """Operators keep new work off these replicas, and off no others."""
        if replica_ids != self.replicas.cordoned:
            self.replicas.cordoned = replica_ids
            if self.own is not None:
                self.own.cordon(replica_ids)

    def expect_replica(self, ready_at_s: float | None, group: str = DEFAULT_GROUP) -> None:
        """An autoscaler says when the group's next replica should be ready (None: it knows of none)."""
        if self._starts.take(ready_at_s, group) and self.own is not None:
            self.own.expect_replica(ready_at_s, group)

    async def submit(self, request: Request, hop: HopFacts | None = None) -> Admission:
        """Takes a request to the owner, and returns its answer. If it is accepted, `placement` must be awaited next.
        Raises QueueTimeout; for a guest, which came by `hop`, GuestNotTaken."""
        if hop is not None and request.request_id in self._pending_requests:
            raise GuestNotTaken(HopRefusal.TWICE)
        future = asyncio.get_running_loop().create_future
        pending = PendingRequest(request, future(), future(), hop=hop)
        self._pending_requests[request.request_id] = pending
        if self._owner is not None:
            self._submit(pending, self._owner)
        try:
            admission = pending.admission.result() if pending.admission.done() else await pending.admission
        except BaseException:
            self._give_up(pending)
            raise
        if not admission.accepted:
            del self._pending_requests[request.request_id]
        return admission

    async def placement(self, request: Request) -> Placement | PeerLease:
        """Waits until the request is placed, or handed over. Raises QueueTimeout, Rejected; when cancelled, the lane
        entry (or an unseen lease) is gone at once."""
        pending = self._pending_requests[request.request_id]
        try:
            return await pending.placement
        except BaseException:
            self._give_up(pending)
            raise

    def give_up(self, request: Request) -> None:
        """A request that was accepted is over before `placement` was awaited."""
        if (pending := self._pending_requests.get(request.request_id)) is not None:
            self._give_up(pending)

    def url_of(self, lease: Lease) -> str | None:
        """Where the lease's replica listens; None when it was lost."""
        pending = self._pending_requests.get(lease.request.request_id)
        return self.replicas.url_of(lease.replica_id) or (pending.url if pending is not None and pending.url else None)

    def credentials(self, lease: Lease) -> dict[str, str]:
        """The headers by which the engine knows under whose epoch, and for what, the lease was given."""
        pending = self._pending_requests.get(lease.request.request_id)
        epoch = pending.epoch if pending is not None else 0
        return {EPOCH_HEADER: str(epoch), BOOKING_HEADER: booking_of(lease, self._gateway_id).encode()}

    def first_token(self, lease: Lease, ago_s: float = 0.0) -> None:
        """The first token is there since `ago_s`, by the replica's word or by the first byte. The owner gets one
        report."""
        pending = self._pending_requests.get(lease.request.request_id)
        if pending is not None and pending.holds(lease) and not pending.answered:
            pending.answered = True
            if self._owner is not None:
                self._owner.first_token(lease.attempt_id, ago_s)

    def first_tokens(self, message: FirstTokens) -> None:
        """A replica's word of first tokens. The owner hears it whoever holds them, and where nobody does any more."""
        for attempt_id in message.request_ids:
            pending = self._running(attempt_id)
            if pending is not None and pending.lease is not None:
                self.first_token(pending.lease)
            elif self.own is not None:
                self.own.first_token(attempt_id)

    def died(self, lease: Lease) -> None:
        """The lease's replica, or its engine, died while it ran; `refused` or `release` comes next."""
        self.replicas.set_aside(lease.replica_id)
        if self._owner is not None:
            self._owner.died(lease.attempt_id)

    def release(self, lease: Lease, ending: Ending) -> None:
        """Ends a lease; one that ended before (its replica was lost) is left alone."""
        pending = self._pending_requests.get(lease.request.request_id)
        if pending is not None and pending.holds(lease):
            del self._pending_requests[lease.request.request_id]
            if self._owner is not None:
                self._owner.release(lease.attempt_id, ending)

    def refused(self, lease: Lease, state: ReplicaState | None) -> None:
        """The replica took no work (it drains; None: no connection): the request waits again, and `placement` must be
        awaited again."""
        self.replicas.set_aside(lease.replica_id)
        pending = self._wait_again(lease)
        if self._owner is not None:
            pending.owner = self._owner
            self._owner.refused(self, lease, state)

    def came_back(self, lease: Lease, refusal: HopRefusal) -> None:
        """The peer cell does not have the request: it waits again, and `placement` must be awaited again."""
        pending = self._wait_again(lease)
        if refusal is HopRefusal.LOST:
            pending.request = replace(pending.request, hops=1)
        if self._owner is not None:
            pending.owner = self._owner
            self._owner.refused(self, replace(lease, request=pending.request), refusal)

    def overtaken(self, lease: Lease, highest: int) -> None:
        """The engine has seen a later epoch than the lease's, `highest`: nothing was done, and the request waits for
        the later owner."""
        pending = self._wait_again(lease)
        if self._owner is not None:  # also a later owner knows of the lease
            self._owner.release(lease.attempt_id, Ending.FAILED)
        if self._owner is not None and self._owner.epoch > pending.epoch:
            pending.again_s = 0.0
            self.hand_on(time.monotonic())
            return
        pending.again_s = time.monotonic() + RESUBMIT_S
        if self.own is not None:
            self.on_overtaken(highest)

    def too_long(self, lease: Lease) -> None:
        """The request is longer than was estimated, and than its replica's context: it waits for a longer one."""
        pending, longest = self._wait_again(lease), self.replicas.context_of(lease.replica_id)
        pending.request = replace(pending.request, max_prompt_tokens=longest + 1)
        if self._owner is not None:
            self._owner.release(lease.attempt_id, Ending.FAILED)
        pending.again_s = 0.0
        self.hand_on(time.monotonic())

    def when_lost(self, lease: Lease, tell: Callable[[], None]) -> None:
        """`tell` is called if the lease's replica, or peer cell, is lost while the lease stands."""
        self._pending_requests[lease.request.request_id].tell_lost = tell

    def hand_on(self, now: float) -> None:
        """Hands what nobody has to the owner, and gives up what waited too long without one. Called now and then."""
        for pending in list(self._pending_requests.values()):
            if pending.owner is not None or pending.lease is not None:
                continue
            if pending.request.expires_s <= now:
                self.expired(pending.request.request_id)
            elif self._owner is not None and pending.again_s <= now:
                self.handed_on += pending.admitted
                self._submit(pending, self._owner)

    def admitted(self, request_id: str, admission: Admission) -> None:
        if (pending := self._pending_requests.get(request_id)) is None:
            return
        pending.admitted = pending.admitted or admission.accepted
        if pending.admission.done():
            pending.hear_again(admission)
        else:
            pending.admission.set_result(admission)

    def placed(self, placement: Placement, url: str) -> None:
        pending = self._pending_requests.get(placement.request.request_id)
        assert self._owner is not None
        if pending is None or pending.placement.done():  # it was given up a moment ago
            self._owner.release(placement.lease.attempt_id, Ending.CANCELLED)
            return
        pending.lease, pending.url, pending.epoch = placement.lease, url, self._owner.epoch
        pending.placement.set_result(placement)

    def handed_over(self, peer_lease: PeerLease) -> None:
        pending = self._pending_requests.get(peer_lease.lease.request.request_id)
        assert self._owner is not None
        if pending is None or pending.placement.done():  # it was given up a moment ago
            self._owner.release(peer_lease.lease.attempt_id, Ending.CANCELLED)
            return
        pending.lease, pending.epoch = peer_lease.lease, self._owner.epoch
        pending.placement.set_result(peer_lease)

    def recalled(self, attempt_id: str) -> None:
        pending = self._running(attempt_id)
        if pending is not None:
            pending.lose()

    def guest_refused(self, request_id: str, refusal: HopRefusal) -> None:
        """`submit` raises GuestNotTaken."""
        pending = self._pending_requests.pop(request_id, None)
        if pending is not None and not pending.admission.done():
            pending.admission.set_exception(GuestNotTaken(refusal))

    def expired(self, request_id: str) -> None:
        if (pending := self._pending_requests.get(request_id)) is not None:
            pending.expire()

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
        for pending in list(self._pending_requests.values()):
            if pending.lease is not None and pending.lease.replica_id == replica_id and not pending.complete:
                pending.lose()

    def finished(self, message: Finished) -> None:
        """A replica's account of a request, whoever's it was."""
        self.losses.dropped(message, time.monotonic())
        pending = self._running(message.request_id)
        if pending is not None:
            pending.complete = message.sequences > 0
        if self.own is not None:
            self.own.finished(message)

    def snapshot(self) -> Snapshot | None:
        """The scheduler's snapshot now, if this gateway owns the model."""
        return None if self.own is None else self.own.snapshot()

    def __len__(self) -> int:
        return len(self._pending_requests)

    @property
    def held(self) -> Lost:
        """The requests that are lost with this gateway, if it ends now."""
        return lost_with(self._pending_requests.values())

    def _running(self, attempt_id: str) -> PendingRequest | None:
        """The pending request that holds this lease now."""
        pending = self._pending_requests.get(attempt_id.rpartition("-")[0])
        holds = pending is not None and pending.lease is not None and pending.lease.attempt_id == attempt_id
        return pending if holds else None

    def _submit(self, pending: PendingRequest, owner: Owner) -> None:
        pending.owner = owner
        owner.submit(self, pending.request, pending.admitted, pending.hop)

    def _wait_again(self, lease: Lease) -> PendingRequest:
        pending = self._pending_requests[lease.request.request_id]
        pending.wait_again(lease.attempt)
        return pending

    def _give_up(self, pending: PendingRequest) -> None:
        """Nobody waits for the pending request any more."""
        request_id = pending.request.request_id
        pending.read()
        if self._pending_requests.pop(request_id, None) is None or self._owner is None:
            return
        if pending.lease is not None:
            self._owner.release(pending.lease.attempt_id, Ending.CANCELLED)
        elif pending.owner is not None:
            self._owner.cancel(request_id)
