"""Whether a request is served at home or handed over: a pure function of the request, its home's wait and its peers.

    TTFT at home   = wait at home + uncached prompt / prefill rate at home
    TTFT there     = wait there + round trip + uncached prompt there / prefill rate there
    benefit        = weight * (TTFT at home - TTFT there)          weight: how fresh and how trusted the digest is
    margin         = (margin_s + margin_share * TTFT at home) * (1 + jitter * u)      u in [-1, 1], by the request's id

All waits are 95th percentiles. A request is handed over if its home would miss the SLO, the peer is not late itself
(its wait and the round trip are within the SLO, however late the request is already), and the benefit is larger than
the margin. The difference of the two prefills is the price of the prefix that is cached at home and not there. Where
all cells are late nobody is helped by moving requests, and none are. While what was sent to a peer and has no first
token takes it long to prefill, nothing more goes there: prompts that come together hold up the peer's own clients. For
the same reason, of several peers the one with the least to prefill for this cell gets the request.

A cell that has no replica, or may not serve the request, hands over what a peer can serve while the client waits. A
class that prefers price also moves while its home is in time, to a cell that holds the SLO for less.

At most one hop: what came from a peer, or was with one, stays. The same function decides at admission and again while
the request waits.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.spec import HandOverSettings
from deployments.peering.peers import Footprint, PeerView
from deployments.peering.reasons import HandOverReason, StayReason
from deployments.peering.rules import Allowed


@dataclass(frozen=True, slots=True)
class HandOverCandidate:
    """A request that may be handed over.

    `slo_s` is the TTFT of its class, `slack_s` what is left of it (negative: it is late), `patience_s` the wait after
    which it gives up. `cached_tokens` of its prompt are cached at home. `hops`: how many it has behind it. `tried`: the
    peers that did not take it, as far as that still counts. `marks`: what the peer's spec must have (`Rules.marks_of`).
    """

    request_id: str
    prompt_tokens: int
    load: Footprint
    slo_s: float
    slack_s: float
    patience_s: float
    allowed: Allowed
    marks: frozenset[str]
    prefers_price: bool = False
    cached_tokens: int = 0
    hops: int = 0
    tried: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Home:
    """The cell where the request is: the 95th percentile of its wait there (infinite: it has no replica), and what one
    replica prefills in a second."""

    cell: str
    wait_s: float
    prefill_tokens_per_s: float
    usd_per_mtok: float | None = None


@dataclass(frozen=True, slots=True)
class HandOver:
    """To that peer. `there_s`: the TTFT (95th percentile) there."""

    peer: str
    reason: HandOverReason
    there_s: float


@dataclass(frozen=True, slots=True)
class Stay:
    """`peer`: the one that came closest; None where no peer was looked at."""

    reason: StayReason
    peer: str | None = None


_FURTHEST = tuple(StayReason)
_Rank = tuple[float, bool, bool, float, float]


def decide(
    candidate: HandOverCandidate, home: Home, peers: Sequence[PeerView], policy: HandOverSettings
) -> HandOver | Stay:
    """See the module's docstring. A request that `home` may not serve (`outside_residency`) and that stays must be
    rejected."""
    if candidate.hops:
        return Stay(StayReason.HANDED_OVER)
    if not peers:
        return Stay(StayReason.NO_PEER)
    if stays_in_time(candidate, home):
        return Stay(StayReason.IN_TIME)
    must_leave, home_s = outside_residency(candidate, home), _home_s(candidate, home)
    in_time = home_s <= candidate.slack_s
    offers: list[tuple[_Rank, HandOver]] = []
    closest = Stay(StayReason.RESIDENCY)
    for peer in peers:
        reason = _bar(candidate, peer)
        if reason is None:
            rated = _rate(candidate, home, home_s, peer, policy, must_leave, in_time)
            if isinstance(rated, HandOver):
                offers.append((_rank(candidate, peer, rated), rated))
                continue
            reason = rated
        if _FURTHEST.index(reason) >= _FURTHEST.index(closest.reason):
            closest = Stay(reason, peer.cell)
    if not offers:
        alone = closest.reason is StayReason.RESIDENCY and in_time and not must_leave
        return Stay(StayReason.IN_TIME) if alone else closest
    return min(offers, key=lambda one: (one[0], draw(candidate.request_id, one[1].peer)))[1]


def stays_in_time(candidate: HandOverCandidate, home: Home) -> bool:
    """Whether the request is served at home whatever its peers say: in time, and it may be."""
    in_time = _home_s(candidate, home) <= candidate.slack_s
    return in_time and not candidate.prefers_price and not outside_residency(candidate, home)


def outside_residency(candidate: HandOverCandidate, home: Home) -> bool:
    """Whether the cell where the request arrived may not serve it."""
    return home.cell not in candidate.allowed.residency


def draw(request_id: str, cell: str) -> float:
    """From 0 to 1, by the ids alone: no clock, no random state, the same in a replay."""
    return zlib.crc32(f"{request_id} {cell}".encode()) / 0xFFFFFFFF


def remaining_s(p95_s: float, waited_s: float, lane_p95_s: float) -> float:
    """What a request still has to wait, of which `p95_s` was expected when it came. Where that is used up, nothing more
    is known of it than that it comes before whoever arrives now."""
    return p95_s - waited_s if waited_s < p95_s else lane_p95_s


def _bar(candidate: HandOverCandidate, peer: PeerView) -> StayReason | None:
    """Why the request goes to that peer in no case; None: it may."""
    if peer.cell not in candidate.allowed.residency:
        return StayReason.RESIDENCY
    if peer.cell not in candidate.allowed.peers:
        return StayReason.TENANT
    if peer.cell in candidate.tried:
        return StayReason.REJECTED
    if peer.barred is StayReason.NO_DIGEST:
        return peer.barred
    if not candidate.marks or not candidate.marks <= peer.marks:
        return StayReason.SPEC
    return None if peer.barred in (StayReason.QUIET, StayReason.LOADED) else peer.barred


def _rate(
    candidate: HandOverCandidate,
    home: Home,
    home_s: float,
    peer: PeerView,
    policy: HandOverSettings,
    must_leave: bool,
    in_time: bool,
) -> HandOver | StayReason:
    """The hand-over to a peer that may have the request, or why there is none. A peer that handed over to this cell a
    moment ago gets only what its home cannot serve."""
    wait_s = peer.wait_s + peer.rtt_s
    there_s = wait_s + _prefill_s(candidate, peer.cached_tokens, peer.prefill_tokens_per_s)
    if peer.barred is StayReason.LOADED:
        return peer.barred
    if must_leave or home.wait_s == math.inf:
        reason = HandOverReason.RESIDENCY if must_leave else HandOverReason.NO_REPLICA
        if wait_s > candidate.patience_s:
            return StayReason.LATE_THERE
        return HandOver(peer.cell, reason, there_s)
    if peer.barred is not None:
        return peer.barred
    if candidate.load.sequences > peer.room_sequences or candidate.load.kv_tokens > peer.room_kv_tokens:
        return StayReason.LOADED
    if peer.sent_prefill_s > policy.max_prefill_share * candidate.slo_s:
        return StayReason.PREFILLING
    if wait_s > candidate.slo_s:
        return StayReason.LATE_THERE
    if not in_time:
        margin_s = policy.margin_s + policy.margin_share * home_s
        jitter = 1.0 + policy.jitter * (2.0 * draw(candidate.request_id, "") - 1.0)
        if peer.weight * (home_s - there_s) > margin_s * jitter:
            return HandOver(peer.cell, HandOverReason.SOONER, there_s)
        if not candidate.prefers_price:
            return StayReason.NOT_SOONER
    if there_s <= candidate.slack_s and _is_cheaper(home, peer, policy):
        return HandOver(peer.cell, HandOverReason.CHEAPER, there_s)
    return StayReason.NOT_CHEAPER


def _rank(candidate: HandOverCandidate, peer: PeerView, offer: HandOver) -> _Rank:
    """The least is best. Where price does not decide: peers where it is in time before others, and then those that are
    not late themselves. Of these the one whose own clients are held up least, by what it would have to prefill for this
    cell: to be sooner than in time is worth nothing, and sent to one peer alone it costs more than spread. Of those
    that are late, the soonest."""
    prefill_s = _prefill_s(candidate, peer.cached_tokens, peer.prefill_tokens_per_s)
    cost, there_s = _cost(peer) if candidate.prefers_price else 0.0, offer.there_s
    late = there_s > candidate.slo_s
    return cost, there_s > candidate.slack_s, late, there_s if late else peer.sent_prefill_s + prefill_s, there_s


def _home_s(candidate: HandOverCandidate, home: Home) -> float:
    return home.wait_s + _prefill_s(candidate, candidate.cached_tokens, home.prefill_tokens_per_s)


def _prefill_s(candidate: HandOverCandidate, cached_tokens: int, tokens_per_s: float) -> float:
    uncached = max(0, candidate.prompt_tokens - cached_tokens)
    return uncached / tokens_per_s if tokens_per_s > 0 else 0.0


def _is_cheaper(home: Home, peer: PeerView, policy: HandOverSettings) -> bool:
    if home.usd_per_mtok is None or peer.usd_per_mtok is None:
        return False
    return peer.usd_per_mtok < home.usd_per_mtok * (1.0 - policy.price_share)


def _cost(peer: PeerView) -> float:
    return math.inf if peer.usd_per_mtok is None else peer.usd_per_mtok
