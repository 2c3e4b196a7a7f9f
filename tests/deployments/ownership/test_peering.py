"""The owner's part in hand-overs: who is told what, which place a request has, and who serves it where two might."""

import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from deployments.ownership.hop_messages import HopFirstByte, HopTaken
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.peering import price_of
from deployments.ownership.record import RequestState
from deployments.peering import DigestRefusal, HopRefusal, Question, Rules
from deployments.scheduling import Ending, RejectCause, SchedulingPolicy
from tests.deployments.ownership.peering_rig import Clock, Gateway, PeeredOwner, guest_facts, lanes_of, owner_time
from tests.deployments.peering.setups import MODEL, make_digest, make_model, make_request, make_spec

AWAY, WAITING, RUNNING = RequestState.AWAY, RequestState.WAITING, RequestState.RUNNING


@pytest.fixture
def clock() -> Iterator[Clock]:
    with owner_time() as clock:
        yield clock


@pytest.fixture
async def home(clock: Clock) -> AsyncIterator[PeeredOwner]:
    """A cell without a replica, whose peers have room."""
    made = PeeredOwner(clock)
    made.helpful()
    yield made
    made.owner.close()


async def test_a_request_that_its_home_cannot_serve_goes_to_a_peer(home: PeeredOwner) -> None:
    home.submit()
    (admitted, offered) = home.gateway.news()
    assert (admitted[:3], offered[:2]) == (("admitted", "q", "queue"), ("offered", "q"))
    assert (home.state(), home.owner.snapshot().lanes[0].waiting) == (WAITING, 1), "it keeps its place"
    home.taken()
    assert home.gateway.news() == [("confirmed", "q")]
    assert (home.state(), home.owner.snapshot().away) == (AWAY, 1)
    home.taken()
    assert home.gateway.news() == []
    home.first_byte()
    home.finished()
    assert (home.gateway.news(), home.state(), home.is_clean()) == ([], None, True)
    snapshot = home.owner.snapshot()
    (flow,) = snapshot.flows
    assert (snapshot.submitted, snapshot.withdrawn, snapshot.away, flow.arrived, flow.met) == (1, 1, 0, 1, 1)
    assert home.peering.hops.stays == {}, "an offer is no stay"


async def test_what_home_places_first_the_peer_drops(home: PeeredOwner) -> None:
    home.submit()
    home.gateway.news()
    home.replica()
    assert home.gateway.news() == [("withdrawn", "q"), ("placed", "q")]
    home.taken()
    assert home.gateway.news() == [("withdrawn", "q")], "the yes was under way"
    home.first_byte()
    home.finished()
    assert (home.gateway.news(), home.state()) == ([], RUNNING)
    home.owner.release("q-1", Ending.FINISHED)
    home.peering.ask()
    assert home.is_clean()


async def test_a_rejected_request_keeps_its_place_and_goes_to_another_peer_with_the_next_digest(
    home: PeeredOwner,
) -> None:
    home.submit()
    ((_, _, first),) = [one for one in home.gateway.news() if one[0] == "offered"]
    home.rejected()
    assert (home.gateway.news(), home.state()) == ([], WAITING)
    home.helpful()
    ((_, _, second),) = home.gateway.news()
    assert {first, second} == {"us", "ap"}
    home.rejected()
    home.helpful()
    assert home.gateway.news() == [], "both have rejected it"
    home.owner.cancel("q")
    assert home.is_clean()


async def test_where_home_has_no_replica_a_peer_is_asked_again_once_its_refusal_is_old(
    home: PeeredOwner, clock: Clock
) -> None:
    home.submit()
    home.rejected()
    home.helpful("us")
    home.rejected()
    home.gateway.news()
    first = home.gateway.hops["q"].number
    clock.now += home.spec.peering.max_age_s if home.spec.peering else 0.0
    home.helpful("us")
    ((verb, request, peer),) = home.gateway.news()
    assert (verb, request, peer) == ("offered", "q", "us")
    assert home.gateway.hops["q"].number > first
    home.taken()
    home.finished()
    assert home.is_clean()


async def test_a_request_that_the_peer_loses_waits_again_first_and_goes_nowhere_else(home: PeeredOwner) -> None:
    home.submit()
    home.taken()
    home.submit("later")
    home.gateway.news()
    home.broke()
    assert (home.state(), home.owner.snapshot().away) == (WAITING, 0)
    home.helpful()
    assert not [one for one in home.gateway.news() if one[:2] == ("offered", "q")], "one hop"
    home.replica()
    assert [one for one in home.gateway.news() if one[0] == "placed"] == [("placed", "q")]


async def test_a_peer_that_cannot_be_reached_gets_nothing_before_it_has_answered_again(home: PeeredOwner) -> None:
    home.submit()
    (*_, (_, _, peer)) = home.gateway.news()
    home.broke()
    assert home.state() == WAITING
    home.submit("other")
    (*_, (what, _, second)) = home.gateway.news()
    assert (what, {peer, second}) == ("offered", {"us", "ap"})


async def test_an_offer_without_an_answer_is_withdrawn(home: PeeredOwner, clock: Clock) -> None:
    home.submit()
    home.gateway.news()
    clock.now += 0.2
    home.peering.ask()
    assert home.gateway.news() == []
    clock.now += 0.4
    home.peering.ask()
    assert (home.gateway.news(), home.state()) == ([("withdrawn", "q")], WAITING)
    home.taken()
    assert home.gateway.news() == [("withdrawn", "q")]


async def test_of_a_lost_peer_the_gateway_says_whether_its_client_has_a_byte(home: PeeredOwner, clock: Clock) -> None:
    for name in ("q", "answers"):
        home.submit(name, patience_s=600.0)
        home.taken(name)
    clock.now += 60.0
    home.owner.hop_reported(HopFirstByte("answers", home.number("answers")))
    home.gateway.news()
    home.peering.ask()
    assert home.gateway.news() == [("withdrawn", "q")]
    assert home.state() == AWAY, "it is not put back before the gateway has closed the hop"
    home.broke()
    assert home.state() == WAITING


async def test_reports_of_unknown_and_earlier_hops_change_nothing(home: PeeredOwner) -> None:
    home.owner.hop_reported(HopTaken("nobody", 1))
    home.submit()
    home.gateway.news()
    home.owner.hop_reported(HopFirstByte("q", home.number() + 7))
    home.rejected()
    home.taken()
    assert home.state() == WAITING
    assert ("confirmed", "q") not in home.gateway.news()


async def test_a_request_that_waits_at_home_in_time_stays(home: PeeredOwner) -> None:
    home.replica(seats=1)
    home.submit("runs")
    home.submit(slo_s=1e6, patience_s=2e6)
    assert home.gateway.news()[-1][:3] == ("admitted", "q", "queue")
    assert home.state() == WAITING
    assert home.peering.hops.stays == {"in_time": 1}


async def test_a_request_that_has_had_its_hop_is_offered_to_nobody(home: PeeredOwner) -> None:
    home.owner.submit(home.gateway, dataclasses.replace(home.request(), hops=1), True)
    home.helpful()
    assert [one[0] for one in home.gateway.news()] == ["admitted"]


# Requests in no lane.
GERMAN: dict[str, Any] = {"classes": [{"name": "interactive", "ttft_ms": 1_000, "residency": ["us", "ap"]}]}


@pytest.fixture
async def barred(clock: Clock) -> AsyncIterator[PeeredOwner]:
    """A cell that may not serve the class, with a replica."""
    made = PeeredOwner(clock, make_spec(**GERMAN))
    made.replica()
    yield made
    made.owner.close()


async def test_what_a_cell_may_not_serve_enters_no_lane_there(barred: PeeredOwner) -> None:
    barred.helpful()
    barred.submit()
    (admitted, offered) = barred.gateway.news()
    assert (admitted, offered[:2]) == (("admitted", "q", "queue", None), ("offered", "q"))
    assert (barred.state(), barred.owner.snapshot().submitted) == (AWAY, 0)
    barred.taken()
    assert barred.gateway.news() == [("confirmed", "q")]
    barred.first_byte()
    barred.finished()
    assert (barred.state(), barred.is_clean(), barred.owner.snapshot().flows) == (None, True, ())


async def test_what_no_cell_takes_that_may_is_rejected_for_its_residency(barred: PeeredOwner) -> None:
    barred.submit("nobody is known")
    assert barred.gateway.news() == [("admitted", "nobody is known", "reject", RejectCause.RESIDENCY)]
    barred.helpful()
    barred.submit()
    barred.gateway.news()
    barred.rejected()
    ((what, _, _),) = barred.gateway.news()
    assert what == "offered", "the other peer is asked at once: it has no place to wait in"
    barred.rejected()
    assert barred.gateway.news() == [("admitted", "q", "reject", RejectCause.RESIDENCY)]
    assert (barred.state(), barred.is_clean()) == (None, True)
    assert barred.peering.hops.rejections == {"residency": 2}


async def test_what_a_peer_loses_that_its_home_may_not_serve_is_rejected(barred: PeeredOwner) -> None:
    barred.helpful()
    barred.submit()
    barred.taken()
    barred.gateway.news()
    barred.broke()
    assert barred.gateway.news() == [("admitted", "q", "reject", RejectCause.RESIDENCY)]
    assert (barred.state(), barred.is_clean(), barred.owner.snapshot().submitted) == (None, True, 0)


async def test_residency_may_change_while_the_cell_runs(home: PeeredOwner) -> None:
    spec = make_spec(**GERMAN)
    home.peering.configure(spec)
    home.digests(("us", lanes_of(make_model())), spec=spec)
    home.submit()
    assert home.state() == AWAY
    assert home.owner.snapshot().submitted == 0


async def test_what_finds_its_lanes_full_may_find_room_at_a_peer(clock: Clock) -> None:
    home = PeeredOwner(clock, max_waiting=1)
    home.submit("waits")
    home.submit("too many")
    assert home.gateway.news()[-1] == ("admitted", "too many", "reject", RejectCause.MODEL_FULL)
    home.helpful("us")
    home.gateway.news()
    home.submit()
    (admitted, offered) = home.gateway.news()
    assert (admitted[:3], offered) == (("admitted", "q", "queue"), ("offered", "q", "us"))
    home.rejected(refusal=HopRefusal.LOADED)
    assert home.gateway.news() == [("admitted", "q", "reject", RejectCause.MODEL_FULL)]
    home.owner.close()


# Guests.
G = "g@us.1.1"


async def test_what_found_its_lanes_full_and_is_lost_by_its_peer_enters_a_lane(clock: Clock) -> None:
    home = PeeredOwner(clock, max_waiting=1)
    home.submit("waits", patience_s=60.0)
    home.helpful("us")
    home.submit(patience_s=60.0)
    home.taken()
    home.broke()
    assert home.state() == WAITING, "it was admitted: no cap rejects it now"
    home.helpful("us")
    assert sorted(one[1] for one in home.gateway.news() if one[0] == "offered") == ["q", "waits"]
    home.owner.close()


async def test_what_waits_in_vain_may_still_be_taken(home: PeeredOwner, clock: Clock) -> None:
    home.submit(patience_s=30.0)
    home.gateway.news()
    home.owner.expect_replica(clock.now + 600.0)
    home.owner.replica_state("r1", None)
    home.replica(name="r2")
    home.gateway.news()
    home.owner.replica_lost("r2")
    home.submit("second", patience_s=30.0)
    assert home.state("second") == AWAY, "it would be rejected here: the next replica comes too late"
    home.taken("second")
    home.finished("second")
    assert home.gateway.news()[-1] == ("confirmed", "second")


@pytest.fixture
async def peer(clock: Clock) -> AsyncIterator[PeeredOwner]:
    """A cell with a replica, asked by others."""
    made = PeeredOwner(clock)
    made.replica(seats=8)
    yield made
    made.owner.close()


def send(peer: PeeredOwner, hop: Any = None, admitted: bool = False, **changes: Any) -> None:
    hop = hop or guest_facts()
    guest = dataclasses.replace(hop.guest(make_request(hop.request_id), peer.clock.now), **changes)
    peer.owner.submit(peer.gateway, guest, admitted, hop)


async def test_a_guest_is_taken_and_placed(peer: PeeredOwner) -> None:
    send(peer)
    assert [one[:2] for one in peer.gateway.news()] == [("admitted", G), ("placed", G)]
    snapshot = peer.owner.snapshot()
    assert (snapshot.guests, snapshot.flows, snapshot.placed) == (1, (), 1)
    peer.owner.first_token(f"{G}-1")
    peer.owner.release(f"{G}-1", Ending.FINISHED)
    assert peer.is_clean()
    (received,) = peer.peering.digest(Question(7, 1)).received
    assert received == ("us", 1, 1)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"marks": frozenset({"x"})}, HopRefusal.SPEC),
        ({"model": "other"}, HopRefusal.SPEC),
        ({"residency": frozenset({"us", "ap"})}, HopRefusal.RESIDENCY),
        ({"hops": 2}, HopRefusal.LOOP),
        ({"home": "mars"}, HopRefusal.UNKNOWN_CELL),
    ],
)
async def test_a_guest_is_refused_by_this_cell_s_own_rules(
    peer: PeeredOwner, changes: dict[str, Any], refusal: HopRefusal
) -> None:
    hop = guest_facts(**changes)
    send(peer, hop)
    assert peer.gateway.news() == [("refused", hop.guest_id, refusal)]
    assert (peer.owner.records.live, peer.is_clean(), peer.peering.refusals) == (0, True, {refusal: 1})


@pytest.mark.parametrize("changes", [{"traffic_class": "batch"}, {"tenant": "x"}, {"guest_of": "ap"}])
async def test_a_guest_that_is_another_than_its_hop_says_is_refused(peer: PeeredOwner, changes: dict[str, Any]) -> None:
    send(peer, None, **changes)
    assert peer.gateway.news() == [("refused", G, HopRefusal.SPEC)]


async def test_a_guest_without_its_hop_is_refused(peer: PeeredOwner) -> None:
    peer.owner.submit(peer.gateway, guest_facts().guest(make_request("g"), peer.clock.now))
    assert peer.gateway.news() == [("refused", G, HopRefusal.SPEC)]


async def test_a_hop_that_is_sent_twice_is_refused_the_second_time(peer: PeeredOwner) -> None:
    send(peer)
    peer.owner.release(f"{G}-1", Ending.FINISHED)
    peer.gateway.news()
    send(peer)
    assert peer.gateway.news() == [("refused", G, HopRefusal.REPLAYED)]


@pytest.mark.parametrize("epoch", [1, 3])
async def test_the_next_owner_takes_no_hop_of_another_epoch(clock: Clock, epoch: int) -> None:
    """It does not know which have come before."""
    peer = PeeredOwner(clock, epoch=2)
    peer.replica(seats=8)
    send(peer, guest_facts(peer_epoch=epoch))
    assert peer.gateway.news() == [("refused", G, HopRefusal.OLD_EPOCH)]
    assert peer.peering.digest(Question(7, 1)).received == (), "it counts as never received"
    send(peer, guest_facts(peer_epoch=2))
    assert [one[0] for one in peer.gateway.news()] == ["admitted", "placed"]
    peer.owner.close()


async def test_a_hop_names_the_epoch_of_the_peers_last_digest(clock: Clock) -> None:
    home = PeeredOwner(clock)
    for number, epoch in enumerate((4, 9)):
        question = home.peering.ask()["us"]
        marks = Rules(home.spec).marks
        clock.now += 0.05
        assert home.peering.heard(make_digest("us", question, lanes_of(make_model()), epoch, 1, marks)) is None
        home.submit(f"q{number}")
        assert home.gateway.hops[f"q{number}"].peer_epoch == epoch
    home.owner.close()


async def test_a_guest_of_an_earlier_owner_is_not_asked_about_again(peer: PeeredOwner) -> None:
    send(peer, guest_facts(marks=frozenset({"x"})), admitted=True)
    assert [one[0] for one in peer.gateway.news()] == ["admitted", "placed"]


async def test_the_scheduler_may_reject_a_guest(clock: Clock) -> None:
    peer = PeeredOwner(clock, max_waiting=0)
    send(peer, guest_facts(reason="residency"))
    assert [one[0] for one in peer.gateway.news()] == ["refused"]
    peer.replica()
    assert peer.owner.scheduler.waiting.expected(make_request("x"), clock.now).p95_s == 0.0
    send(peer, guest_facts(number=2, reason="residency"))
    assert peer.gateway.news() == [("refused", "g@us.1.2", HopRefusal.REJECTED)]
    assert (peer.owner.records.live, peer.is_clean()) == (0, True)
    peer.owner.close()


async def test_a_guest_that_waits_here_goes_no_further(peer: PeeredOwner) -> None:
    for number in range(1, 9):
        send(peer, guest_facts(f"g{number}", number))
    peer.helpful("ap")
    heard = peer.gateway.news()
    assert not [one for one in heard if one[0] == "offered"]
    assert [one for one in heard if one[0] in ("placed", "refused")] == [("placed", "g1@us.1.1")]
    assert len(peer.owner.scheduler.lanes.guests) == 7, "they wait until its prompt is prefilled"


async def test_an_owner_without_peers_takes_no_guest() -> None:
    owner, gateway = LaneOwner(SchedulingPolicy()), Gateway()
    hop = guest_facts()
    owner.submit(gateway, hop.guest(make_request("g"), 0.0), False, hop)
    owner.submit(gateway, hop.guest(make_request("g"), 0.0), True, hop)
    owner.hop_reported(HopTaken("g", 1))
    assert gateway.news() == 2 * [("refused", G, HopRefusal.SPEC)]
    assert (owner.peering, owner.records.live) == (None, 0)
    owner.close()


# Digests.
async def test_the_own_digest_is_the_scheduler_s(peer: PeeredOwner) -> None:
    (model,) = peer.peering.digest(Question(7, 1)).models
    assert (model.model, model.replicas, model.max_sequences, model.hands_over) == (MODEL, 1, 8, False)
    peer.clock.now += 0.01
    peer.owner.replica_lost("r1")
    assert peer.peering.digest(Question(7, 2)).models[0].replicas == 1, "a moment ago is good enough"
    peer.clock.now += 0.05
    assert peer.peering.digest(Question(7, 3)).models[0].replicas == 0


async def test_a_cell_that_hands_over_says_so(home: PeeredOwner, clock: Clock) -> None:
    home.submit()
    clock.now += 0.1
    assert home.peering.digest(Question(7, 1)).models[0].hands_over


async def test_a_digest_that_answers_nothing_is_refused_and_decides_nothing(home: PeeredOwner) -> None:
    home.submit()
    home.rejected()
    home.gateway.news()
    (first,) = home.digests(("us", lanes_of(make_model())))
    assert first is None
    home._sequence -= 1
    (replayed,) = home.digests(("us", lanes_of(make_model())))
    assert replayed is DigestRefusal.OLD_SEQUENCE


async def test_those_that_would_wait_for_longest_are_offered_first(home: PeeredOwner) -> None:
    for number in range(4):
        home.submit(f"q{number}")
        home.rejected(f"q{number}", HopRefusal.SPEC)
        home.clock.now += 0.1
    home.gateway.news()
    home.helpful()
    assert len([one for one in home.gateway.news() if one[0] == "offered"]) == 4


async def test_the_price_of_work_is_that_of_the_replicas_that_do_it(peer: PeeredOwner) -> None:
    priced = make_spec(
        regions=[
            {
                "name": name,
                "endpoint": f"https://{name}.example.org",
                "pools": [{"name": "p", "price_usd_per_hour": 3.6}],
            }
            for name in ("eu", "us")
        ]
    )
    snapshot = peer.owner.snapshot()
    (replica,) = snapshot.replicas
    usd = price_of(priced, "eu", MODEL)(snapshot)
    assert usd == pytest.approx(3.6 / (replica.prefill_tokens_per_s * 3_600) * 1e6)
    two = dataclasses.replace(snapshot, replicas=(replica, replica))
    assert price_of(priced, "eu", MODEL)(two) == pytest.approx(usd), "of work, not of the cell"
    draining = dataclasses.replace(snapshot, replicas=(dataclasses.replace(replica, status="draining"),))
    assert price_of(priced, "eu", MODEL)(draining) is None
    assert price_of(make_spec(), "eu", MODEL)(snapshot) is None
