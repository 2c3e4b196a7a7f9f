"""What is known of peers: the age of digests, refused digests, what was sent and is not seen, trust."""

import math
from dataclasses import replace

import pytest

from deployments.peering import (
    DigestRefusal,
    Footprint,
    HandedOver,
    HopRefusal,
    KnownPeers,
    LaneDigest,
    PeerView,
    Question,
    Received,
    StayReason,
)
from deployments.peering.trust import PeerTrust
from tests.deployments.peering.setups import MODEL, make_digest, make_model, make_spec

LOAD = Footprint(500, 2_000)


def make_peers(epoch: int = 7, heard_s: float | None = None) -> KnownPeers:
    """Peers of `eu`; `us` has answered at that time."""
    peering = make_spec().peering
    assert peering is not None
    peers = KnownPeers("eu", epoch, frozenset({"eu", "us", "ap"}), peering)
    assert heard_s is None or hear(peers, heard_s) is None
    return peers


def view(peers: KnownPeers, now: float, cell: str = "us") -> PeerView:
    return next(one for one in peers.views(MODEL, "all", now) if one.cell == cell)


def hear(peers: KnownPeers, now: float, cell: str = "us", rtt_s: float = 0.1, **what: object) -> DigestRefusal | None:
    question = peers.ask(cell, now - rtt_s)
    return peers.heard(make_digest(cell, question, **what), now)  # type: ignore[arg-type]


def test_nothing_is_known_before_the_first_digest() -> None:
    assert view(make_peers(), 0.0).barred is StayReason.NO_DIGEST


def test_a_digest_ages_from_its_question_and_is_worth_less_then_nothing() -> None:
    peers = make_peers()
    assert hear(peers, 10.3, rtt_s=0.3) is None
    seen = view(peers, 10.3)
    assert (seen.barred, seen.rtt_s) == (None, pytest.approx(0.3))
    assert view(peers, 11.0).weight == 1.0
    assert view(peers, 11.5).weight == pytest.approx(0.5)
    assert view(peers, 12.01).barred is StayReason.NO_DIGEST


def test_a_digest_that_was_long_on_its_way_is_old_when_it_comes() -> None:
    peers = make_peers()
    question = peers.ask("us", 0.0)
    assert peers.heard(make_digest("us", question), 30.0) is None
    assert view(peers, 30.0).barred is StayReason.NO_DIGEST


def test_what_is_refused() -> None:
    peers = make_peers()
    first, second = peers.ask("us", 0.0), peers.ask("us", 1.0)
    assert peers.heard(make_digest("mars", first), 1.0) is DigestRefusal.UNKNOWN_CELL
    assert peers.heard(make_digest("ap", first), 1.0) is DigestRefusal.NO_ANSWER, "it was asked of another cell"
    assert peers.heard(make_digest("us", Question(6, first.number)), 1.0) is DigestRefusal.NO_ANSWER
    later = make_digest("us", second, sequence=5)
    assert peers.heard(later, 1.1) is None
    assert peers.heard(later, 1.2) is DigestRefusal.OLD_SEQUENCE, "replayed"
    assert peers.heard(make_digest("us", first, sequence=4), 1.2) is DigestRefusal.OLD_SEQUENCE, "overtaken"
    assert peers.heard(make_digest("us", first, sequence=6), 1.2) is DigestRefusal.NO_ANSWER, "its question is closed"
    assert hear(peers, 2.0, epoch=2) is None
    assert hear(peers, 3.0, epoch=1, sequence=99) is DigestRefusal.OLD_EPOCH
    assert view(peers, 2.5).barred is None


def test_what_was_recorded_before_a_restart_is_no_answer_after_it() -> None:
    before = make_peers(epoch=7)
    recorded = make_digest("us", before.ask("us", 0.0))
    after = make_peers(epoch=8)
    after.ask("us", 100.0)
    assert after.heard(recorded, 100.1) is DigestRefusal.NO_ANSWER


@pytest.mark.parametrize("wait_s", [-1.0, math.nan, math.inf])
def test_numbers_that_cannot_be_are_refused(wait_s: float) -> None:
    peers = make_peers()
    wrong = replace(make_model(), lanes=(LaneDigest("all", 0.0, wait_s),))
    assert hear(peers, 1.0, model=wrong) is DigestRefusal.BAD_VALUE
    assert hear(peers, 2.0, model=replace(make_model(), free_sequences=101)) is DigestRefusal.BAD_VALUE
    assert hear(peers, 3.0, model=replace(make_model(), usd_per_mtok=-1.0)) is DigestRefusal.BAD_VALUE


def test_what_was_sent_takes_room_until_a_digest_counts_it_or_it_ends() -> None:
    """Of 80 free sequences, 20 are kept for the peer's own clients, and the third cell gets half of the rest."""
    peers = make_peers(heard_s=1.0)
    assert view(peers, 1.0).room_sequences == pytest.approx((80 - 20) / 2)
    numbers = [peers.sent("us", MODEL, LOAD) for _ in range(3)]
    seen = view(peers, 1.0)
    assert seen.room_sequences == pytest.approx(30 - 3)
    assert seen.room_kv_tokens == pytest.approx(30_000 - 6_000)
    assert seen.wait_s == pytest.approx(3 * 500 / 10_000)
    peers.ended("us", numbers[0])
    assert view(peers, 1.0).room_sequences == pytest.approx(30 - 2)
    hear(peers, 2.0, sequence=2, model=make_model(free=79), received=(Received("eu", 7, numbers[1]),))
    assert view(peers, 2.0).room_sequences == pytest.approx((79 - 20) / 2 - 1)
    peers.ended("us", numbers[1])
    assert view(peers, 2.0).room_sequences == pytest.approx((79 - 20) / 2 - 1 + 1), "what ends frees its room at once"
    peers.ended("us", numbers[1])
    assert view(peers, 2.0).room_sequences == pytest.approx((79 - 20) / 2 - 1 + 1)


def test_what_ends_frees_no_more_room_than_its_peer_says_is_in_use() -> None:
    """After a cut link the first digest counts no answer that ended meanwhile; this cell hears of those ends later."""
    peers = make_peers(heard_s=1.0)
    numbers = [peers.sent("us", MODEL, LOAD) for _ in range(12)]
    hear(peers, 2.0, sequence=2, model=make_model(free=88), received=(Received("eu", 7, numbers[-1]),))
    hear(peers, 8.0, sequence=3, model=make_model(free=99))
    for number in numbers:
        peers.ended("us", number)
    seen = view(peers, 8.0)
    assert seen.room_sequences == pytest.approx((99 - 20) / 2 + 1)
    assert seen.room_kv_tokens == pytest.approx((99_000 - 20_000) / 2 + 1_000)


def test_a_first_token_takes_the_prefill_off_the_wait() -> None:
    peers = make_peers(heard_s=1.0)
    number = peers.sent("us", MODEL, LOAD)
    assert view(peers, 1.0).wait_s == pytest.approx(500 / 10_000)
    peers.first_token(HandedOver(MODEL, "us", number, 1.0, 1.0, 0.5), 1.3)
    assert view(peers, 1.3).wait_s == 0
    assert view(peers, 1.3).room_sequences == pytest.approx(30 - 1)
    peers.ended("us", number)
    assert view(peers, 1.3).room_sequences == pytest.approx(30)


def test_the_count_of_another_cell_or_epoch_says_nothing() -> None:
    peers = make_peers(heard_s=1.0)
    number = peers.sent("us", MODEL, LOAD)
    hear(peers, 2.0, sequence=2, received=(Received("ap", 7, number + 9), Received("eu", 6, number + 9)))
    assert view(peers, 2.0).room_sequences == pytest.approx(30 - 1)


def test_the_whole_room_is_ours_where_the_third_cell_needs_none() -> None:
    peers = make_peers(heard_s=1.0)
    hear(peers, 1.0, cell="ap")
    assert view(peers, 1.0).room_sequences == pytest.approx(60)
    hear(peers, 1.5, cell="ap", sequence=2, model=make_model(hands_over=True))
    assert view(peers, 1.5).room_sequences == pytest.approx(30)


def test_a_peer_that_restarts_knows_of_nothing_that_was_sent() -> None:
    peers = make_peers(heard_s=1.0)
    peers.sent("us", MODEL, LOAD)
    peers.kept_prefix("us", (1, 2))
    hear(peers, 2.0, epoch=2)
    assert view(peers, 2.0).room_sequences == pytest.approx(30)
    assert peers.views(MODEL, "all", 2.0, (1, 2), 64)[1].cached_tokens == 0


def test_a_peer_that_hands_over_gets_nothing() -> None:
    peers = make_peers()
    hear(peers, 1.0, model=make_model(hands_over=True))
    assert view(peers, 1.0).barred is StayReason.QUIET
    hear(peers, 2.0, sequence=2)
    assert view(peers, 2.0).barred is None
    peers.took("us", MODEL, 3, 1, 2.0)
    assert view(peers, 2.1).barred is StayReason.QUIET
    hear(peers, 12.0, sequence=3)
    assert view(peers, 12.01).barred is None


def test_a_rejection_for_want_of_room_holds_until_the_next_question_is_answered() -> None:
    peers = make_peers(heard_s=1.0)
    early = peers.ask("us", 1.1)
    number = peers.sent("us", MODEL, LOAD)
    peers.refused(HandedOver(MODEL, "us", number, 1.0, 1.0, 0.5), HopRefusal.LOADED, 1.3)
    assert view(peers, 1.3).barred is StayReason.LOADED
    peers.heard(make_digest("us", early, sequence=2), 1.4)
    assert view(peers, 1.4).barred is StayReason.LOADED, "it was asked before"
    hear(peers, 1.7, sequence=3)
    assert view(peers, 1.7).barred is None
    assert view(peers, 1.7).weight < 1


def test_a_refusal_for_the_rules_says_nothing_of_room() -> None:
    peers = make_peers(heard_s=1.0)
    number = peers.sent("us", MODEL, LOAD)
    peers.refused(HandedOver(MODEL, "us", number, 1.0, 1.0, 0.5), HopRefusal.RESIDENCY, 1.3)
    assert (view(peers, 1.3).barred, view(peers, 1.3).weight) == (None, 1.0)


def test_a_broken_connection_ends_it_at_once() -> None:
    peers = make_peers(heard_s=1.0)
    peers.unreachable("us")
    assert view(peers, 1.0).barred is StayReason.NO_DIGEST
    hear(peers, 1.2, sequence=2)
    assert view(peers, 1.2).barred is None


def test_a_digest_says_which_hand_overs_it_counts() -> None:
    peers = make_peers()
    for epoch, number in ((1, 5), (1, 3), (2, 4), (1, 9)):  # they may come in another order
        peers.took("us", MODEL, epoch, number, 0.0)
    assert peers.received == (Received("us", 2, 4),)


def test_a_prefix_that_a_peer_has_run_is_cached_there() -> None:
    peers = make_peers(heard_s=1.0)
    peers.kept_prefix("us", (1, 2, 3))
    cached = {one.cell: one.cached_tokens for one in peers.views(MODEL, "all", 1.0, (1, 2, 9), 64)}
    assert cached["us"] == 2 * 64


def test_a_peer_that_lies_about_its_wait_is_not_believed_any_more() -> None:
    """It states no wait, and its first tokens come after 20 s."""
    peers = make_peers()
    for number in range(10):
        hear(peers, 10.0, sequence=number + 1)
        peers.first_token(HandedOver(MODEL, "us", 1, 0.3, -10.0, 0.5), 10.0)
    seen = view(peers, 10.0)
    assert seen.weight < 0.03
    assert seen.wait_s > 15
    hear(peers, 310.0, sequence=11)
    assert view(peers, 310.0).weight > 0.9, "after minutes without proof it is tried again"


def test_an_honest_peer_is_believed() -> None:
    """One of twenty first tokens is later than the 95th percentile."""
    trust, levels = PeerTrust(), []
    for number in range(400):
        trust.observe(1.0, 3.0 if number % 20 == 7 else 0.8, 0.5, 0.01 * number)
        levels.append(trust.at(0.01 * number))
    assert sum(levels[100:]) / 300 > 0.85
    assert min(levels) > 0.6


def test_a_peer_whose_engine_is_at_a_step_is_believed() -> None:
    """A prompt waits for a step that no digest knows of; a quarter of the SLO is beyond that."""
    trust = PeerTrust()
    for number in range(40):
        trust.observe(0.02, 0.12, 1.0, 0.01 * number)
    assert trust.at(0.4) == 1.0
    trust.observe(0.02, 0.28, 1.0, 0.4)
    assert trust.at(0.4) == pytest.approx(0.7)


def test_what_peers_have_to_spare_for_a_cell() -> None:
    peers, both = make_peers(), frozenset({"us", "ap"})
    assert peers.spare(MODEL, both, 0.0) == 0.0
    hear(peers, 10.0, "us", model=make_model(replicas=4, free=70))
    hear(peers, 10.0, "ap", model=make_model(replicas=2, free=30))
    shared = math.sqrt(2)
    found = peers.spare(MODEL, both, 10.0)
    assert found == pytest.approx((4 * 0.5 + 2 * 0.1) / shared), "free beyond the fifth that stays free; two share it"
    assert peers.spare(MODEL, frozenset({"ap"}), 10.0) == pytest.approx(0.2 / shared)
    assert peers.spare("other", both, 10.0) == 0.0
    assert peers.spare(MODEL, both, 12.5) == 0.0, "what is too old is worth nothing"
    hear(peers, 13.0, "us", model=make_model(replicas=4, free=70), sequence=2)
    hear(peers, 13.0, "ap", model=make_model(replicas=2, free=30, hands_over=True), sequence=2)
    assert peers.spare(MODEL, both, 13.0) == pytest.approx(1.0 / shared), "a rival gets half, and spares nothing"
