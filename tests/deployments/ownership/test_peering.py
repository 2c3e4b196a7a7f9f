"""The owner's part in hand-overs: who is told what, which place a request has, and who serves it where two might."""

import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.peering import price_of
from deployments.ownership.record import RequestState
from deployments.peering import DigestRefusal, HopRefusal, Question
from deployments.scheduling import Binding, Ending, RejectCause, SchedulingPolicy, TenantPolicy
from tests.deployments.ownership.lane_owner_rig import account
from tests.deployments.ownership.peering_rig import Clock, Gateway, PeeredOwner, guest_facts, lanes_of, owner_time
from tests.deployments.peering.setups import KEY, MODEL, make_model, make_request, make_spec

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
    (admitted, handed_over) = home.gateway.news()
    assert (admitted[:3], handed_over[:2]) == (("admitted", "q", "queue"), ("handed over", "q"))
    assert (home.state(), home.owner.snapshot().away, home.owner.snapshot().lanes[0].waiting) == (AWAY, 1, 0)
    home.replica()
    assert home.gateway.news() == [], "it is the peer's"
    home.first_token()
    home.finished()
    assert (home.gateway.news(), home.state(), home.is_clean()) == ([], None, True)
    snapshot = home.owner.snapshot()
    (flow,) = snapshot.flows
    assert (snapshot.submitted, snapshot.withdrawn, snapshot.away, flow.arrived, flow.met) == (1, 1, 0, 1, 1)
    assert home.peering.stays == {}, "a hand-over is no stay"


async def test_an_answer_that_came_whole_is_in_time_by_its_first_token(home: PeeredOwner, clock: Clock) -> None:
    for name, ago_s in (("in time", 9.5), ("late", 1.0)):
        home.helpful()
        home.submit(name)
        clock.now += 10.0
        home.first_token(name, ago_s)
        home.finished(name)
    (flow,) = home.owner.snapshot().flows
    assert (flow.arrived, flow.met) == (2, 1)


async def test_what_the_peers_engine_counted_settles_the_limit_and_is_learned(clock: Clock) -> None:
    """Once, after the answer, and never more than the request can have taken."""
    home = PeeredOwner(clock, make_spec(tenants=[{"name": "acme", "keys": [KEY + "1"]}]))
    home.owner.configure(SchedulingPolicy(tenants={"acme": TenantPolicy(tokens_per_minute=60_000.0)}), Binding())
    told = account("", output=7)
    told = dataclasses.replace(told, usage=dataclasses.replace(told.usage, prompt_tokens=90))
    lie = dataclasses.replace(told, usage=dataclasses.replace(told.usage, prompt_tokens=10**9, output_tokens=10**9))
    before = 0
    for name, message, ending, took in (
        ("heard", told, Ending.FINISHED, 97),
        ("a lie", lie, Ending.FINISHED, 150),
        ("cancelled", told, Ending.CANCELLED, None),
        ("unheard", None, Ending.FINISHED, None),
    ):
        home.helpful()
        home.submit(name, tenant="acme")
        booked = home.owner.scheduler.tenant_use()[0].tokens - before
        assert booked > 100
        if message is not None:
            message = dataclasses.replace(message, request_id=f"{name}-1")
            home.owner.peer_finished(message)
        home.owner.release(f"{name}-1", ending)
        for _ in range(0 if message is None else 2):
            home.owner.peer_finished(message)
        (use,) = home.owner.scheduler.tenant_use()
        assert (name, use.tokens - before, use.at_once) == (name, took or booked, 0)
        before = use.tokens
    snapshot = home.owner.snapshot()
    assert (snapshot.counted, snapshot.output_tokens) == (2, 57)
    assert home.owner.scheduler.learned_state.outputs.expect(100, None)[0] < 60
    home.owner.close()


async def test_a_refused_request_waits_first_in_its_lane_and_goes_to_another_peer_with_the_next_digest(
    home: PeeredOwner,
) -> None:
    home.submit()
    (_, (_, _, first)) = home.gateway.news()
    home.refused()
    assert (home.gateway.news(), home.state(), home.owner.snapshot().away) == ([], WAITING, 0)
    home.helpful()
    ((_, _, second),) = home.gateway.news()
    assert {first, second} == {"us", "ap"}
    assert home.gateway.leases["q"].lease.attempt == 2
    home.refused()
    home.helpful()
    assert home.gateway.news() == [], "both have refused it"
    home.replica()
    (placement,) = home.gateway.placements
    assert placement.lease.attempt == 3, "no attempt is issued twice"
    home.owner.release("q-3", Ending.FINISHED)
    assert home.is_clean()


async def test_where_home_has_no_replica_a_peer_is_asked_again_once_its_refusal_is_old(
    home: PeeredOwner, clock: Clock
) -> None:
    home.submit()
    home.refused()
    home.helpful("us")
    home.refused()
    home.gateway.news()
    clock.now += home.spec.peering.max_age_s if home.spec.peering else 0.0
    home.helpful("us")
    assert home.gateway.news() == [("handed over", "q", "us")]
    home.finished()
    assert home.is_clean()


async def test_a_request_that_the_peer_loses_waits_again_first_and_goes_nowhere_else(home: PeeredOwner) -> None:
    home.submit()
    home.submit("later")
    home.refused("later", HopRefusal.SPEC)
    home.gateway.news()
    home.refused(refusal=HopRefusal.LOST)
    assert (home.state(), home.owner.snapshot().away) == (WAITING, 0)
    home.helpful()
    assert not [one for one in home.gateway.news() if one[:2] == ("handed over", "q")], "one hop"
    home.replica()
    assert [one for one in home.gateway.news() if one[0] == "placed"] == [("placed", "q")]


async def test_a_peer_that_cannot_be_reached_gets_nothing_before_it_has_answered_again(home: PeeredOwner) -> None:
    home.submit()
    (*_, (_, _, peer)) = home.gateway.news()
    home.refused(refusal=HopRefusal.UNREACHABLE)
    assert home.state() == WAITING
    home.submit("other")
    (*_, (what, _, second)) = home.gateway.news()
    assert (what, {peer, second}) == ("handed over", {"us", "ap"})


async def test_what_a_silent_peer_has_is_recalled_and_the_gateway_says_what_becomes_of_it(
    home: PeeredOwner, clock: Clock
) -> None:
    for name in ("q", "answers"):
        home.submit(name, patience_s=600.0)
    home.first_token("answers")
    clock.now += 60.0
    home.gateway.news()
    home.peering.ask()
    assert home.gateway.news() == [("recalled", "q-1")]
    assert home.state() == AWAY, "its client may have got a byte meanwhile"
    home.refused(refusal=HopRefusal.LOST)
    assert home.state() == WAITING
    home.owner.cancel("q")
    home.finished("answers")
    assert home.is_clean()


async def test_what_is_said_of_unknown_and_earlier_leases_changes_nothing(home: PeeredOwner) -> None:
    home.submit()
    earlier = home.gateway.leases["q"].lease
    home.refused()
    home.helpful()
    home.gateway.news()
    home.owner.first_token(earlier.attempt_id)
    home.owner.release(earlier.attempt_id, Ending.CANCELLED)
    home.owner.release("nobody-1", Ending.FINISHED)
    assert (home.state(), home.gateway.news()) == (AWAY, [])


async def test_a_client_that_leaves_is_over_at_home(home: PeeredOwner) -> None:
    home.submit()
    home.owner.release("q-1", Ending.CANCELLED)
    assert (home.state(), home.is_clean()) == (None, True)


async def test_the_next_owner_takes_what_comes_back_from_a_peer(clock: Clock) -> None:
    before, after = PeeredOwner(clock), PeeredOwner(clock, epoch=2)
    before.helpful()
    before.submit()
    lease = before.gateway.leases["q"].lease
    after.owner.hold(after.gateway, lease.attempt_id)
    for made, refusal in ((after, HopRefusal.LOST),):
        made.owner.refused(made.gateway, lease, refusal)
        assert [one[:2] for one in made.gateway.news()] == [("admitted", "q")]
        made.replica()
        assert [one.lease.attempt for one in made.gateway.placements] == [2]
    for made in (before, after):
        made.owner.close()


async def test_a_request_that_waits_at_home_in_time_stays(home: PeeredOwner) -> None:
    home.replica(seats=1)
    home.submit("runs")
    home.submit(slo_s=1e6, patience_s=2e6)
    assert home.gateway.news()[-1][:3] == ("admitted", "q", "queue")
    assert home.state() == WAITING
    assert home.peering.stays == {"in_time": 1}


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
    (admitted, handed_over) = barred.gateway.news()
    assert (admitted, handed_over[:2]) == (("admitted", "q", "queue", None), ("handed over", "q"))
    assert (barred.state(), barred.owner.snapshot().submitted) == (AWAY, 0)
    barred.first_token()
    barred.finished()
    barred.owner.peer_finished(account("q-1"))
    assert (barred.state(), barred.is_clean(), barred.owner.snapshot().flows) == (None, True, ())
    assert barred.owner.snapshot().counted == 0, "nothing of it was booked here"


async def test_what_no_cell_takes_that_may_is_rejected_for_its_residency(barred: PeeredOwner) -> None:
    barred.submit("nobody is known")
    assert barred.gateway.news() == [("admitted", "nobody is known", "reject", RejectCause.RESIDENCY)]
    barred.helpful()
    barred.submit()
    barred.gateway.news()
    barred.refused()
    ((what, _, _),) = barred.gateway.news()
    assert what == "handed over", "the other peer is asked at once: it has no place to wait in"
    barred.refused()
    assert barred.gateway.news() == [("admitted", "q", "reject", RejectCause.RESIDENCY)]
    assert (barred.state(), barred.is_clean()) == (None, True)


async def test_what_a_peer_loses_that_its_home_may_not_serve_is_rejected(barred: PeeredOwner) -> None:
    barred.helpful()
    barred.submit()
    barred.gateway.news()
    barred.refused(refusal=HopRefusal.LOST)
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
    home.refused("waits", HopRefusal.SPEC)
    home.gateway.news()
    home.submit()
    (admitted, handed_over) = home.gateway.news()
    assert (admitted[:3], handed_over) == (("admitted", "q", "queue"), ("handed over", "q", "us"))
    home.refused(refusal=HopRefusal.LOADED)
    assert home.gateway.news() == [("admitted", "q", "reject", RejectCause.MODEL_FULL)]
    home.owner.close()


# Guests.
G = "g-1@us"


async def test_what_found_its_lanes_full_and_is_lost_by_its_peer_enters_a_lane(clock: Clock) -> None:
    home = PeeredOwner(clock, max_waiting=1)
    home.submit("waits", patience_s=60.0)
    home.helpful("us")
    home.submit(patience_s=60.0)
    home.refused(refusal=HopRefusal.LOST)
    assert home.state() == WAITING, "it was admitted: no cap rejects it now"
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
    assert home.gateway.news()[-1][:2] == ("handed over", "second")
    home.finished("second")


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


async def test_a_guest_is_judged_before_its_body_is_here(peer: PeeredOwner) -> None:
    assert peer.peering.judge(guest_facts()) is None
    assert peer.peering.judge(guest_facts(residency=frozenset({"us"}))) is HopRefusal.RESIDENCY
    peer.owner.replica_lost("r1")
    peer.clock.now += 1.0
    assert peer.peering.judge(guest_facts()) in (HopRefusal.LATE, HopRefusal.LOADED)
    assert (peer.owner.records.live, sum(peer.peering.refusals.values())) == (0, 2)


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
    assert peer.gateway.news() == [("refused", "g-2@us", HopRefusal.REJECTED)]
    assert (peer.owner.records.live, peer.is_clean()) == (0, True)
    peer.owner.close()


async def test_a_guest_that_waits_here_goes_no_further(peer: PeeredOwner) -> None:
    for number in range(1, 9):
        send(peer, guest_facts(f"g{number}", number))
    peer.helpful("ap")
    heard = peer.gateway.news()
    assert not [one for one in heard if one[0] == "handed over"]
    assert [one for one in heard if one[0] in ("placed", "refused")] == [("placed", "g1-1@us")]
    assert len(peer.owner.scheduler.lanes.guests) == 7, "they wait until its prompt is prefilled"


async def test_an_owner_without_peers_takes_no_guest() -> None:
    owner, gateway = LaneOwner(SchedulingPolicy()), Gateway()
    hop = guest_facts()
    owner.submit(gateway, hop.guest(make_request("g"), 0.0), False, hop)
    owner.submit(gateway, hop.guest(make_request("g"), 0.0), True, hop)
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
    home.refused()
    home.gateway.news()
    (first,) = home.digests(("us", lanes_of(make_model())))
    assert first is None
    home._sequence -= 1
    (replayed,) = home.digests(("us", lanes_of(make_model())))
    assert replayed is DigestRefusal.OLD_SEQUENCE


async def test_those_that_would_wait_for_longest_are_offered_first(home: PeeredOwner) -> None:
    for number in range(4):
        home.submit(f"q{number}")
        home.refused(f"q{number}", HopRefusal.SPEC)
        home.clock.now += 0.1
    home.gateway.news()
    home.helpful()
    assert len([one for one in home.gateway.news() if one[0] == "handed over"]) == 4


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
