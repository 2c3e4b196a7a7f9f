"""When a request is handed over, to whom, and why it stays."""

import math
from dataclasses import replace

import pytest

from cluster.spec import HandOverSettings
from deployments.peering import (
    Allowed,
    Footprint,
    HandOver,
    HandOverReason,
    Home,
    PeerView,
    Stay,
    StayReason,
    decide,
    remaining_s,
)
from deployments.peering.decision import HandOverCandidate, outside_residency

ALL = frozenset({"eu", "us", "ap"})
MARKS = frozenset({"a", "b"})
POLICY = HandOverSettings(jitter=0.0)
LATE = Home("eu", 10.0, 10_000.0, 5.0)
IN_TIME = Home("eu", 0.2, 10_000.0, 5.0)
CANDIDATE = HandOverCandidate("r", 1_000, Footprint(1_000, 2_000), 1.0, 1.0, 60.0, Allowed(ALL, ALL), MARKS)
PEER = PeerView(
    "us",
    weight=1.0,
    rtt_s=0.1,
    wait_s=0.1,
    room_sequences=10.0,
    room_kv_tokens=50_000.0,
    prefill_tokens_per_s=10_000.0,
    usd_per_mtok=5.0,
    marks=MARKS,
)


def stays(candidate: HandOverCandidate = CANDIDATE, home: Home = LATE, peer: PeerView = PEER) -> StayReason:
    decision = decide(candidate, home, [peer], POLICY)
    assert isinstance(decision, Stay), decision
    return decision.reason


def goes(
    candidate: HandOverCandidate = CANDIDATE, home: Home = LATE, *peers: PeerView, policy: HandOverSettings = POLICY
) -> HandOver:
    decision = decide(candidate, home, peers or [PEER], policy)
    assert isinstance(decision, HandOver), decision
    return decision


def test_a_request_goes_where_it_is_served_sooner() -> None:
    decision = goes()
    assert (decision.peer, decision.reason) == ("us", HandOverReason.SOONER)
    assert decision.there_s == pytest.approx(0.1 + 0.1 + 0.1)


def test_why_it_stays() -> None:
    assert stays(home=IN_TIME) is StayReason.IN_TIME
    assert stays(replace(CANDIDATE, hops=1)) is StayReason.HANDED_OVER
    assert stays(replace(CANDIDATE, allowed=Allowed(frozenset({"eu"}), ALL))) is StayReason.RESIDENCY
    assert stays(replace(CANDIDATE, allowed=Allowed(ALL, frozenset()))) is StayReason.TENANT
    assert stays(replace(CANDIDATE, tried=frozenset({"us"}))) is StayReason.REJECTED
    assert stays(peer=PeerView("us", StayReason.NO_DIGEST)) is StayReason.NO_DIGEST
    assert stays(replace(CANDIDATE, marks=MARKS | {"new"})) is StayReason.SPEC
    assert stays(replace(CANDIDATE, marks=frozenset())) is StayReason.SPEC
    assert stays(peer=replace(PEER, barred=StayReason.NO_REPLICA_THERE)) is StayReason.NO_REPLICA_THERE
    assert stays(peer=replace(PEER, barred=StayReason.QUIET)) is StayReason.QUIET
    assert stays(peer=replace(PEER, room_sequences=0.9)) is StayReason.LOADED
    assert stays(peer=replace(PEER, room_kv_tokens=1_999.0)) is StayReason.LOADED
    assert stays(peer=replace(PEER, wait_s=0.95)) is StayReason.LATE_THERE
    assert stays(peer=replace(PEER, sent_prefill_s=0.071)) is StayReason.PREFILLING
    assert goes(CANDIDATE, LATE, replace(PEER, sent_prefill_s=0.069)).peer == "us"
    assert decide(CANDIDATE, LATE, [], POLICY) == Stay(StayReason.NO_PEER)


@pytest.mark.parametrize(("home_s", "goes_there"), [(0.9 + 0.1, False), (1.0 + 0.4, True)])
def test_the_margin(home_s: float, goes_there: bool) -> None:
    """With a prefill of 0.1 s on both sides: 1.1 - 0.8 against 0.1 + 0.25 * 1.1, and 1.5 - 0.8 against 0.475."""
    late = replace(CANDIDATE, slack_s=0.5)
    peer = replace(PEER, wait_s=0.6)
    decision = decide(late, replace(LATE, wait_s=home_s), [peer], POLICY)
    assert isinstance(decision, HandOver) is goes_there
    if not goes_there:
        assert decision == Stay(StayReason.NOT_SOONER, "us")


def test_a_digest_that_is_late_or_not_trusted_is_worth_less() -> None:
    home = replace(LATE, wait_s=2.0)
    assert goes(CANDIDATE, home, PEER).peer == "us"
    assert stays(home=home, peer=replace(PEER, weight=0.3)) is StayReason.NOT_SOONER


def test_where_the_prefix_is_lost_the_prefill_counts() -> None:
    long = replace(CANDIDATE, prompt_tokens=50_000, cached_tokens=49_000)
    home = replace(LATE, wait_s=4.0)
    assert stays(long, home) is StayReason.NOT_SOONER
    there = replace(PEER, cached_tokens=49_000)
    decision = goes(long, home, PEER, replace(there, cell="ap"))
    assert decision.peer == "ap"


def test_what_is_late_already_goes_to_a_peer_that_is_not() -> None:
    late = replace(CANDIDATE, slack_s=-20.0)
    assert goes(late).reason is HandOverReason.SOONER
    assert stays(late, peer=replace(PEER, wait_s=3.0)) is StayReason.LATE_THERE


def test_without_a_replica_at_home_a_late_peer_is_better_than_none() -> None:
    home = replace(LATE, wait_s=math.inf)
    assert goes(CANDIDATE, home, replace(PEER, wait_s=30.0)).reason is HandOverReason.NO_REPLICA
    assert goes(CANDIDATE, home, replace(PEER, barred=StayReason.QUIET)).reason is HandOverReason.NO_REPLICA
    assert goes(CANDIDATE, home, replace(PEER, sent_prefill_s=5.0)).reason is HandOverReason.NO_REPLICA
    assert stays(home=home, peer=replace(PEER, wait_s=61.0)) is StayReason.LATE_THERE
    assert stays(home=home, peer=replace(PEER, barred=StayReason.LOADED)) is StayReason.LOADED


def test_what_home_may_not_serve_leaves_though_home_is_in_time() -> None:
    candidate = replace(CANDIDATE, allowed=Allowed(frozenset({"us"}), ALL))
    assert outside_residency(candidate, IN_TIME)
    assert goes(candidate, IN_TIME).reason is HandOverReason.RESIDENCY
    assert stays(candidate, IN_TIME, replace(PEER, cell="ap")) is StayReason.RESIDENCY


def test_a_class_that_prefers_price() -> None:
    candidate = replace(CANDIDATE, prefers_price=True)
    cheap, fast = replace(PEER, usd_per_mtok=4.0), replace(PEER, cell="ap", wait_s=0.0, usd_per_mtok=4.4)
    assert goes(candidate, IN_TIME, cheap, fast) == goes(candidate, IN_TIME, cheap)
    assert goes(candidate, IN_TIME, cheap).reason is HandOverReason.CHEAPER
    assert goes(candidate, LATE, cheap, fast).peer == "us", "the cheaper one that holds the SLO"
    assert goes(replace(candidate, prefers_price=False), LATE, cheap, fast).peer == "ap"
    assert stays(candidate, IN_TIME, replace(PEER, usd_per_mtok=4.6)) is StayReason.NOT_CHEAPER
    assert stays(candidate, IN_TIME, replace(PEER, usd_per_mtok=None)) is StayReason.NOT_CHEAPER
    assert stays(candidate, IN_TIME, replace(cheap, wait_s=0.9)) is StayReason.NOT_CHEAPER, "late there"


def test_the_peer_that_came_closest_says_why() -> None:
    peers = [replace(PEER, cell="ap", wait_s=5.0), PeerView("us", StayReason.NO_DIGEST)]
    assert decide(CANDIDATE, LATE, peers, POLICY) == Stay(StayReason.LATE_THERE, "ap")
    assert decide(CANDIDATE, LATE, peers[::-1], POLICY) == Stay(StayReason.LATE_THERE, "ap")


def test_requests_do_not_all_move_at_the_same_wait() -> None:
    policy = HandOverSettings(jitter=0.5)
    home = replace(LATE, wait_s=1.1)
    peer = replace(PEER, wait_s=0.6)  # the benefit is 0.4 s; the margin 0.2 to 0.6 s
    decisions = [decide(replace(CANDIDATE, request_id=f"r{n}"), home, [peer], policy) for n in range(1_000)]
    moved = sum(isinstance(decision, HandOver) for decision in decisions)
    assert 400 < moved < 600
    again = [decide(replace(CANDIDATE, request_id=f"r{n}"), home, [peer], policy) for n in range(1_000)]
    assert again == decisions


def test_two_equal_peers_get_half_each() -> None:
    peers = [PEER, replace(PEER, cell="ap")]
    chosen = [goes(replace(CANDIDATE, request_id=f"r{n}"), LATE, *peers).peer for n in range(1_000)]
    assert 450 < chosen.count("us") < 550


def test_of_peers_that_hold_the_slo_the_one_with_the_least_to_prefill_for_this_cell_is_asked() -> None:
    near, far = replace(PEER, sent_prefill_s=0.05), replace(PEER, cell="ap", rtt_s=0.2, sent_prefill_s=0.04)
    for slack_s in (CANDIDATE.slack_s, -20.0):
        assert goes(replace(CANDIDATE, slack_s=slack_s), LATE, near, far).peer == "ap"
    cached = replace(near, cached_tokens=CANDIDATE.prompt_tokens)
    assert goes(CANDIDATE, LATE, cached, far).peer == "us", "its own prompt is part of that"


def test_who_is_late_goes_where_it_is_sooner() -> None:
    near, far = replace(PEER, sent_prefill_s=0.05), replace(PEER, cell="ap", wait_s=0.7, sent_prefill_s=0.04)
    assert goes(replace(CANDIDATE, slack_s=0.5), LATE, near, far).peer == "us", "only there it is in time"
    home = replace(LATE, wait_s=math.inf)
    slow, slower = replace(PEER, wait_s=2.0, sent_prefill_s=0.05), replace(PEER, cell="ap", wait_s=20.0)
    assert goes(CANDIDATE, home, slower, slow).peer == "us"
    assert goes(replace(CANDIDATE, slack_s=-20.0), home, slower, replace(PEER, sent_prefill_s=0.05)).peer == "us"


def test_what_is_still_to_wait() -> None:
    assert remaining_s(5.0, 2.0, 9.0) == 3.0
    assert remaining_s(5.0, 5.0, 9.0) == 9.0
