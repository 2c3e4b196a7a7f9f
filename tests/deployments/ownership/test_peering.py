"""The owner's part in hand-overs: who is told what, which place a request has, and who serves it where two might."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.ownership.peering import price_of
from deployments.ownership.record import Rejected, RequestState
from deployments.peering import HopRefusal, Question
from deployments.protocol import ReplicaState
from deployments.scheduling import Binding, Ending, Placement, RejectCause, SchedulingPolicy, TenantPolicy
from tests.deployments.ownership.lane_owner_rig import account
from tests.deployments.ownership.peering_rig import (
    Clock,
    Gateway,
    PeeredOwner,
    guest_facts,
    lanes_of,
    make_facts,
    owner_time,
)
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


async def test_what_the_peers_engine_counted_settles_the_limit_and_is_learned(clock: Clock) -> None:
    """Once, after the answer, and never more than the request can have taken."""
    home = PeeredOwner(clock, make_spec(tenants=[{"name": "acme", "keys": [KEY + "1"]}]))
    home.owner.configure(SchedulingPolicy(tenants={"acme": TenantPolicy(tokens_per_minute=60_000.0)}), Binding())
    told = account("", output=7)
    told = replace(told, usage=replace(told.usage, prompt_tokens=90))
    lie = replace(told, usage=replace(told.usage, prompt_tokens=10**9, output_tokens=10**9))
    before = 0
    for name, message, ending, took in (
        ("heard", told, Ending.FINISHED, 97),
        ("a-lie", lie, Ending.FINISHED, 150),
        ("cancelled", told, Ending.CANCELLED, None),
        ("cut", replace(told, usage=replace(told.usage, sequences=0)), Ending.FINISHED, None),
        ("unheard", None, Ending.FINISHED, None),
    ):
        home.helpful()
        home.submit(name, tenant="acme")
        booked = home.owner.scheduler.tenant_use()[0].tokens - before
        assert booked > 100
        if message is not None:
            message = replace(message, request_id=f"{name}-1")
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
    home.submit("next")
    assert home.gateway.news()[-1][2] != first, "it had no room a moment ago"
    home.finished("next")
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


async def test_of_what_a_silent_peer_has_only_that_is_recalled_whose_client_has_no_token(
    home: PeeredOwner, clock: Clock
) -> None:
    for name in ("answered", "unanswered"):
        home.submit(name, prefix=(1, 2))
    home.first_token("answered", ago_s=0.5)
    home.gateway.news()
    assert [flow.met for flow in home.owner.snapshot().flows] == [1]
    views = home.peering.core.peers.views(MODEL, SchedulingPolicy().lanes[0].name, clock.now, (1, 2), 64)
    peer = home.gateway.leases["answered"].peer
    assert {view.cell: view.cached_tokens for view in views}[peer] == 128, "which has its prompt"
    clock.now += 60.0
    home.peering.ask()
    assert home.gateway.news() == [("recalled", "unanswered-1")]


async def test_what_is_placed_while_others_are_handed_over_stays(clock: Clock) -> None:
    """The client of the head has just left: its lease at the peer ends at once, and the next one has room here."""
    home = PeeredOwner(clock)
    home.replica(seats=2)
    decide = home.peering.core.decide
    late = mock.patch.object(
        home.peering.core, "decide", lambda wait, own, now: decide(wait, replace(own, replicas=0), now)
    )
    home.submit("runs")
    home.owner.first_token("runs-1")
    home.owner.submit(home.gateway, replace(home.request("head", prompt=40), sequences=2))
    home.submit("next", prompt=500)
    assert (home.state("head"), home.state("next")) == (WAITING, WAITING)
    home.gateway.left["head"] = home.owner
    with late:
        home.helpful("us")
    assert (home.state("head"), home.state("next")) == (None, RUNNING)
    home.gateway.news()
    clock.now += 60.0
    home.peering.ask()
    assert home.gateway.news() == [], "what runs here is not recalled"
    for name in ("runs-1", "next-1"):
        home.owner.release(name, Ending.FINISHED)
    assert home.is_clean()
    home.owner.close()


async def test_what_a_silent_peer_has_from_an_owner_before_is_recalled(home: PeeredOwner, clock: Clock) -> None:
    age_s = home.peering.core.policy.max_age_s
    home.owner.hold(home.gateway, "there-1", "cell us")
    home.owner.hold(home.gateway, "ends-1", "cell us")
    home.owner.hold(home.gateway, "here-1", "r1")
    clock.now += 1.5 * age_s
    home.helpful("us")
    home.owner.release("ends-1", Ending.FINISHED)
    clock.now += 1.5 * age_s
    home.peering.ask()
    assert home.gateway.news() == []
    clock.now += 1.5 * age_s
    home.peering.ask()
    assert home.gateway.news() == [("recalled", "there-1")]


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
    assert barred.owner.snapshot().counted == 1


async def test_limits_hold_for_what_enters_no_lane_here(barred: PeeredOwner) -> None:
    """Each of these counts from its hand-over on, and what its peer's engine has counted settles it."""
    limits = TenantPolicy(tokens_per_minute=60_000.0, max_concurrency=2)
    barred.owner.configure(SchedulingPolicy(tenants={"": limits}), Binding())
    for name in "abcd":
        barred.helpful()
        barred.submit(name)
        if barred.state(name) is AWAY:
            barred.first_token(name)
    heard = [(name, cause) for what, name, *_, cause in barred.gateway.news() if what == "admitted"]
    assert heard == [("a", None), ("b", None), *((name, RejectCause.TENANT_CONCURRENCY) for name in "cd")]
    (use,) = barred.owner.scheduler.tenant_use()
    assert (use.requests, use.at_once) == (2, 2)
    barred.finished("a")
    barred.owner.peer_finished(account("a-1", output=7))
    barred.refused("b")
    barred.refused("b")
    assert barred.gateway.news()[-1] == ("admitted", "b", "reject", RejectCause.RESIDENCY)
    (settled,) = barred.owner.scheduler.tenant_use()
    assert (settled.at_once, settled.tokens < use.tokens) == (0, True)
    assert barred.is_clean()


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
    home.submit("lost")
    home.gateway.news()
    home.refused(refusal=HopRefusal.LOADED)
    assert home.gateway.news() == [("admitted", "q", "reject", RejectCause.MODEL_FULL)]
    home.refused("lost", HopRefusal.LOST)
    home.helpful("us")
    assert home.gateway.news()[0] == ("admitted", "lost", "queue", None)
    assert home.state("lost") == WAITING, "it has had its hop, and is served here"
    home.owner.close()


# Guests.
G = "g-1@us"


async def test_what_waits_here_until_that_is_in_vain_goes_to_each_peer_in_turn(home: PeeredOwner, clock: Clock) -> None:
    home.replica()
    for name in ("runs", "waits"):
        home.submit(name, patience_s=30.0)
    assert (home.state("runs"), home.state("waits")) == (RUNNING, WAITING)
    home.gateway.news()
    home.owner.expect_replica(clock.now + 600.0)
    home.owner.replica_state("r1", ReplicaState.DRAINING)
    home.submit("comes", patience_s=30.0)
    assert (home.state("comes"), home.gateway.heard.pop()[:2]) == (AWAY, ("handed over", "comes"))
    home.finished("comes")
    home.gateway.heard.pop()
    for _ in range(2):
        assert [news[:2] for news in home.gateway.news()] == [("handed over", "waits")]
        home.refused("waits")
    assert home.gateway.news() == [("admitted", "waits", "reject", RejectCause.STARTING)]
    home.owner.release("runs-1", Ending.FINISHED)
    assert home.is_clean()


@pytest.fixture
async def peer(clock: Clock) -> AsyncIterator[PeeredOwner]:
    """A cell with a replica, asked by others."""
    made = PeeredOwner(clock)
    made.replica(seats=8)
    yield made
    made.owner.close()


def send(peer: PeeredOwner, hop: Any = None, admitted: bool = False, **changes: Any) -> None:
    hop = hop or guest_facts()
    guest = replace(hop.guest(make_request(hop.request_id), peer.clock.now), **changes)
    peer.owner.submit(peer.gateway, guest, admitted, hop)


@pytest.mark.parametrize("changes", [{"traffic_class": "batch"}, {"tenant": "x"}, {"guest_of": "ap"}])
async def test_a_guest_that_is_another_than_its_hop_says_is_refused(peer: PeeredOwner, changes: dict[str, Any]) -> None:
    send(peer, None, **changes)
    assert peer.gateway.news() == [("refused", G, HopRefusal.SPEC)]


async def test_a_guest_is_judged_before_its_body_comes(peer: PeeredOwner) -> None:
    assert peer.peering.judge(guest_facts()) is None
    assert peer.peering.judge(guest_facts(marks=frozenset({"x"}))) is HopRefusal.SPEC
    for number in range(8):
        peer.submit(f"own{number}")
    peer.clock.now += 0.1
    assert peer.peering.judge(guest_facts()) is HopRefusal.LATE
    assert peer.peering.refusals == {HopRefusal.SPEC: 1, HopRefusal.LATE: 1}


async def test_a_guest_without_its_hop_is_refused(peer: PeeredOwner) -> None:
    peer.owner.submit(peer.gateway, guest_facts().guest(make_request("g"), peer.clock.now))
    assert peer.gateway.news() == [("refused", G, HopRefusal.SPEC)]
    assert peer.peering.refusals == {HopRefusal.SPEC: 1}


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
    assert ([*peer.owner.records], peer.is_clean()) == ([], True)
    peer.owner.close()


async def test_a_guest_that_is_rejected_after_it_was_admitted_hears_why(clock: Clock) -> None:
    spec, hop = make_spec(), guest_facts()
    dispatcher = Dispatcher(spec.model(MODEL))
    owner = LaneOwner(SchedulingPolicy(), replicas=dispatcher.replicas, records=dispatcher.records)
    owner.help_peers(spec, "eu", MODEL)
    dispatcher.on_ready = owner.replica_up
    dispatcher.follow(owner)
    for name in ("r1", "r2"):
        dispatcher.replica_up(make_facts(name))
    guest = hop.guest(make_request("g"), clock.now)
    assert (await dispatcher.submit(guest, hop)).accepted
    for _ in range(2):
        placement = await dispatcher.placement(guest)
        assert isinstance(placement, Placement)
        dispatcher.replica_lost(placement.replica_id)
        dispatcher.refused(placement.lease, None)
    with pytest.raises(Rejected, match="query_of_death"):
        async with asyncio.timeout(1.0):
            await dispatcher.placement(guest)
    assert (len(dispatcher), [*owner.records]) == (0, [])
    owner.close()


async def test_an_owner_without_peers_takes_no_guest() -> None:
    owner, gateway = LaneOwner(SchedulingPolicy()), Gateway()
    hop = guest_facts()
    owner.submit(gateway, hop.guest(make_request("g"), 0.0), False, hop)
    owner.submit(gateway, hop.guest(make_request("g"), 0.0), True, hop)
    assert gateway.news() == 2 * [("refused", G, HopRefusal.SPEC)]
    assert (owner.peering, [*owner.records]) == (None, [])
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


async def test_the_price_of_work_is_that_of_the_replicas_that_do_it(peer: PeeredOwner) -> None:
    pools = [{"name": "p", "price_usd_per_hour": 3.6}]
    priced = make_spec(
        regions=[{"name": one, "endpoint": f"https://{one}.example.org", "pools": pools} for one in ("eu", "us")]
    )
    snapshot = peer.owner.snapshot()
    (replica,) = snapshot.replicas
    usd = price_of(priced, "eu", MODEL)(snapshot)
    assert usd == pytest.approx(3.6 / (replica.prefill_tokens_per_s * 3_600) * 1e6)
    two = replace(snapshot, replicas=(replica, replica))
    assert price_of(priced, "eu", MODEL)(two) == pytest.approx(usd), "of work, not of the cell"
    draining = replace(snapshot, replicas=(replace(replica, status="draining"),))
    assert price_of(priced, "eu", MODEL)(draining) is None
    assert price_of(make_spec(), "eu", MODEL)(snapshot) is None
    pools = [[{"name": name, "price_usd_per_hour": 3.6}] for name in ("p", "q")]
    groups = [{"name": "default", "pool": "p", "regions": ["eu"]}, {"name": "there", "pool": "q", "regions": ["us"]}]
    apart = make_spec(
        regions=[
            {"name": one, "endpoint": f"https://{one}.example.org", "pools": has}
            for one, has in zip(("eu", "us"), pools, strict=True)
        ],
        models=[{"name": MODEL, "source": "s", "settings": {"max_model_len": 10_000}, "groups": groups}],
    )
    assert price_of(apart, "eu", MODEL)(snapshot) == pytest.approx(usd), "of the groups of this cell"
