"""A request that is handed over: when it may go to a peer again, and what its peer is believed for."""

from dataclasses import replace

import pytest

from deployments.peering import CellPeering, HopRefusal, Offer, Stay, StayReason
from deployments.scheduling import WaitingRequest
from tests.deployments.peering.setups import MODEL, make_digest, make_model, make_request, make_spec


def hear(home: CellPeering, sequence: int, now: float, cell: str = "us") -> None:
    home.heard(make_digest(cell, home.ask(now)[cell], None, 1, sequence, home.rules.marks), now + 0.05)


def heard(*cells: str) -> CellPeering:
    """`eu`, which has heard of these at second 0."""
    home = CellPeering(make_spec(), "eu", 1)
    for cell in cells:
        hear(home, 1, 0.0, cell)
    return home


def decided(home: CellPeering, name: str, now: float, replicas: int = 0, body_bytes: int = 0) -> Offer | Stay:
    request = replace(make_request(name, 0.0, slo_s=5.0), body_bytes=body_bytes)
    return home.decide(WaitingRequest(request, "all", 10.0, 50), make_model(10.0, replicas), now)


@pytest.mark.parametrize(("replicas", "again"), [(0, True), (2, False)])
def test_only_what_home_cannot_serve_goes_again_to_who_rejected_it(replicas: int, again: bool) -> None:
    home = heard("us")
    assert isinstance(decided(home, "q", 0.1, replicas), Offer)
    assert decided(home, "q", 0.1, replicas) == Stay(StayReason.HANDED_OVER)
    home.came_back("q", HopRefusal.REJECTED, 0.2)
    hear(home, 2, 1.0)
    assert isinstance(decided(home, "q", 1.1, replicas), Stay)
    hear(home, 3, 3.0)
    assert isinstance(decided(home, "other", 3.1, replicas), Offer)
    assert isinstance(decided(home, "q", 3.1, replicas), Offer) == again


def test_what_a_peer_has_lost_stays_at_home() -> None:
    home = heard("us", "ap")
    assert isinstance(decided(home, "q", 0.1), Offer)
    home.came_back("q", HopRefusal.LOST, 0.2)
    assert decided(home, "q", 0.3) == Stay(StayReason.HANDED_OVER)
    home.over("q")
    assert isinstance(decided(home, "q", 0.3), Offer), "another one of that name"


def test_a_peer_that_cannot_be_reached_gets_nothing_before_it_has_answered_a_question() -> None:
    home = heard("us", "ap")
    first = decided(home, "q", 0.1)
    assert isinstance(first, Offer)
    home.came_back("q", HopRefusal.UNREACHABLE, 0.4)
    for name in ("q", "r", "s"):
        other = decided(home, name, 0.5)
        assert isinstance(other, Offer)
        assert other.peer != first.peer
    assert not home.overdue(0.6), "what it has it may still answer"


def test_what_a_silent_peer_has_is_overdue_unless_it_answers() -> None:
    home = heard("us")
    for name in ("answers", "waits"):
        assert isinstance(decided(home, name, 0.1), Offer)
    home.first_token("answers", 1.0)
    assert not home.overdue(2 * home.policy.max_age_s)
    assert home.overdue(2 * home.policy.max_age_s + 0.1) == ("waits",)


def test_a_body_may_take_its_time_and_is_not_held_against_the_peer() -> None:
    """8 MB at 50 Mbit/s take 1.3 s, and are sent once the peer has asked for them."""
    home = heard("us")
    long, short = decided(home, "long", 0.1, body_bytes=8_000_000), decided(home, "short", 0.1)
    assert isinstance(long, Offer)
    assert isinstance(short, Offer)
    assert long.answer_s == short.answer_s
    home.first_token("long", 1.5)
    assert home.peers.by_cell["us"].trust_in(MODEL).at(1.5) == 1.0
    home.first_token("short", 1.5 + 0.25 * 5.0)
    assert home.peers.by_cell["us"].trust_in(MODEL).at(3.0) < 1.0


def test_first_goes_what_a_peer_can_serve_in_time_and_prefills_least() -> None:
    home = CellPeering(make_spec(), "eu", 1)
    for cell in ("us", "ap"):
        hear(home, 1, 10.0, cell)
    waits = []
    for name, prompt, left_s in (("large", 800, 2.0), ("late", 50, -0.5), ("small", 50, 2.0)):
        request = make_request(name, 9.0, slo_s=1.0 + left_s, prompt=prompt)
        waits.append(WaitingRequest(request, "all", 9.0, 50))
    offers = home.reconsider(waits, make_model(9.0), 10.1)
    assert [offer.hop.request_id for offer in offers] == ["small", "large", "late"]
