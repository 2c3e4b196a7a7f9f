"""What a cell knows of its peers: their last digests, how old these are by its own clock, what it has handed over that
no digest counts yet, and how far each peer is believed.

A digest is the answer to a question of this cell. Its age counts from the question, so that a digest that was delayed
on the way is as old as it is, whatever any clock says. A question names this cell's epoch, which is never issued twice:
what was recorded before a restart answers no open question.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cluster.spec import Peering
from deployments.peering.digest import Digest, Question, Received
from deployments.peering.reasons import DigestRefusal, HopRefusal, StayReason
from deployments.peering.trust import PeerTrust
from deployments.scheduling.learned_state import PrefixIndex

_QUESTIONS = 16
"""Open questions of a peer that are remembered: at one a second, a peer that takes longer is of no use."""
_CHUNKS = 65_536
"""Hashes of prompts that are remembered of each peer: some 4 million tokens, and 25 MB."""
_RTT_WEIGHT = 0.2
_FIRST_RTT_S = 0.2


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a request takes of a replica: tokens to prefill, KV blocks (in tokens), sequences."""

    prefill_tokens: int
    kv_tokens: int
    sequences: int = 1


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer at one moment, for requests of one model in one lane.

    `barred`: why nothing goes there, whatever the request; where it is `NO_DIGEST`, `SPEC` or `NO_REPLICA_THERE`,
    most of the rest is not known. `weight` (0 to 1) is how fresh and how trusted its word is. `wait_s` is the 95th
    percentile of the wait there, with the prefill of what was sent and has no first token yet (`sent_prefill_s`), and
    what its word has been wrong by. `room` is what this cell may still send: its part of what is free below `max_load`,
    and what it sent that has ended since, without what it sent that is not seen yet. `marks` are those of its spec.
    """

    cell: str
    barred: StayReason | None = None
    weight: float = 0.0
    rtt_s: float = _FIRST_RTT_S
    wait_s: float = math.inf
    room_sequences: float = 0.0
    room_kv_tokens: float = 0.0
    prefill_tokens_per_s: float = 0.0
    sent_prefill_s: float = 0.0
    usd_per_mtok: float | None = None
    cached_tokens: int = 0
    marks: frozenset[str] = frozenset()


class _Sent(NamedTuple):
    model: str
    load: Footprint


@dataclass(frozen=True, slots=True)
class HandedOver:
    """One hand-over: of a request of `model`, to which peer, and its number (`KnownPeers.sent`). `expected_s`: the TTFT
    that the decision counted with, from `sent_s` on; `slo_s`: that of its class. `upload_s`: so long its body may take
    to get there. `answers`: its client has got a byte."""

    model: str
    peer: str
    number: int
    expected_s: float
    sent_s: float
    slo_s: float
    upload_s: float = 0.0
    answers: bool = False


class Peer:
    """One peer."""

    def __init__(self) -> None:
        self.digest: Digest | None = None
        self.asked_s = -math.inf
        """When the question was asked that the digest answers."""
        self.heard_s = -math.inf
        """The same, and it stays where the connection broke since."""
        self.rtt_s: float | None = None
        self.rejected_s = -math.inf
        self.hops_epoch = 0
        self.hops_max = 0
        self.trust: dict[str, PeerTrust] = {}
        self.unseen: dict[int, _Sent] = {}
        """Hand-overs that no digest counts yet, by number."""
        self.seen: dict[int, _Sent] = {}
        """Those that the last digest counts, and that have not ended."""
        self.on_its_way: dict[int, _Sent] = {}
        """Those without a first token."""
        self.freed: dict[int, _Sent] = {}
        """Those that the last digest counts, and that have ended since."""
        self.received_s: dict[str, float] = {}
        """When it last handed over a request of a model to this cell."""
        self._asked: deque[tuple[int, float]] = deque(maxlen=_QUESTIONS)

    def ask(self, number: int, now: float) -> None:
        self._asked.append((number, now))

    def answered(self, number: int) -> float | None:
        """When that question was asked. What was asked before it is not waited for any more."""
        if not any(asked == number for asked, _ in self._asked):
            return None
        while True:
            asked, asked_s = self._asked.popleft()
            if asked == number:
                return asked_s

    def trust_in(self, model: str) -> PeerTrust:
        trust = self.trust.get(model)
        if trust is None:
            trust = self.trust[model] = PeerTrust()
        return trust


class KnownPeers:
    """Of one cell under one epoch. `now` is the cell's own monotonic clock, in seconds."""

    def __init__(self, cell: str, epoch: int, others: frozenset[str], policy: Peering) -> None:
        self.cell, self.epoch = cell, epoch
        self.policy = policy
        self.by_cell = {name: Peer() for name in sorted(others - {cell})}
        self._prefixes = PrefixIndex()
        self._number = 0

    def ask(self, cell: str, now: float) -> Question:
        """A question to a peer goes out."""
        self._number += 1
        self.by_cell[cell].ask(self._number, now)
        return Question(self.epoch, self._number)

    def heard(self, digest: Digest, now: float) -> DigestRefusal | None:
        """A digest came in. None: it is taken over."""
        peer = self.by_cell.get(digest.cell)
        if peer is None:
            return DigestRefusal.UNKNOWN_CELL
        known = peer.digest
        if known is not None and digest.epoch < known.epoch:
            return DigestRefusal.OLD_EPOCH
        if known is not None and digest.epoch == known.epoch and digest.sequence <= known.sequence:
            return DigestRefusal.OLD_SEQUENCE
        if not digest.is_possible:
            return DigestRefusal.BAD_VALUE
        asked_s = peer.answered(digest.answers.number) if digest.answers.epoch == self.epoch else None
        if asked_s is None:
            return DigestRefusal.NO_ANSWER
        if known is not None and digest.epoch > known.epoch:
            peer.unseen.clear()  # the peer has restarted, and knows of none of them
            peer.on_its_way.clear()
            peer.seen.clear()
            self._prefixes.forget(digest.cell)
        peer.digest, peer.asked_s, peer.heard_s = digest, asked_s, asked_s
        rtt_s = now - asked_s
        peer.rtt_s = rtt_s if peer.rtt_s is None else peer.rtt_s + _RTT_WEIGHT * (rtt_s - peer.rtt_s)
        seen = max((one.number for one in digest.received if one[:2] == (self.cell, self.epoch)), default=0)
        peer.freed.clear()
        for number in [number for number in peer.unseen if number <= seen]:
            peer.seen[number] = peer.unseen.pop(number)
        return None

    def unreachable(self, cell: str) -> None:
        """The connection to a peer broke: nothing more goes there before it has answered a question again."""
        self.by_cell[cell].asked_s = -math.inf

    def sent(self, cell: str, model: str, load: Footprint) -> int:
        """A request is handed over. Returns the hand-over's number."""
        self._number += 1
        self.by_cell[cell].unseen[self._number] = self.by_cell[cell].on_its_way[self._number] = _Sent(model, load)
        return self._number

    def kept_prefix(self, cell: str, prefix: tuple[int, ...]) -> None:
        """The peer runs a prompt with that prefix, and will have it cached."""
        self._prefixes.add(prefix, cell, _CHUNKS)

    def ended(self, cell: str, number: int) -> None:
        """A hand-over ended, or never arrived: it takes no room of the peer any more."""
        peer = self.by_cell[cell]
        peer.unseen.pop(number, None)
        peer.on_its_way.pop(number, None)
        if number in peer.seen:
            peer.freed[number] = peer.seen.pop(number)

    def first_token(self, hop: HandedOver, now: float) -> None:
        """The first token of a hand-over came."""
        peer = self.by_cell[hop.peer]
        peer.on_its_way.pop(hop.number, None)
        peer.trust_in(hop.model).observe(hop.expected_s + hop.upload_s, now - hop.sent_s, hop.slo_s, now)

    def refused(self, hop: HandedOver, refusal: HopRefusal, now: float) -> None:
        """The request came back. If the peer has no room, nothing more goes there before its next digest; if it cannot
        be reached, not before it has answered a question again."""
        self.ended(hop.peer, hop.number)
        if refusal in (HopRefusal.LATE, HopRefusal.LOADED, HopRefusal.REJECTED):
            peer = self.by_cell[hop.peer]
            peer.rejected_s = now
            peer.trust_in(hop.model).rejected(now)
        elif refusal is HopRefusal.UNREACHABLE:
            self.unreachable(hop.peer)

    def took(self, cell: str, model: str, epoch: int, number: int, now: float) -> None:
        """A peer hands a request over to this cell."""
        peer = self.by_cell[cell]
        if epoch > peer.hops_epoch:
            peer.hops_epoch, peer.hops_max = epoch, 0
        if epoch == peer.hops_epoch:
            peer.hops_max = max(peer.hops_max, number)
        peer.received_s[model] = now

    @property
    def received(self) -> tuple[Received, ...]:
        """What has come from each peer, for this cell's own digest."""
        return tuple(
            Received(cell, peer.hops_epoch, peer.hops_max) for cell, peer in self.by_cell.items() if peer.hops_max
        )

    def views(
        self, model: str, lane: str, now: float, prefix: tuple[int, ...] = (), chunk_tokens: int = 0
    ) -> tuple[PeerView, ...]:
        """All peers at this moment, for a request of that model and lane."""
        return tuple(self._view(cell, model, lane, now, prefix, chunk_tokens) for cell in self.by_cell)

    def spare(self, model: str, cells: frozenset[str], now: float) -> float:
        """The replicas (of theirs) whose worth of room this cell may count on at those peers: what is free below
        `max_load`, divided among the cells that hand over. The n cells that share it all count it: independent surges
        of n cells come to sqrt(n) times one of them, so that each may count 1 / sqrt(n) of it."""
        found = 0.0
        for cell in cells & self.by_cell.keys():
            peer = self.by_cell[cell]
            stated = None if peer.digest is None else peer.digest.model(model)
            if stated is None or now - peer.asked_s > self.policy.max_age_s or stated.hands_over:
                continue
            share = max(0.0, self.policy.hand_over.max_load - stated.load)
            found += peer.trust_in(model).at(now) * stated.replicas * share / (1 + self._rivals(cell, model, now))
        return found / math.sqrt(max(1, len(self.by_cell)))

    def _spare(self, maximum: int, free: int) -> float:
        """What is free below `max_load`: the rest is for the peer's own clients."""
        return max(0.0, free - (1.0 - self.policy.hand_over.max_load) * maximum)

    def _rivals(self, cell: str, model: str, now: float) -> int:
        """Peers that see the same room of a cell at the same moment, and may use it: those that hand over at present,
        and those of which nothing is known."""
        rivals = 0
        for other, peer in self.by_cell.items():
            if other != cell and peer.digest is not None:
                stated = peer.digest.model(model)
                fresh = now - peer.asked_s <= self.policy.max_age_s
                rivals += not fresh or (stated is not None and stated.hands_over)
            elif other != cell:
                rivals += 1
        return rivals

    def _view(
        self, cell: str, model: str, lane: str, now: float, prefix: tuple[int, ...], chunk_tokens: int
    ) -> PeerView:
        peer, policy = self.by_cell[cell], self.policy
        age_s = now - peer.asked_s
        if peer.digest is None or age_s > policy.max_age_s:
            return PeerView(cell, StayReason.NO_DIGEST)
        stated = peer.digest.model(model)
        if stated is None:
            return PeerView(cell, StayReason.SPEC)
        wait = stated.lane(lane)
        if stated.replicas == 0 or stated.prefill_tokens_per_s == 0:
            return PeerView(cell, StayReason.NO_REPLICA_THERE, marks=peer.digest.marks)
        if wait is None:
            return PeerView(cell, StayReason.NO_DIGEST)
        barred = None
        if stated.hands_over or now - peer.received_s.get(model, -math.inf) < policy.hand_over.quiet_s:
            barred = StayReason.QUIET
        elif peer.asked_s <= peer.rejected_s:
            barred = StayReason.LOADED
        trust, unseen, freed = peer.trust_in(model), _sum(peer.unseen, model), _sum(peer.freed, model)
        on_its_way_s = _sum(peer.on_its_way, model).prefill_tokens / stated.prefill_tokens_per_s
        trusted = trust.at(now)
        fresh = 0.5 ** (max(0.0, age_s - policy.digest_period_s) / policy.half_life_s)
        share = 1.0 / (1 + self._rivals(cell, model, now))
        return PeerView(
            cell,
            barred,
            fresh * trusted,
            _FIRST_RTT_S if peer.rtt_s is None else peer.rtt_s,
            wait.p95_s + on_its_way_s + (1.0 - trusted) * trust.excess_s,
            share * self._spare(stated.max_sequences, stated.free_sequences)
            + min(freed.sequences, stated.max_sequences - stated.free_sequences)
            - unseen.sequences,
            share * self._spare(stated.max_kv_tokens, stated.free_kv_tokens)
            + min(freed.kv_tokens, stated.max_kv_tokens - stated.free_kv_tokens)
            - unseen.kv_tokens,
            stated.prefill_tokens_per_s / stated.replicas,  # of one replica: a prompt is prefilled by one
            on_its_way_s,
            stated.usd_per_mtok,
            self._prefixes.known(prefix, cell) * chunk_tokens,
            peer.digest.marks,
        )


def _sum(hand_overs: Mapping[int, _Sent], model: str) -> Footprint:
    loads = [sent.load for sent in hand_overs.values() if sent.model == model]
    return Footprint(
        sum(load.prefill_tokens for load in loads),
        sum(load.kv_tokens for load in loads),
        sum(load.sequences for load in loads),
    )
