"""Peering of one cell: what it asks its peers and answers them, what it hands over, what it takes.

The shell gives facts and the time (its own monotonic clock), carries messages, and does what is returned. The gateway,
the simulator and the tests drive the same object.

A peer is a kind of replica. A request that is handed over leaves its lane, and is the peer's until it is over or comes
back: where the peer refuses it or cannot be reached, to the head of its lane, from where another peer may get it; where
the peer had it and broke off before the client had a byte, to stay at home.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.spec import ClusterSpec
from deployments.peering.decision import HandOver, HandOverCandidate, Home, Stay, decide, stays_in_time
from deployments.peering.digest import Digest, ModelDigest, Question
from deployments.peering.peers import Footprint, HandedOver, KnownPeers
from deployments.peering.reasons import DigestRefusal, HandOverReason, HopRefusal, StayReason
from deployments.peering.reception import Here, HopFacts, Reception
from deployments.peering.rules import Rules
from deployments.peering.tenant_use import UseElsewhere
from deployments.scheduling import Request, TenantUse, WaitingRequest

_ANSWER_RTTS = 4.0
"""A peer says at once whether it takes a request: after one round trip, and up to three more for a new connection."""
ANSWER_S = 0.25
"""...and this much more is patience."""
_UPLOAD_BYTES_PER_S = 1_000_000
"""A body may be so slow on its way: a link of 50 Mbit/s carries six at this rate."""
_IN_VAIN = 16
"""Requests in a row that no peer has room or time for: then the rest that waits is not asked about before the next
digest."""
_NO_USE = frozenset({StayReason.NO_DIGEST, StayReason.NO_REPLICA_THERE, StayReason.LOADED, StayReason.LATE_THERE})
LOST_AGES = 2.0
"""A peer whose last digest is older than so many times `max_age_s` is taken to be lost, with what it has not begun to
answer."""


@dataclass(frozen=True, slots=True)
class Offer:
    """To be sent to a peer, which is to say within `answer_s` (seconds) whether it takes the request."""

    peer: str
    hop: HopFacts
    answer_s: float


class CellPeering:
    """Of one cell under one epoch. Raises ValueError for a spec without `peering`, or a cell that is none of its
    regions."""

    def __init__(self, spec: ClusterSpec, cell: str, epoch: int) -> None:
        self.cell, self.epoch = cell, epoch
        self.away: dict[str, HandedOver] = {}
        """The hand-overs that are not over, by request id."""
        self.configure(spec)
        self.peers = KnownPeers(cell, epoch, self.rules.cells, self.policy)
        self._tenants = UseElsewhere(self.policy.max_age_s)
        self._pressed_s: dict[str, float] = {}
        """When requests of a model were last offered because this cell was late."""
        self._sequence = 0
        self._tried: dict[str, dict[str, float]] = {}
        """By request id: the peers that it was handed over to, and when."""
        self._spent: set[str] = set()
        """Requests that were with a peer which broke off: they have had their one hop."""

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
        return {cell: self.peers.ask(cell, now) for cell in self.peers.by_cell}

    def answer(self, question: Question, models: tuple[ModelDigest, ...]) -> Digest:
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

    def decide(self, wait: WaitingRequest, own: ModelDigest, now: float) -> Offer | Stay:
        """At admission, and again while it waits. `own`: what this cell's own digest would say of the model. An offer
        counts as sent."""
        model, request = own.model, wait.request
        if request.request_id in self.away:
            return Stay(StayReason.HANDED_OVER)
        candidate = self._candidate(wait, own, now)
        wait_s = wait.p95_s if own.replicas else math.inf
        if wait_s is None:
            if self.may_serve(model, request):
                return Stay(StayReason.NO_ESTIMATE)
            wait_s = math.inf
        rate = own.prefill_tokens_per_s / own.replicas if own.replicas else 0.0
        home = Home(self.cell, wait_s, rate, own.usd_per_mtok)
        if not candidate.hops and stays_in_time(candidate, home):  # most do, and the views are most of the work
            return Stay(StayReason.IN_TIME)
        views = self.peers.views(model, wait.lane, now, request.prefix, request.chunk_tokens)
        decision = decide(candidate, home, views, self.policy.hand_over)
        return decision if isinstance(decision, Stay) else self._offer(model, request, candidate, decision, now)

    def reconsider(self, waits: Iterable[WaitingRequest], own: ModelDigest, now: float) -> list[Offer]:
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

    def _candidate(self, wait: WaitingRequest, own: ModelDigest, now: float) -> HandOverCandidate:
        """Where this cell has no replica of the model, the request is offered again to a peer that did not take it,
        once what the peer knew then is too old to count."""
        request = wait.request
        names = (own.model, request.traffic_class, request.tenant)
        traffic_class = self._classes.get(request.traffic_class)
        prompt = request.prompt_tokens * request.sequences
        since_s = -math.inf if own.replicas else now - self.policy.max_age_s
        tried = self._tried.get(request.request_id, {})
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
            max(request.hops, int(request.request_id in self._spent)),
            frozenset(peer for peer, at_s in tried.items() if at_s >= since_s),
        )

    def _offer(
        self, model: str, request: Request, candidate: HandOverCandidate, decision: HandOver, now: float
    ) -> Offer:
        peer = decision.peer
        number = self.peers.sent(peer, model, candidate.load)
        upload_s = request.body_bytes / _UPLOAD_BYTES_PER_S
        hop = HandedOver(model, peer, number, decision.there_s, now, candidate.slo_s, upload_s)
        self.away[request.request_id] = hop
        self._tried.setdefault(request.request_id, {})[peer] = now
        if decision.reason in (HandOverReason.SOONER, HandOverReason.NO_REPLICA):
            self._pressed_s[model] = now
        facts = HopFacts(
            request.request_id,
            self.cell,
            request.attempts + 1,
            self.epoch,
            number,
            candidate.hops + 1,
            decision.reason,
            model,
            request.traffic_class,
            request.tenant,
            candidate.allowed.residency,
            candidate.marks,
            request.prompt_tokens,
            request.max_tokens,
            request.sequences,
            max(0.0, now - request.arrived_s),
            candidate.slack_s,
            candidate.patience_s,
            candidate.slo_s,
        )
        return Offer(peer, facts, _ANSWER_RTTS * (self.peers.by_cell[peer].rtt_s or 0.0) + ANSWER_S)

    def first_token(self, request_id: str, now: float, prefix: tuple[int, ...] = ()) -> None:
        """The client has the first token of the request, whose prompt has that `prefix`, from its peer."""
        hop = self.away.get(request_id)
        if hop is not None and not hop.answers:
            self.away[request_id] = replace(hop, answers=True)
            self.peers.first_token(hop, now)
            self.peers.kept_prefix(hop.peer, prefix)

    def came_back(self, request_id: str, refusal: HopRefusal, now: float) -> None:
        """The peer does not have the request any more, which waits at home again."""
        hop = self.away.pop(request_id, None)
        if hop is not None:
            self.peers.refused(hop, refusal, now)
        if refusal is HopRefusal.LOST:
            self._spent.add(request_id)

    def over(self, request_id: str) -> None:
        """The request is over, wherever it was served, or its client is gone."""
        hop = self.away.pop(request_id, None)
        if hop is not None:
            self.peers.ended(hop.peer, hop.number)
        self._tried.pop(request_id, None)
        self._spent.discard(request_id)

    @property
    def offered(self) -> tuple[str, ...]:
        """The requests that were ever handed over, and are not over as far as is known here."""
        return (*self._tried, *self._spent)

    def overdue(self, now: float) -> tuple[str, ...]:
        """The requests that a peer has not begun to answer which has been silent for too long. Nothing more goes to
        those peers before they have answered a question again."""
        silent = {cell for cell in self.peers.by_cell if self.is_silent(cell, -math.inf, now)}
        found = [(name, hop.peer) for name, hop in self.away.items() if hop.peer in silent and not hop.answers]
        for _, cell in found:
            self.peers.unreachable(cell)
        return tuple(name for name, _ in found)

    def is_silent(self, peer: str, since_s: float, now: float) -> bool:
        """Whether nothing was heard of a peer for too long since then."""
        return now - max(self.peers.by_cell[peer].heard_s, since_s) > LOST_AGES * self.policy.max_age_s

    # As the peer that gets requests.
    def judge(self, hop: HopFacts, here: Here) -> HopRefusal | None:
        """Why a request that is handed over to this cell is not taken; None: its body may come."""
        return self._reception.refuse(hop, here)

    def take(self, hop: HopFacts, here: Here, now: float) -> HopRefusal | None:
        """As `judge`, once the body is here. None: the request may be submitted to the scheduler (`HopFacts.guest`),
        which decides; it goes no further from here."""
        refusal = self.judge(hop, here)
        if refusal is None:
            self.peers.took(hop.home, hop.model, hop.epoch, hop.number, now)
        return refusal


def _urgency(request: Request, now: float) -> tuple[bool, int, float]:
    """The least comes first."""
    return request.deadline_s <= now, request.prompt_tokens * request.sequences, request.deadline_s
