"""A simulated cell among others: the events of `CellSimulator`, and beside them what the gateway does for the
production peering (`deployments/peering`). Driven by `cells.py`."""

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
from deployments.peering import (
    CellPeering,
    Digest,
    Here,
    HopAct,
    HopFacts,
    HopRefusal,
    ModelDigest,
    Offer,
    Question,
    Stay,
    Wait,
    model_digest,
    remaining_s,
)
from deployments.scheduling import Placement, Request
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import CAUSES
from planning.simulator.workload import Workload

_FIRST_ANSWER_TOKENS = 256
"""What is expected of an answer whose length nobody bounds: only for the room that it takes at a peer."""


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One cell: its name in the spec, what it runs, and what a million tokens of work cost there (None: not known)."""

    name: str
    settings: CellSettings
    cost: CostModel
    usd_per_mtok: float | None = None


class Links(Protocol):
    """What lies between the cells."""

    workload: Workload
    reasons: Counter[str]
    refusals: Counter[str]
    hops: list[tuple[float, str, str]]

    def carry(self, sender: "PeeredCell", target: str, call: "Callable[[PeeredCell, float], None]") -> None:
        """Something crosses a link."""
        ...


class PeeredCell(CellSimulator):
    """One of the cells. It is driven by `CellsSimulator`, by `next_s` and `turn`."""

    def __init__(self, cells: Links, plan: CellPlan, spec: ClusterSpec, own: Sequence[int]) -> None:
        self.name = plan.name
        self.peering = CellPeering(spec, plan.name, 1)
        self.served_by: dict[int, str] = {}
        """Own requests that a peer has."""
        self._cells = cells
        self._model = spec.models[0].name
        self._usd_per_mtok = plan.usd_per_mtok
        self._waiting: dict[int, Request] = {}
        self._guests: dict[int, HopFacts] = {}
        self._stated: tuple[float, ModelDigest] | None = None
        arrived_s = cells.workload.arrived_s.tolist()
        self._own = [(arrived_s[index], index) for index in own]
        self._next_own = 0
        super().__init__(plan.settings, plan.cost, cells.workload)

    # The clock.
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
            self._arrive(self._own[self._next_own - 1][1], now)
        else:
            self.step(now)

    def _next_arrival_s(self) -> float:
        return self._own[self._next_own][0] if self._next_own < len(self._own) else math.inf

    # What the cell does, and peering beside it.
    def _arrive(self, index: int, now: float) -> None:
        self._waiting[index] = self._request(index, now)
        super()._arrive(index, now)
        if self.outcome.cause[index] >= 0:
            self._waiting.pop(index, None)
        if index in self._waiting:
            own = self._own_digest(now)
            decision = self.peering.decide(self._wait(index, own, now), own, now)
            if isinstance(decision, Stay):
                self._cells.reasons[decision.reason] += 1
            else:
                self._send(decision, now)

    def step(self, now: float) -> None:
        step = self.scheduler.step(now)
        for gone in step.expired:
            self._gave_up(int(gone.request_id), now)
        for refused in step.turned_away:
            index = int(refused.request.request_id)
            if refused.admission.cause is not None:
                self.outcome.cause[index] = CAUSES.index(refused.admission.cause)
            self._left(index, now)
        for placement in step.placements:
            self._place(placement, now)
        wakeup = self.scheduler.next_wakeup()
        self._wakeup_s = math.inf if wakeup is None else max(wakeup, math.nextafter(now, math.inf))

    def _gave_up(self, index: int, now: float) -> None:
        hop = self._guests.pop(index, None)
        if hop is None:
            self.outcome.expired_s[index] = now
            self._left(index, now)
        else:
            self.peering.over(hop.guest_id)
            self._cells.carry(self, hop.home, partial(PeeredCell.broke, index=index, number=hop.number))

    def _place(self, placement: Placement, now: float) -> None:
        self._left(int(placement.request.request_id), now)
        super()._place(placement, now)

    def _left(self, index: int, now: float) -> None:
        """An own request waits no more: a peer that was asked meanwhile is to drop it."""
        if self._waiting.pop(index, None) is None:
            return
        hop = self.peering.hops.get(str(index))
        if self.peering.left_home(str(index)) is HopAct.CANCEL_THERE and hop is not None:
            self._cells.carry(self, hop.peer, partial(PeeredCell.drop, index=index))
        self.peering.over(str(index))

    def _answer(self, boundary: Boundary, now: float) -> None:
        super()._answer(boundary, now)
        for sequence in boundary.first:
            hop = self._guests.get(sequence.tag.index)
            if hop is not None:
                call = partial(PeeredCell.first_byte, index=sequence.tag.index, number=hop.number)
                self._cells.carry(self, hop.home, call)
        for sequence in boundary.finished:
            hop = self._guests.pop(sequence.tag.index, None)
            if hop is not None:
                self.peering.over(hop.guest_id)
                self._cells.carry(
                    self, hop.home, partial(PeeredCell.finished, index=sequence.tag.index, number=hop.number)
                )

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

    def _own_digest(self, now: float) -> ModelDigest:
        if self._stated is None or self._stated[0] != now:
            pressed = self.peering.hands_over(self._model, now)
            stated = model_digest(self._model, self.scheduler.snapshot(now), self._usd_per_mtok, pressed)
            self._stated = now, stated
        return self._stated[1]

    def _wait(self, index: int, own: ModelDigest, now: float) -> Wait:
        lane = self._settings.policy.lanes[int(self.outcome.lane[index])].name
        stated, p95_s = own.lane(lane), float(self.outcome.eta_p95_s[index])
        lane_s = None if stated is None else stated.p95_s
        if lane_s is not None and not math.isnan(p95_s):
            lane_s = remaining_s(p95_s, now - float(self.outcome.arrived_s[index]), lane_s)
        request = self._waiting[index]
        return Wait(request, self._model, lane, lane_s, request.max_tokens or _FIRST_ANSWER_TOKENS)

    def _request(self, index: int, now: float) -> Request:
        work, traffic_class = self._workload, self._workload.traffic_class[index]
        return Request(
            str(index),
            self._prompts[index],
            self._maxima[index] or None,
            now,
            now + self._ttft_slos_s[index],
            now + self._settings.patience_s.get(traffic_class, self._settings.queue_wait_s),
            traffic_class=traffic_class,
            tenant=work.tenant[index],
            prefix=work.prefix[index],
            chunk_tokens=work.chunk_tokens,
        )

    # As a home.
    def _send(self, offer: Offer, now: float) -> None:
        self._cells.reasons[offer.decision.reason] += 1
        request = self._waiting[int(offer.hop.request_id)]
        self._cells.carry(self, offer.peer, partial(PeeredCell.take, hop=offer.hop, request=request))

    def taken(self, now: float, index: int, number: int) -> None:
        """The peer took it."""
        hop = self.peering.hops.get(str(index))
        request = self._waiting.get(index)
        act = self.peering.taken(str(index), number, () if request is None else request.prefix)
        if act is HopAct.LEAVE_LANE and hop is not None:
            self._waiting.pop(index, None)
            self.served_by[index] = hop.peer
            self.scheduler.cancel(str(index), now)
            self.step(now)

    def rejected(self, now: float, index: int, number: int, refusal: HopRefusal) -> None:
        """The peer rejected it."""
        self._cells.refusals[refusal] += 1
        self.peering.rejected(str(index), number, refusal, now)

    def first_byte(self, now: float, index: int, number: int) -> None:
        """The client gets its first byte."""
        self.peering.first_byte(str(index), number, now)

    def finished(self, now: float, index: int, number: int) -> None:
        """The client has the whole answer."""
        if self.peering.finished(str(index), number) is HopAct.END:
            self.peering.over(str(index))

    def broke(self, now: float, index: int, number: int) -> None:
        """The peer has given it up. It has waited for as long as it may."""
        if self.peering.broke(str(index), number) is not HopAct.NOTHING:
            self.served_by.pop(index, None)
            self.outcome.expired_s[index] = now
            self.peering.over(str(index))

    # As a peer.
    def take(self, now: float, hop: HopFacts, request: Request) -> None:
        """A peer hands over a request."""
        own, index = self._own_digest(now), int(hop.request_id)
        lane = own.lane(self._lane_of(request))
        refusal = self.peering.take(hop, Here(own.load, None if lane is None else lane.p95_s), now)
        if refusal is None:
            request = hop.guest(request, now)
            admission = self.scheduler.submit(replace(request, request_id=str(index)), now)
            refusal = None if admission.accepted else HopRefusal.REJECTED
        if refusal is not None:
            self.peering.over(hop.guest_id)
            call = partial(PeeredCell.rejected, index=index, number=hop.number, refusal=refusal)
            self._cells.carry(self, hop.home, call)
            return
        self._guests[index] = hop
        self._stated = None
        self._cells.hops.append((now, hop.home, self.name))
        self._cells.carry(self, hop.home, partial(PeeredCell.taken, index=index, number=hop.number))
        self.step(now)

    def drop(self, now: float, index: int) -> None:
        """Its home does not need it any more. What runs goes on, and its answer goes nowhere."""
        hop = self._guests.pop(index, None)
        if hop is not None:
            self.peering.over(hop.guest_id)
            self.scheduler.cancel(str(index), now)
            self.step(now)

    def _lane_of(self, request: Request) -> str:
        policy = self._settings.policy
        return policy.lanes[policy.lane_of(request.prompt_tokens + (request.max_tokens or _FIRST_ANSWER_TOKENS))].name
