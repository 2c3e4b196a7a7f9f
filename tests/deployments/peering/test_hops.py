"""Who has a request that is handed over: each way ends it once."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.peering import (
    CellPeering,
    HandedOver,
    HopAct,
    HopRefusal,
    Hops,
    HopState,
    Offer,
    Stay,
    Wait,
)
from tests.deployments.peering.setups import MODEL, make_digest, make_model, make_request, make_spec


def make_hops() -> Hops:
    hops = Hops()
    hops.offer("r", HandedOver("us", 1, 1.0, 0.0, 0.5))
    return hops


def test_the_peer_takes_answers_and_ends_it() -> None:
    hops = make_hops()
    assert hops.taken("r", 1) is HopAct.LEAVE_LANE
    assert hops.taken("r", 1) is HopAct.NOTHING
    assert hops.left_home("r") is HopAct.NOTHING
    assert hops.first_byte("r", 1) is HopAct.NOTHING
    assert hops.finished("r", 1) is HopAct.END
    assert hops.finished("r", 1) is HopAct.NOTHING
    assert hops.spent("r")


def test_a_byte_before_the_yes_is_a_yes() -> None:
    hops = make_hops()
    assert hops.first_byte("r", 1) is HopAct.LEAVE_LANE
    hop = hops.get("r")
    assert hop is not None
    assert hop.state is HopState.ANSWERING
    assert hops.taken("r", 1) is HopAct.NOTHING


def test_home_is_first() -> None:
    hops = make_hops()
    assert hops.left_home("r") is HopAct.CANCEL_THERE
    assert hops.taken("r", 1) is HopAct.CANCEL_THERE
    assert hops.first_byte("r", 1) is HopAct.CANCEL_THERE
    assert hops.finished("r", 1) is HopAct.NOTHING


def test_a_rejection_leaves_it_at_home_and_is_not_asked_for_again() -> None:
    hops = make_hops()
    assert hops.rejected("r", 1) is HopAct.NOTHING
    assert hops.get("r") is None
    assert hops.tried("r") == {"us"}
    hops.offer("r", HandedOver("ap", 2, 1.0, 0.0, 0.5))
    assert hops.rejected("r", 1) is HopAct.NOTHING, "late, of the first offer"
    assert hops.taken("r", 2) is HopAct.LEAVE_LANE


def test_a_broken_link() -> None:
    hops = make_hops()
    assert hops.broke("r", 1) is HopAct.CANCEL_THERE, "it waits at home"
    hops = make_hops()
    hops.taken("r", 1)
    assert hops.broke("r", 1) is HopAct.SUBMIT_AGAIN
    with pytest.raises(ValueError, match="one hop, and one offer at a time"):
        hops.offer("r", HandedOver("ap", 2, 1.0, 0.0, 0.5))
    hops = make_hops()
    hops.first_byte("r", 1)
    assert hops.broke("r", 1) is HopAct.END_WITH_ERROR
    assert hops.broke("r", 1) is HopAct.NOTHING


def test_a_client_that_leaves() -> None:
    hops = make_hops()
    hops.taken("r", 1)
    hops.forget("r")
    assert not hops.spent("r")
    assert len(hops) == 0


EVENTS = ("taken", "rejected", "first_byte", "finished", "broke", "left_home", "forget")


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from((1, 2)))))
def test_any_order_of_words_ends_it_once(events: list[tuple[str, int]]) -> None:
    """Home has it, or the peer, or it is over: an act never says two of them."""
    hops = make_hops()
    has = {"home", "offered"}
    for event, number in events:
        by_number = event not in ("left_home", "forget")
        act = getattr(hops, event)("r", number) if by_number else getattr(hops, event)("r")
        if act is HopAct.LEAVE_LANE:
            assert has == {"home", "offered"}
            has = {"peer"}
        elif act is HopAct.SUBMIT_AGAIN:
            assert has == {"peer"}
            has = {"home"}
        elif act in (HopAct.END, HopAct.END_WITH_ERROR):
            assert has in ({"peer"}, {"home", "offered"})
            has = set()
        elif hops.get("r") is None and has == {"home", "offered"}:
            has = {"home"}
        elif hops.get("r") is None and has == {"peer"}:
            assert event == "forget"
            has = set()
    assert (hops.get("r") is not None) is (has & {"peer", "offered"} != set())


@pytest.mark.parametrize(("replicas", "again"), [(0, True), (2, False)])
def test_only_what_home_cannot_serve_is_offered_again_to_who_rejected_it(replicas: int, again: bool) -> None:
    home, own = CellPeering(make_spec(), "eu", 1), make_model(10.0, replicas)

    def hear(sequence: int, now: float) -> None:
        home.heard(make_digest("us", home.ask(now)["us"], None, 1, sequence, home.rules.marks), now + 0.05)

    def decided(name: str, now: float) -> Offer | Stay:
        return home.decide(Wait(make_request(name, 0.0, slo_s=5.0), MODEL, "all", 10.0, 50), own, now)

    hear(1, 0.0)
    offer = decided("q", 0.1)
    assert isinstance(offer, Offer)
    home.rejected("q", offer.hop.number, HopRefusal.REJECTED, 0.2)
    hear(2, 1.0)
    assert isinstance(decided("q", 1.1), Stay)
    hear(3, 3.0)
    assert isinstance(decided("other", 3.1), Offer)
    assert isinstance(decided("q", 3.1), Offer) == again


def test_a_body_may_take_its_time_and_is_not_held_against_the_peer() -> None:
    """8 MB at 50 Mbit/s take 1.3 s. A peer that says nothing at all is given up all the same."""
    home, own = CellPeering(make_spec(), "eu", 1), make_model(10.0, 0)
    home.heard(make_digest("us", home.ask(0.0)["us"], None, 1, 1, home.rules.marks), 0.05)

    def offer(name: str, body_bytes: int) -> int:
        request = replace(make_request(name, 0.0, slo_s=1.0), body_bytes=body_bytes)
        decided = home.decide(Wait(request, MODEL, "all", 10.0, 50), own, 0.1)
        assert isinstance(decided, Offer)
        return decided.hop.number

    number, _ = offer("long", 8_000_000), offer("lost", 8_000_000)
    assert not home.overdue(1.5)
    assert home.taken("long", number) is HopAct.LEAVE_LANE
    home.first_byte("long", number, 1.5)
    assert home.peers.by_cell["us"].trust_in(MODEL).at(1.5) == 1.0
    assert not home.overdue(8.0)
    offer("short", 1_000)
    assert {name for name, _ in home.overdue(8.0)} == {"short"}
    assert {name for name, _ in home.overdue(9.0)} == {"short", "lost"}
