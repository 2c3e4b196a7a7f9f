"""A simulated cell among others: the events of `CellSimulator`, and beside them what the gateway asks of the production
peering (`deployments/peering`) for its own clients, the guests that it runs for its peers, what crosses the links, and
what befalls it. Driven by `cells.py`."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from cluster.spec import ClusterSpec
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.engine import Boundary
from deployments.engine_model.sequence import Sequence as EngineSequence
from deployments.peering import (
    CellPeering,
    Digest,
    HandedOver,
    Here,
    HopFacts,
    HopRefusal,
    ModelDigest,
    Offer,
    Question,
    Stay,
    model_digest,
    remaining_s,
)
from deployments.scheduling import (
    Admission,
    Blame,
    Ending,
    Lease,
    Placement,
    RejectCause,
    Request,
    Usage,
    WaitingRequest,
)
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.fleet import SimulatedReplica
from planning.simulator.outcome import CAUSES, Life
from planning.simulator.workload import Workload

FIRST_ANSWER_TOKENS = 256
"""What is expected of an answer whose length nobody bounds: only for the room that it takes at a peer."""


class Links(Protocol):
    """What lies between the cells, and what is kept of the requests of all of them."""

    workload: Workload
    refusals: Counter[str]
    hops: list[tuple[float, str, str]]
    served: "dict[int, PeeredCell]"
    """Which cell placed a request last, as far as its home knows."""
    broken: set[int]
    refused: set[int]

    @property
    def arrived(self) -> bool:
        """Whether nothing arrives any more."""
        ...

    def answers(self, index: int, now: float) -> None:
        """The first byte of an answer leaves the cell that its client has asked."""
        ...

    def answered(self, index: int, now: float) -> None:
        """The last one does."""
        ...

    def rejected(self, index: int, cell: str, now: float) -> None:
        """A cell has no room for a request of its own clients, and no peer took it."""
        ...

    def carry(self, sender: "PeeredCell", target: str, call: "Callable[[PeeredCell, float], None]") -> None:
        """A message of a hand-over crosses a link."""
        ...


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One cell: its name and its model's in the spec, what it runs, and what a replica costs an hour (US dollars;
    None: not known)."""

    name: str
    model: str
    settings: CellSettings
    cost: CostModel
    usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """An own request in no lane: offered to a peer, or rejected for that cause (None: it may not be served here).
    `wait_s`: how long it would wait here (None: for ever)."""

    request: Request
    cause: RejectCause | None = None
    wait_s: float | None = None


class PeeredCell(CellSimulator):
    """One of the cells, from its start to its loss; `CellsSimulator` drives it, by `next_s` and `turn`. `own`: the
    requests that arrive here, from `began_s` on; no replica runs yet if that is not the beginning."""

    def __init__(
        self,
        cells: Links,
        plan: CellPlan,
        spec: ClusterSpec,
        own: Sequence[int],
        epoch: int = 1,
        began_s: float = 0.0,
    ) -> None:
        self.name = plan.name
        self.peering = CellPeering(spec, plan.name, epoch)
        self.alive = True
        self.lost_s = math.inf
        self._cells = cells
        self._model = plan.model
        self._usd_per_hour = plan.usd_per_hour
        self._began_s = began_s
        self._open: set[int] = set()
        """Own requests that have not ended, wherever they are."""
        self._waiting: dict[int, Request] = {}
        """Own requests that wait here."""
        self._outside: dict[int, Outside] = {}
        """Own requests that have no lane here, and are with a peer."""
        self._away: dict[int, Lease] = {}
        """Of own requests that have left their lane for a peer."""
        self._there: set[int] = set()
        """Own requests that a peer has said to have."""
        self._guests: dict[int, HopFacts] = {}
        self._leases: dict[int, tuple[Lease, SimulatedReplica]] = {}
        """What guests hold here, and what of it has reached its engine."""
        self._running: dict[int, EngineSequence] = {}
        self._stated: tuple[float, ModelDigest] | None = None
        arrived_s = cells.workload.arrived_s
        self._own = [(float(arrived_s[index]), index) for index in own]
        self._next_own = 0
        settings = plan.settings
        if began_s:
            settings = replace(settings, replicas=0, groups=tuple(replace(one, replicas=0) for one in settings.groups))
        super().__init__(settings, plan.cost, cells.workload)
        for loop in self.scalings.values():
            loop.peers_spare = partial(self.peering.spare, self._model)

    # The clock.
    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        super().at(max(time_s, self._began_s), call)

    @property
    def idle(self) -> bool:
        return self._cells.arrived and self.scheduler.is_idle

    def next_s(self) -> float:
        """When something happens here next."""
        boundaries, replicas = self._boundaries, self.replicas
        while boundaries and replicas[boundaries[0][1]].engine.next_s != boundaries[0][0]:
            heapq.heappop(boundaries)
        boundary_s = boundaries[0][0] if boundaries else math.inf
        call_s = self._calls[0][0] if self._calls else math.inf
        return min(boundary_s, call_s, self._next_arrival_s(), self._wakeup_s)

    def turn(self, now: float) -> None:
        """What happens at `next_s`, in the order of `CellSimulator.run`."""
        boundaries, calls = self._boundaries, self._calls
        if boundaries and boundaries[0][0] == now:
            self._advance(self.replicas[heapq.heappop(boundaries)[1]], now)
        elif calls and calls[0][0] == now:
            heapq.heappop(calls)[2](now)
        elif self._next_arrival_s() == now:
            self._next_own += 1
            self.arrive(self._own[self._next_own - 1][1], now)
        else:
            self.step(now)

    def _next_arrival_s(self) -> float:
        return self._own[self._next_own][0] if self._next_own < len(self._own) else math.inf

    def to_come(self) -> list[tuple[float, int]]:
        """Own requests that have not arrived, with their times."""
        return self._own[self._next_own :]

    # Its own requests.
    def arrive(self, index: int, now: float) -> None:
        """An own request arrives, or one whose client has found no other cell."""
        if index in self._guests:  # its client comes by itself: the home that handed it over is lost
            self.drop(now, index)
        self._forget(index, now)
        request = self._request(index, self._maxima[index] or None, now)
        self._open.add(index)
        if not self.peering.may_serve(self._model, request):
            self._outside[index] = Outside(request)
            self._offer_or_reject(index, now)
            return
        self._waiting[index] = request
        admission = self._arrive(index, now)
        if admission.cause is not None:
            self._turned_away(index, admission, now)
        if index in self._waiting:
            own = self._own_digest(now)
            decision = self.peering.decide(self._wait(index, own, now), own, now)
            if not isinstance(decision, Stay):
                self._send(decision, now)
                self.step(now)

    def _forget(self, index: int, now: float) -> None:
        """What became of the request when it was here before."""
        out = self.outcome
        out.arrived_s[index], out.cause[index] = now, -1
        for column in (out.first_s, out.finished_s, out.expired_s, out.eta_p95_s):
            column[index] = math.nan

    def _turned_away(self, index: int, admission: Admission, now: float) -> None:
        """It has no lane here, or leaves it in vain: where there is no room, a peer is asked, as by
        `deployments/ownership/peering.py`."""
        request = self._waiting.pop(index, None)
        if request is None:
            return
        self.outcome.cause[index] = -1
        wait_s = request.expires_s - now
        if admission.eta_s is not None:
            wait_s = min(admission.eta_s[1], wait_s)
        self._outside[index] = Outside(request, admission.cause, wait_s)
        if admission.cause is None or admission.cause.blame is not Blame.ROOM:
            self._reject(index, now)
        else:
            self._offer_or_reject(index, now)

    def _offer_or_reject(self, index: int, now: float) -> None:
        """A request that has no lane here, and is with nobody."""
        own, outside = self._own_digest(now), self._outside[index]
        request = outside.request
        tokens = request.max_tokens or FIRST_ANSWER_TOKENS
        wait = WaitingRequest(request, self._lane_of(request), outside.wait_s, tokens)
        decision = self.peering.decide(wait, own, now)
        if isinstance(decision, Stay):
            self._reject(index, now)
        else:
            self._send(decision, now)

    def _reject(self, index: int, now: float) -> None:
        """No cell takes it."""
        outside = self._outside.get(index)
        if outside is None or outside.cause is None:
            self._cells.refused.add(index)
        else:
            self.outcome.cause[index] = CAUSES.index(outside.cause)
        self._over_at_home(index)
        self._cells.rejected(index, self.name, now)

    def _came_back(self, index: int, refusal: HopRefusal, now: float) -> None:
        """A request that a peer does not have waits here again, by its old times; without a place here it goes to
        another peer, or is over where it has had its one hop and may not be served here."""
        self.peering.came_back(str(index), refusal, now)
        self._there.discard(index)
        self._cells.served.pop(index, None)
        lease = self._away.pop(index, None)
        if lease is None and refusal is not HopRefusal.LOST:
            self._offer_or_reject(index, now)
            return
        if lease is None:
            request = replace(self._outside[index].request, hops=1)
            if not self.peering.may_serve(self._model, request):
                self._reject(index, now)
                return
            del self._outside[index]
            self.scheduler.submit(request, now, admitted=True)
        else:
            request = lease.request
            self.scheduler.put_back(str(index), now)
        self._waiting[index] = request
        self.outcome.eta_p95_s[index] = math.nan
        self.step(now)

    def _send(self, offer: Offer, now: float) -> None:
        """A request leaves its lane, where it has one, for a peer, which is to say soon whether it takes it."""
        index = int(offer.hop.request_id)
        request = self._waiting.pop(index, None)
        lease = self.scheduler.withdraw(str(index), now)
        if lease is not None:
            self._away[index] = lease
        self.at(now + offer.answer_s, partial(self._unanswered, index, offer.hop.number))
        self.send(offer, request or self._outside[index].request)

    def _unanswered(self, index: int, number: int, now: float) -> None:
        hop = self._hop(index, number)
        if hop is not None and index not in self._there:
            self.withdraw(index, hop.peer)
            self._came_back(index, HopRefusal.UNREACHABLE, now)

    def _hop(self, index: int, number: int) -> HandedOver | None:
        """The hand-over of that number, while it is the request's."""
        hop = self.peering.away.get(str(index))
        return hop if hop is not None and hop.number == number else None

    def _over_at_home(self, index: int) -> None:
        """An own request has ended, or is rejected."""
        self._waiting.pop(index, None)
        self._outside.pop(index, None)
        self._away.pop(index, None)
        self._there.discard(index)
        self._open.discard(index)
        self.peering.over(str(index))

    def _gave_up(self, index: int, now: float) -> None:
        if not self._is_guest_over(index):
            self.outcome.expired_s[index] = now
            self._over_at_home(index)
            self._cells.rejected(index, self.name, now)

    def _sent_away(self, index: int, admission: Admission, now: float) -> None:
        if not self._is_guest_over(index):
            self._turned_away(index, admission, now)

    # Digests.
    def digest(self, question: Question, now: float) -> Digest:
        """As the answer to a peer's question."""
        return self.peering.answer(question, (self._own_digest(now),))

    def heard(self, now: float, digest: Digest) -> None:
        """A peer's digest came: what waits is decided on again."""
        if self.peering.heard(digest, now) is None and self._waiting:
            own = self._own_digest(now)
            waits = (self._wait(index, own, now) for index in self._waiting)
            for offer in self.peering.reconsider(waits, own, now):
                self._send(offer, now)
            self.step(now)

    def _own_digest(self, now: float) -> ModelDigest:
        if self._stated is None or self._stated[0] != now:
            pressed = self.peering.hands_over(self._model, now)
            self._stated = now, model_digest(self._model, self.scheduler.snapshot(now), self._usd_per_hour, pressed)
        return self._stated[1]

    def _wait(self, index: int, own: ModelDigest, now: float) -> WaitingRequest:
        lane = self._settings.policy.lanes[int(self.outcome.lane[index])].name
        stated, p95_s = own.lane(lane), float(self.outcome.eta_p95_s[index])
        lane_s = None if stated is None else stated.p95_s
        request = self._waiting[index]
        if lane_s is not None and not math.isnan(p95_s):
            lane_s = remaining_s(p95_s, now - request.arrived_s, lane_s)
        return WaitingRequest(request, lane, lane_s, request.max_tokens or FIRST_ANSWER_TOKENS)

    def _lane_of(self, request: Request) -> str:
        policy = self._settings.policy
        return policy.lanes[policy.lane_of(request.prompt_tokens + (request.max_tokens or FIRST_ANSWER_TOKENS))].name

    # Its own requests that are with a peer.
    def send(self, offer: Offer, request: Request) -> None:
        self._cells.carry(self, offer.peer, partial(PeeredCell.take, hop=offer.hop, request=request))

    def withdraw(self, index: int, peer: str) -> None:
        self._cells.carry(self, peer, partial(PeeredCell.drop, index=index))

    def taken(self, now: float, index: int, number: int, peer: "PeeredCell") -> None:
        """The peer took it."""
        if self._hop(index, number) is not None:
            self._there.add(index)
            self._cells.served[index] = peer

    def first_byte(self, now: float, index: int, number: int, peer: "PeeredCell") -> None:
        """The client gets its first byte."""
        if self._hop(index, number) is not None:
            self._cells.answers(index, now)
            self._cells.served[index] = peer
            self.peering.first_token(str(index), now, self._workload.prefix[index])
            self.scheduler.first_token_away(str(index), now)

    def rejected(self, now: float, index: int, number: int, refusal: HopRefusal) -> None:
        """The peer rejected it."""
        self._cells.refusals[refusal] += 1
        if self._hop(index, number) is not None:
            self._came_back(index, refusal, now)

    def finished(self, now: float, index: int, number: int, usage: Usage) -> None:
        """The client has the whole answer, and the peer has told what its engine counted."""
        if self._hop(index, number) is not None:
            self._cells.answered(index, now)
            self.scheduler.cancel(str(index), now)
            if (lease := self._away.get(index)) is not None:
                self.scheduler.learn(lease, usage, now)
            self._over_at_home(index)

    def broke(self, now: float, index: int, number: int) -> None:
        """The peer has given it up, or is gone."""
        hop = self._hop(index, number)
        if hop is None:
            return
        if hop.answers:
            self._cells.broken.add(index)
            self.scheduler.cancel(str(index), now)
            self._over_at_home(index)
        else:
            self._came_back(index, HopRefusal.LOST if index in self._there else HopRefusal.UNREACHABLE, now)

    def sweep(self, now: float) -> None:
        """Recalls what silent peers have."""
        for request_id in self.peering.overdue(now):
            hop = self.peering.away[request_id]
            self.withdraw(int(request_id), hop.peer)
            self.broke(now, int(request_id), hop.number)

    def peer_gone(self, peer: str, now: float) -> None:
        """The connections to a peer have broken: those of own requests, and those of its guests."""
        self.peering.peers.unreachable(peer)
        for request_id, hop in tuple(self.peering.away.items()):
            if hop.peer == peer:
                self.broke(now, int(request_id), hop.number)
        for index in [index for index, hop in self._guests.items() if hop.home == peer]:
            self.drop(now, index)

    # As a peer.
    def take(self, now: float, hop: HopFacts, request: Request) -> None:
        """A peer hands over a request."""
        own, index = self._own_digest(now), int(hop.request_id)
        if index in self._open:  # its home is lost, and its client has asked here
            return
        lane = own.lane(self._lane_of(request))
        refusal = self.peering.take(hop, Here(own.load, None if lane is None else lane.p95_s), now)
        if refusal is None:
            self._guests[index] = hop
            self._stated = None
            admission = self.scheduler.submit(replace(hop.guest(request, now), request_id=str(index)), now)
            refusal = None if admission.accepted else HopRefusal.REJECTED
        if refusal is not None:
            self._guests.pop(index, None)
            call = partial(PeeredCell.rejected, index=index, number=hop.number, refusal=refusal)
            self._cells.carry(self, hop.home, call)
            return
        self._cells.hops.append((now, hop.home, self.name))
        self._cells.carry(self, hop.home, partial(PeeredCell.taken, index=index, number=hop.number, peer=self))
        self.step(now)

    def drop(self, now: float, index: int) -> None:
        """Its home does not need it any more: it leaves its lane, or its engine."""
        hop = self._guests.pop(index, None)
        if hop is None:
            return
        held, sequence = self._leases.pop(index, None), self._running.pop(index, None)
        if held is None:
            self.scheduler.cancel(str(index), now)
        else:
            lease, replica = held
            if sequence is not None:
                replica.engine.abort(sequence, now)
                heapq.heappush(self._boundaries, (replica.engine.next_s, replica.number))
            self.scheduler.release(lease, Ending.CANCELLED, None, now)
            replica.leases -= 1
            self.fleet.gone_if_done(replica, now)
        self.step(now)

    def _is_guest_over(self, index: int) -> bool:
        """Whether it is a guest's request; then its home learns that nothing comes of it here."""
        hop = self._guests.pop(index, None)
        if hop is None:
            return False
        self._leases.pop(index, None)
        self._running.pop(index, None)
        self._cells.carry(self, hop.home, partial(PeeredCell.broke, index=index, number=hop.number))
        return True

    def _place(self, placement: Placement, now: float) -> None:
        index = int(placement.request.request_id)
        if index in self._guests:
            self._leases[index] = placement.lease, self.fleet.by_name[placement.lease.replica_id]
        else:
            self._waiting.pop(index, None)
            self._cells.served[index] = self
        super()._place(placement, now)

    def lost(self, lease: Lease, now: float) -> None:
        """One that has no byte yet is placed again, as by the gateway that waits for its answer."""
        index = int(lease.request.request_id)
        if math.isnan(self.outcome.first_s[index]):
            self._leases.pop(index, None)
            self._running.pop(index, None)
            if index not in self._guests:
                self._waiting[index] = lease.request
            self.scheduler.submit(replace(lease.request, attempts=lease.attempt), now, admitted=True)
            return
        super().lost(lease, now)
        if not self._is_guest_over(index):
            self._cells.broken.add(index)
            self._over_at_home(index)

    def _reach(self, sequence: EngineSequence, replica: SimulatedReplica, now: float) -> None:
        if not self._is_dropped(sequence):
            if sequence.tag.lease.request.guest_of:
                self._running[sequence.tag.index] = sequence
            super()._reach(sequence, replica, now)

    def _is_dropped(self, sequence: EngineSequence) -> bool:
        """A guest's that its home does not need any more, or one of a replica that is lost."""
        running = sequence.tag
        gone = running.lease.request.guest_of != "" and running.index not in self._leases
        return gone or not running.replica.serves

    def _answer(self, boundary: Boundary, now: float) -> None:
        if any(map(self._is_dropped, boundary.first)) or any(map(self._is_dropped, boundary.finished)):
            first, finished = (
                tuple(sequence for sequence in sequences if not self._is_dropped(sequence))
                for sequences in (boundary.first, boundary.finished)
            )
            boundary = Boundary(first, finished)
        super()._answer(boundary, now)
        for sequence in boundary.first:
            hop = self._guests.get(sequence.tag.index)
            if hop is None:
                self._cells.answers(sequence.tag.index, now)
            else:
                call = partial(PeeredCell.first_byte, index=sequence.tag.index, number=hop.number, peer=self)
                self._cells.carry(self, hop.home, call)
        for sequence in boundary.finished:
            index = sequence.tag.index
            hop = self._guests.pop(index, None)
            if hop is None:
                self._cells.answered(index, now)
                self._over_at_home(index)
            else:
                self._leases.pop(index, None)
                self._running.pop(index, None)
                usage = Usage(sequence.prompt, 0, sequence.output, 0)
                call = partial(PeeredCell.finished, index=index, number=hop.number, usage=usage)
                self._cells.carry(self, hop.home, call)

    # What befalls it.
    def lose(self, now: float) -> set[int]:
        """The cell is gone. Returns its own requests that had not ended."""
        self.alive, self.lost_s = False, now
        for replica in self.replicas:
            replica.ended_s = min(replica.ended_s, now)
        return self._open

    def start_again(self, lost: "PeeredCell", now: float) -> None:
        """The replicas that it had when it was lost start anew."""
        for before in lost.replicas:
            if before.ended_s == lost.lost_s and not before.draining:
                kind = self.fleet.kinds[before.kind.group]
                self.fleet.start(kind, now, kind.start_up_s)

    def lives(self, now: float) -> list[Life]:
        """Of all replicas that it had."""
        return [replica.life(now) for replica in self.replicas]
