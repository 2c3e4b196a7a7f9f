"""A simulated cell among others: what crosses the links between its home part (`home_cell.py`) and its peers, the
guests that it runs for them, and what befalls it. Driven by `cells.py`."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from cluster.spec import ClusterSpec
from deployments.engine_model.engine import Boundary
from deployments.engine_model.sequence import Sequence as EngineSequence
from deployments.peering import Here, HopFacts, HopRefusal, Offer
from deployments.scheduling import Admission, Ending, Lease, Placement, Request, Usage
from planning.simulator.cell_plan import CellPlan
from planning.simulator.fleet import SimulatedReplica
from planning.simulator.home_cell import HomeCell
from planning.simulator.kept import Kept
from planning.simulator.outcome import Life


class Links(Kept, Protocol):
    """What lies between the cells."""

    def carry(self, sender: "PeeredCell", target: str, call: "Callable[[PeeredCell, float], None]") -> None:
        """A message of a hand-over crosses a link."""
        ...


class PeeredCell(HomeCell):
    """One of the cells. See `HomeCell`."""

    def __init__(
        self,
        cells: Links,
        plan: CellPlan,
        spec: ClusterSpec,
        own: Sequence[int],
        epoch: int = 1,
        began_s: float = 0.0,
    ) -> None:
        self._cells = cells
        self.lost_s = math.inf
        self._guests: dict[int, HopFacts] = {}
        self._leases: dict[int, tuple[Lease, SimulatedReplica]] = {}
        """What guests hold here, and what of it has reached its engine."""
        self._running: dict[int, EngineSequence] = {}
        super().__init__(cells, plan, spec, own, epoch, began_s)

    # As a home.
    def send(self, offer: Offer, request: Request) -> None:
        self._cells.carry(self, offer.peer, partial(PeeredCell.take, hop=offer.hop, request=request))

    def withdraw(self, index: int, peer: str) -> None:
        self._cells.carry(self, peer, partial(PeeredCell.drop, index=index))

    def taken(self, now: float, index: int, number: int, peer: "PeeredCell") -> None:
        """The peer took it."""
        if self._hop(index, number) is not None:
            self._there.add(index)
            self._kept.served[index] = peer

    def first_byte(self, now: float, index: int, number: int, peer: "PeeredCell") -> None:
        """The client gets its first byte."""
        if self._hop(index, number) is not None:
            self._kept.answers(index, now)
            self._kept.served[index] = peer
            self.peering.first_token(str(index), now, self._workload.prefix[index])
            self.scheduler.first_token_away(str(index), now)

    def rejected(self, now: float, index: int, number: int, refusal: HopRefusal) -> None:
        """The peer rejected it."""
        self._kept.refusals[refusal] += 1
        if self._hop(index, number) is not None:
            self._came_back(index, refusal, now)

    def finished(self, now: float, index: int, number: int, usage: Usage) -> None:
        """The client has the whole answer, and the peer has told what its engine counted."""
        if self._hop(index, number) is not None:
            self._kept.answered(index, now)
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
            self._kept.broken.add(index)
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
        self._kept.hops.append((now, hop.home, self.name))
        self._cells.carry(self, hop.home, partial(PeeredCell.taken, index=index, number=hop.number, peer=self))
        self.step(now)

    def arrive(self, index: int, now: float) -> None:
        if index in self._guests:  # its client comes by itself: the home that handed it over is lost
            self.drop(now, index)
        super().arrive(index, now)

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

    def _gave_up(self, index: int, now: float) -> None:
        if not self._is_guest_over(index):
            super()._gave_up(index, now)

    def _sent_away(self, index: int, admission: Admission, now: float) -> None:
        if not self._is_guest_over(index):
            super()._sent_away(index, admission, now)

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
            self._kept.served[index] = self
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
            self._kept.broken.add(index)
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
                self._kept.answers(sequence.tag.index, now)
            else:
                call = partial(PeeredCell.first_byte, index=sequence.tag.index, number=hop.number, peer=self)
                self._cells.carry(self, hop.home, call)
        for sequence in boundary.finished:
            index = sequence.tag.index
            hop = self._guests.pop(index, None)
            if hop is None:
                self._kept.answered(index, now)
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
