"""A simulated cell as the home of requests: the events of `CellSimulator`, and beside them what the gateway asks of the
production peering (`deployments/peering`) for its own clients and says to its peers. What crosses a link, and what
befalls the cell, is in `peered_cell.py`."""

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cluster.spec import ClusterSpec
from deployments.peering import (
    CellPeering,
    Digest,
    HandedOver,
    HopRefusal,
    ModelDigest,
    Offer,
    Question,
    Stay,
    model_digest,
    remaining_s,
)
from deployments.scheduling import Admission, Blame, Lease, Request, WaitingRequest
from planning.simulator.cell import CellSimulator
from planning.simulator.cell_plan import CellPlan, settings_again
from planning.simulator.kept import Kept, Outside
from planning.simulator.outcome import CAUSES

FIRST_ANSWER_TOKENS = 256
"""What is expected of an answer whose length nobody bounds: only for the room that it takes at a peer."""


class HomeCell(CellSimulator, ABC):
    """One of the cells, from its start to its loss, without what comes from peers. It is driven by `CellsSimulator`, by
    `next_s` and `turn`. `own`: the requests that arrive here, from `began_s` on; no replica runs yet if that is not the
    beginning."""

    def __init__(
        self,
        cells: Kept,
        plan: CellPlan,
        spec: ClusterSpec,
        own: Sequence[int],
        epoch: int = 1,
        began_s: float = 0.0,
    ) -> None:
        self.name = plan.name
        self.peering = CellPeering(spec, plan.name, epoch)
        self.alive = True
        self._kept = cells
        self._model = spec.models[0].name
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
        self._stated: tuple[float, ModelDigest] | None = None
        arrived_s = cells.workload.arrived_s
        self._own = [(float(arrived_s[index]), index) for index in own]
        self._next_own = 0
        settings = plan.settings if began_s == 0.0 else settings_again(plan.settings)
        super().__init__(settings, plan.cost, cells.workload)
        for loop in self.scalings.values():
            loop.peers_spare = partial(self.peering.spare, self._model)

    @abstractmethod
    def send(self, offer: Offer, request: Request) -> None:
        """A request goes to a peer."""

    @abstractmethod
    def withdraw(self, index: int, peer: str) -> None:
        """The peer is to drop a request."""

    # The clock.
    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        super().at(max(time_s, self._began_s), call)

    @property
    def idle(self) -> bool:
        return self._kept.arrived and self.scheduler.is_idle

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
        self._forget(index, now)
        request = self._request(index, now)
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
            if isinstance(decision, Stay):
                self._kept.reasons[decision.reason] += 1
            else:
                self._send(decision, now)
                self.step(now)

    def _forget(self, index: int, now: float) -> None:
        """What became of the request when it was here before."""
        out = self.outcome
        out.arrived_s[index], out.cause[index] = now, -1
        for column in (out.first_s, out.finished_s, out.expired_s, out.eta_p50_s, out.eta_p95_s):
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
            self._kept.reasons[decision.reason] += 1
            self._reject(index, now)
        else:
            self._send(decision, now)

    def _reject(self, index: int, now: float) -> None:
        """No cell takes it."""
        outside = self._outside.get(index)
        if outside is None or outside.cause is None:
            self._kept.refused.add(index)
        else:
            self.outcome.cause[index] = CAUSES.index(outside.cause)
        self._over_at_home(index)
        self._kept.rejected(index, self.name, now)

    def _came_back(self, index: int, refusal: HopRefusal, now: float) -> None:
        """A request that a peer does not have waits here again, by its old times; without a place here it goes to
        another peer, or is over where it has had its one hop and may not be served here."""
        self.peering.came_back(str(index), refusal, now)
        self._there.discard(index)
        self._kept.served.pop(index, None)
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
        self._kept.reasons[offer.hop.reason] += 1
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

    def step(self, now: float) -> None:
        step = self.scheduler.step(now)
        for gone in step.expired:
            self._gave_up(int(gone.request_id), now)
        for refused in step.turned_away:
            self._sent_away(int(refused.request.request_id), refused.admission, now)
        for placement in step.placements:
            self._place(placement, now)
        wakeup = self.scheduler.next_wakeup()
        self._wakeup_s = math.inf if wakeup is None else max(wakeup, math.nextafter(now, math.inf))

    def _gave_up(self, index: int, now: float) -> None:
        """A request's wait is over, and it was not placed."""
        self.outcome.expired_s[index] = now
        self._over_at_home(index)
        self._kept.rejected(index, self.name, now)

    def _sent_away(self, index: int, admission: Admission, now: float) -> None:
        """A request waited in vain for a replica that starts."""
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
            digest=work.digest_of(index),
        )

    def _lane_of(self, request: Request) -> str:
        policy = self._settings.policy
        return policy.lanes[policy.lane_of(request.prompt_tokens + (request.max_tokens or FIRST_ANSWER_TOKENS))].name
