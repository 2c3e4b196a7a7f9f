"""Peering of one cell: what it asks its peers and answers them, what it hands over, what it takes.

The shell gives facts and the time (its own monotonic clock), carries messages, and does what is returned. The gateway,
the simulator and the tests drive the same object. A request that is offered keeps its place in the lane at home until
the peer has taken it; whoever is first serves it, and the other one drops it (`hops.py`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.spec import ClusterSpec
from deployments.peering.decision import HandOver, HandOverCandidate, Home, Stay, decide, stays_in_time
from deployments.peering.digest import Digest, ModelDigest, Question
from deployments.peering.hops import HandedOver, Hops, HopState
from deployments.peering.peers import Footprint, KnownPeers
from deployments.peering.reasons import DigestRefusal, HandOverReason, HopAct, HopRefusal, StayReason
from deployments.peering.reception import Here, HopFacts, Reception
from deployments.peering.rules import Rules
from deployments.peering.tenant_use import UseElsewhere
from deployments.scheduling import Request, TenantUse

_ANSWER_S = 0.25
"""A peer answers an offer at once, so that the answer takes a round trip; this much more is patience."""
_UPLOAD_BYTES_PER_S = 1_000_000
"""An offer's body may be so slow on its way: a link of 50 Mbit/s carries six at this rate."""
_IN_VAIN = 16
"""Requests in a row that no peer has room or time for: then the rest that waits is not asked about before the next
digest."""
_NO_USE = frozenset({StayReason.NO_DIGEST, StayReason.NO_REPLICA_THERE, StayReason.LOADED, StayReason.LATE_THERE})
_LOST_AGES = 2.0
"""A peer whose last digest is older than so many times `max_age_s` is taken to be lost, with what it has not begun to
answer."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A request of a model that waits at home, or would: in which lane, and for how long still (95th percentile; None:
    not known). Its prompt has `cached_tokens` cached here, and `output_tokens` are expected."""

    request: Request
    model: str
    lane: str
    p95_s: float | None
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """To be sent to a peer, with the request's body."""

    peer: str
    hop: HopFacts


@dataclass(frozen=True, slots=True)
class Overdue:
    """A hand-over that is given up: what home does with the request, and which peer is to drop it."""

    request_id: str
    peer: str
    number: int
    act: HopAct


class CellPeering:
    """Of one cell under one epoch. Raises ValueError for a spec without `peering`, or a cell that is none of its
    regions."""

    def __init__(self, spec: ClusterSpec, cell: str, epoch: int) -> None:
        self.cell, self.epoch = cell, epoch
        self.hops = Hops()
        self.configure(spec)
        self.peers = KnownPeers(cell, epoch, self.rules.cells, self.policy)
        self._tenants = UseElsewhere(self.policy.max_age_s)
        self._pressed_s: dict[str, float] = {}
        """When requests of a model were last offered because this cell was late."""
        self._sequence = 0
        self._model_of: dict[str, str] = {}
        self._guests: set[str] = set()

    def configure(self, spec: ClusterSpec) -> None:
        """Takes over what can change of a spec while the cell runs: classes, tenants, residency. Regions and `peering`
        stay as they were. Hops under way go on."""
        if spec.peering is None:
            raise ValueError("peering: missing; needed: a spec with that section")
        spec.region(self.cell)
        self.policy = spec.peering
        self.rules = Rules(spec)
        self._reception = Reception(spec, self.cell, self.rules.marks, self.policy.hand_over)
        self._classes = {one.name: one for one in spec.classes}

    # Digests.
    def ask(self, now: float) -> Mapping[str, Question]:
        """A question to each peer, by its cell."""
        return {cell: self.peers.ask(cell, now) for cell in self.peers.by_cell}

    def answer(self, question: Question, models: tuple[ModelDigest, ...]) -> Digest:
        """This cell's digest, as the answer to a peer's question."""
        self._sequence += 1
        return Digest(
            self.cell,
            self.epoch,
            self._sequence,
            question,
            self.rules.marks,
            models,
            self.peers.received,
        )

    def heard(self, digest: Digest, now: float) -> DigestRefusal | None:
        """A digest came. None: it is taken over, and what waits may be decided on again."""
        refusal = self.peers.heard(digest, now)
        for one in digest.models if refusal is None else ():
            asked_s = self.peers.by_cell[digest.cell].asked_s
            self._tenants.heard(digest.cell, digest.epoch, one.model, one.tenants, asked_s)
        return refusal

    def used_elsewhere(self, model: str, now: float) -> tuple[TenantUse, ...]:
        """What tenants have used of their limits in other cells since the last call: for the model's scheduler, once
        digests have come, and at least once in each `max_age_s`."""
        return self._tenants.news(model, now)

    def hands_over(self, model: str, now: float) -> bool:
        """Whether this cell has handed requests over lately because it was late itself: for its own digest."""
        return now - self._pressed_s.get(model, -math.inf) < self.policy.hand_over.quiet_s

    def spare(self, model: str, now: float) -> float:
        """The replicas (of theirs) whose worth of room peers would give this cell now: of those peers that may serve
        every class and tenant, so that any part of the demand may go there."""
        return self.peers.spare(model, self.rules.always_allowed(model), now)

    # As the home of requests.
    def may_serve(self, model: str, request: Request) -> bool:
        """Whether this cell may serve it. One that may not is handed over or rejected, and enters no lane here."""
        return self.cell in self.rules.allowed(model, request.traffic_class, request.tenant).residency

    def decide(self, wait: Wait, own: ModelDigest, now: float) -> Offer | Stay:
        """At admission, and again while it waits. `own`: what this cell's own digest would say of the model. An offer
        counts as sent."""
        request = wait.request
        if self.hops.get(request.request_id) is not None or request.request_id in self._guests:
            return Stay(StayReason.HANDED_OVER)
        candidate = self._candidate(wait, bool(own.replicas), now)
        wait_s = wait.p95_s if own.replicas else math.inf
        if wait_s is None:
            if self.may_serve(wait.model, request):
                return Stay(StayReason.NO_ESTIMATE)
            wait_s = math.inf
        rate = own.prefill_tokens_per_s / own.replicas if own.replicas else 0.0
        home = Home(self.cell, wait_s, rate, own.usd_per_mtok)
        if not candidate.hops and stays_in_time(candidate, home):  # most do, and the views are most of the work
            return Stay(StayReason.IN_TIME)
        views = self.peers.views(wait.model, wait.lane, now, request.prefix, request.chunk_tokens)
        decision = decide(candidate, home, views, self.policy.hand_over)
        return decision if isinstance(decision, Stay) else self._offer(wait, candidate, decision, now)

    def reconsider(self, waits: Iterable[Wait], own: ModelDigest, now: float) -> list[Offer]:
        """Decides again on what waits, when a digest has come: those first that a peer can still serve in time, and of
        these those with the least to prefill, which is what peers have little of."""
        offers, in_vain = [], 0
        for wait in sorted(waits, key=lambda wait: _urgency(wait.request, now)):
            decision = self.decide(wait, own, now)
            if isinstance(decision, Offer):
                offers.append(decision)
            in_vain = in_vain + 1 if isinstance(decision, Stay) and decision.reason in _NO_USE else 0
            if in_vain == _IN_VAIN:
                break
        return offers

    def _candidate(self, wait: Wait, served: bool, now: float) -> HandOverCandidate:
        """`served`: whether this cell has a replica of the model. Where it has not, the request is offered again to a
        peer that did not take it, once what the peer knew then is too old to count."""
        request = wait.request
        names = (wait.model, request.traffic_class, request.tenant)
        traffic_class = self._classes.get(request.traffic_class)
        prompt = request.prompt_tokens * request.sequences
        return HandOverCandidate(
            request.request_id,
            prompt,
            Footprint(prompt, prompt + wait.output_tokens * request.sequences, request.sequences),
            request.deadline_s - request.arrived_s,
            request.deadline_s - now,
            request.expires_s - now,
            self.rules.allowed(*names),
            self.rules.marks_of(*names),
            traffic_class is not None and traffic_class.prefers == "price",
            wait.cached_tokens,
            max(request.hops, int(self.hops.spent(request.request_id))),
            self.hops.tried(request.request_id, -math.inf if served else now - self.policy.max_age_s),
        )

    def _offer(self, wait: Wait, candidate: HandOverCandidate, decision: HandOver, now: float) -> Offer:
        request, digest = wait.request, self.peers.by_cell[decision.peer].digest
        number = self.peers.sent(decision.peer, wait.model, candidate.load)
        upload_s = request.body_bytes / _UPLOAD_BYTES_PER_S
        offered = HandedOver(decision.peer, number, decision.there_s, now, candidate.slo_s, upload_s)
        self.hops.offer(request.request_id, offered)
        self._model_of[request.request_id] = wait.model
        if decision.reason in (HandOverReason.SOONER, HandOverReason.NO_REPLICA):
            self._pressed_s[wait.model] = now
        hop = HopFacts(
            request.request_id,
            self.cell,
            self.epoch,
            number,
            candidate.hops + 1,
            decision.reason,
            wait.model,
            request.traffic_class,
            request.tenant,
            candidate.allowed.residency,
            candidate.marks,
            max(0.0, now - request.arrived_s),
            candidate.slack_s,
            candidate.patience_s,
            candidate.slo_s,
            0 if digest is None else digest.epoch,
        )
        return Offer(decision.peer, hop)

    def taken(self, request_id: str, number: int, prefix: tuple[int, ...] = ()) -> HopAct:
        """The peer took the request, whose prompt has that `prefix`."""
        hop, act = self.hops.get(request_id), self.hops.taken(request_id, number)
        if act is HopAct.LEAVE_LANE and hop is not None:
            self.peers.kept_prefix(hop.peer, prefix)
        return act

    def rejected(self, request_id: str, number: int, refusal: HopRefusal, now: float) -> HopAct:
        """The peer rejected the request, which has kept its place."""
        hop = self.hops.get(request_id)
        if hop is not None and hop.number == number:
            self.peers.rejected(hop.peer, self._model_of.get(request_id, ""), number, refusal, now)
        return self.hops.rejected(request_id, number)

    def first_byte(self, request_id: str, number: int, now: float) -> HopAct:
        """The first byte of the peer's answer is here."""
        hop = self.hops.get(request_id)
        if hop is not None and hop.number == number and hop.state is not HopState.ANSWERING:
            self.peers.first_token(self._model_of.get(request_id, ""), hop, now)
        return self.hops.first_byte(request_id, number)

    def finished(self, request_id: str, number: int) -> HopAct:
        """The peer's whole answer is here."""
        self._ended(request_id, number)
        return self.hops.finished(request_id, number)

    def broke(self, request_id: str, number: int) -> HopAct:
        """The connection to the peer broke, or its answer did."""
        self._ended(request_id, number)
        return self.hops.broke(request_id, number)

    def left_home(self, request_id: str) -> HopAct:
        """At home, the request was placed, or its wait ended."""
        hop, act = self.hops.get(request_id), self.hops.left_home(request_id)
        if act is HopAct.CANCEL_THERE and hop is not None:
            self.peers.ended(hop.peer, hop.number)
        return act

    def over(self, request_id: str) -> None:
        """The request is over, wherever it was served, or its client is gone."""
        hop = self.hops.get(request_id)
        if hop is not None:
            self.peers.ended(hop.peer, hop.number)
        self.hops.forget(request_id)
        self._guests.discard(request_id)
        self._model_of.pop(request_id, None)

    def overdue(self, now: float) -> tuple[tuple[str, HandedOver], ...]:
        """Offers without an answer, and what a peer has not begun to answer that is unresponsive for too long, by
        request id. Nothing more goes to those peers before they have answered a question again."""
        found = []
        for request_id, hop in self.hops.open():
            peer = self.peers.by_cell[hop.peer]
            if hop.state is HopState.OFFERED:
                late = now - hop.sent_s > 2.0 * (peer.rtt_s or 0.0) + _ANSWER_S + hop.upload_s
            else:
                late = hop.state is HopState.THERE and now - peer.asked_s > _LOST_AGES * self.policy.max_age_s
            if late:
                found.append((request_id, hop))
        for _, hop in found:
            self.peers.unreachable(hop.peer)
        return tuple(found)

    def sweep(self, now: float) -> tuple[Overdue, ...]:
        """Gives up what is overdue."""
        return tuple(
            Overdue(request_id, hop.peer, hop.number, self.broke(request_id, hop.number))
            for request_id, hop in self.overdue(now)
        )

    # As the peer that gets requests.
    def take(self, hop: HopFacts, here: Here, now: float) -> HopRefusal | None:
        """A request is handed over to this cell. None: it may be submitted to the scheduler (`HopFacts.guest`), which
        decides; it goes no further from here."""
        refusal = self._reception.refuse(hop, here)
        if refusal is None and hop.peer_epoch != self.epoch:
            return HopRefusal.OLD_EPOCH
        if refusal is None and not self.peers.took(hop.home, hop.model, hop.epoch, hop.number, now):
            return HopRefusal.REPLAYED
        if refusal is None:
            self._guests.add(hop.guest_id)
        return refusal

    def _ended(self, request_id: str, number: int) -> None:
        hop = self.hops.get(request_id)
        if hop is not None and hop.number == number:
            self.peers.ended(hop.peer, number)


def _urgency(request: Request, now: float) -> tuple[bool, int, float]:
    """The least comes first."""
    return request.deadline_s <= now, request.prompt_tokens * request.sequences, request.deadline_s
