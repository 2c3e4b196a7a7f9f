"""Who ended, why, what was lost and what came instead, as a gateway and the directory tell it."""

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from deployments.cell.departure import Departure, DepartureCause, Lost
from deployments.gateway import feeds, replica_loss
from deployments.gateway.connection import Digests
from deployments.gateway.replica_loss import cause_of
from deployments.protocol import DrainReason, EngineFault, Failed, Load, ReplicaState, encode
from deployments.scheduling import Lease
from tests.deployments.gateway.fake_engine import Behaviour, FakeEngine, pieces, waiting
from tests.deployments.gateway.rig import ASK, SECRET, MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_deaths import asked, two
from tests.deployments.gateway.test_gateway_groups import two_groups


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is long."""
    monkeypatch.setattr(replica_loss, "SETTLE_S", 0.05)
    monkeypatch.setattr(replica_loss, "_RETRY_S", 0.05)


async def departure_of(rig: Rig, engine: FakeEngine) -> Departure:
    """Of that engine, once the directory knows it."""
    version, found = -1, None
    async with asyncio.timeout(20):
        while found is None:
            listing = await rig.directory.watch(version, 20.0)
            version = listing.version
            found = next((one for one in listing.departures.last if one.who == engine.facts.replica_id), None)
    return found


def last_words(state: ReplicaState, drains_for: DrainReason | None = None) -> Load:
    return Load(state, 0, 0, 0, 0.0, drains_for)


READY, DRAINING, UNHEALTHY = ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.UNHEALTHY
DEAD, STALLED = Failed(EngineFault.DEAD, "killed by SIGKILL"), Failed(EngineFault.STALLED, "no step for 8 s")
CAUSES = [
    (None, None, False, False, DepartureCause.PROCESS_DIED),
    (last_words(READY), None, False, False, DepartureCause.PROCESS_DIED),
    (last_words(READY), None, True, False, DepartureCause.PROCESS_DIED),
    (last_words(READY), None, False, True, DepartureCause.UNRESPONSIVE),
    (last_words(DRAINING, DrainReason.STOP), None, True, False, DepartureCause.STOPPED),
    (last_words(DRAINING, DrainReason.OPERATOR), None, True, False, DepartureCause.DRAINED),
    (last_words(DRAINING, DrainReason.SPOT_NOTICE), None, True, False, DepartureCause.SPOT_NOTICE),
    # Killed while it drained.
    (last_words(DRAINING, DrainReason.STOP), None, False, False, DepartureCause.PROCESS_DIED),
    (last_words(READY), DEAD, True, False, DepartureCause.ENGINE_DIED),
    (last_words(DRAINING, DrainReason.STOP), STALLED, True, True, DepartureCause.ENGINE_STALLED),
    (last_words(UNHEALTHY, DrainReason.STOP), None, True, False, DepartureCause.ENGINE_DIED),
]


@pytest.mark.parametrize(("last", "failed", "said_goodbye", "was_unresponsive", "cause"), CAUSES)
def test_the_cause_is_told_by_the_last_words(
    last: Load | None, failed: Failed | None, said_goodbye: bool, was_unresponsive: bool, cause: DepartureCause
) -> None:
    assert cause_of(last, failed, said_goodbye, was_unresponsive) is cause


async def test_a_replica_of_a_group_is_told_as_such(make_rig: MakeRig) -> None:
    rig, _, dear = await two_groups(make_rig)
    await dear.kill()
    assert (await departure_of(rig, dear)).model == "demo@dear"


async def test_a_killed_replica_is_told_with_what_was_lost_and_what_came_instead(rig: Rig) -> None:
    victim, hold = rig.engines[0], asyncio.Event()
    broken, spared = {**ASK, "stream": True, "prompt": "broken"}, {**ASK, "prompt": "spared"}
    behaviours: dict[str, Behaviour] = {
        "broken": pieces(b"data: 1\n\n", asyncio.Event()),
        "spared": waiting(asyncio.Event()),
    }
    victim.behave = lambda request, body: behaviours[body["prompt"]](request, body)
    tasks = [asyncio.create_task(rig.ask(body)) for body in (broken, spared)]
    await until(lambda: victim.open == 2)
    async with rig.post("/v1/completions", {**broken, "prompt": "broken"}) as response:
        assert await response.content.read(4) == b"data"  # both clients have read a part of the answer
        survivor = await rig.add(FakeEngine())
        survivor.behave = waiting(hold)
        await victim.kill()
        departure = await departure_of(rig, victim)
        hold.set()
    assert b"replica_lost" in (await tasks[0])[1]
    assert (await tasks[1])[0] == 200
    assert (departure.cause, departure.model, departure.pid) == (DepartureCause.PROCESS_DIED, "demo", victim.facts.pid)
    assert (departure.lost.broken, departure.lost.placed_again) == (2, 1)
    digests = {Digests(SECRET).of("/v1/completions", json.dumps(body).encode()) for body in (broken, spared)}
    assert set(departure.lost.digests) == digests
    assert departure.lost.tokens >= 3 * ASK["max_tokens"]  # type: ignore[operator]
    assert departure.replaced_by is None, "the other one was there before"
    third = await rig.add(FakeEngine())
    assert (await departure_of(rig, victim)).replaced_by == third.facts.replica_id


@pytest.mark.parametrize(
    ("reason", "cause"), [(DrainReason.STOP, DepartureCause.STOPPED), (DrainReason.OPERATOR, DepartureCause.DRAINED)]
)
async def test_a_drained_replica_is_no_loss(make_rig: MakeRig, reason: DrainReason, cause: DepartureCause) -> None:
    rig = await make_rig(engines=2)
    engine = rig.engines[0]
    engine.drains_for = reason
    await engine.become(DRAINING)
    await until(lambda: len(rig.dispatcher.replicas.ready) == 1)
    await engine.leave()
    departure = await departure_of(rig, engine)
    assert (departure.cause, departure.cause.planned, departure.lost.requests) == (cause, True, 0)


@pytest.mark.whole
async def test_a_unresponsive_replica_is_told_and_that_it_spoke_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "UNRESPONSIVE_AFTER_S", 0.1)
    monkeypatch.setattr(feeds, "LOST_AFTER_S", 0.4)
    engine = rig.engines[0]
    engine.speaks.clear()
    assert (await departure_of(rig, engine)).cause is DepartureCause.UNRESPONSIVE
    engine.speaks.set()
    await rig.directory.register(engine.facts)
    assert (await departure_of(rig, engine)).back_unix_s is not None


async def test_the_end_is_told_as_soon_as_there_is_a_directory_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    reported, refused = rig.directory.ended, 0

    async def away(event: Any) -> None:
        nonlocal refused
        refused += 1
        if refused < 3:
            raise RuntimeError("no directory")
        await reported(event)

    monkeypatch.setattr(rig.directory, "ended", away)
    await rig.engines[0].kill()
    assert (await departure_of(rig, rig.engines[0])).cause is DepartureCause.PROCESS_DIED
    assert refused == 3


async def test_an_engine_that_dies_is_told_from_a_replica_that_does(rig: Rig) -> None:
    engine = rig.engines[0]
    await engine.say(encode(STALLED))
    await engine.kill()
    departure = await departure_of(rig, engine)
    assert (departure.cause, departure.detail) == (DepartureCause.ENGINE_STALLED, "no step for 8 s")


async def test_metrics_and_status_tell_of_it(rig: Rig) -> None:
    await rig.engines[0].kill()
    await departure_of(rig, rig.engines[0])
    await until(lambda: rig.gateway._announced.departures.last)
    counted = {'{cause="process_died",kind="replica",model="demo",planned="no"}': 1}
    assert await rig.samples("raylane_departures_total") == counted
    (reported,) = (await rig.page("/raylane/status"))["departures"]
    assert (reported["kind"], reported["who"], reported["cause"]) == (
        "replica",
        rig.engines[0].facts.replica_id,
        "process_died",
    )


async def test_why_tells_of_the_replica_that_a_request_lost(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, hold = await two(make_rig)
    task, victim, survivor = await asked(rig, ASK, headers={"x-request-id": "mine"})
    await victim.say(encode(DEAD))
    await victim.kill()
    await until(lambda: survivor.open)
    hold.set()
    assert (await task)[0] == 200
    await departure_of(rig, victim)
    await until(lambda: rig.gateway._announced.departures.last)
    monkeypatch.setenv("RAYLANE_SECRET", SECRET)
    result = await asyncio.to_thread(CliRunner().invoke, app, ["why", "mine", "--url", rig.url])
    end = victim.facts.replica_id.rpartition("#")[2]
    assert f"replica {end} of demo lost (engine_died: killed by SIGKILL); requests: 1 placed again" in " ".join(
        result.stdout.split()
    )


async def test_a_gateway_says_what_would_be_lost_with_it(rig: Rig) -> None:
    engine, hold = rig.engines[0], asyncio.Event()
    engine.behave = waiting(hold)
    bodies = [{**ASK, "prompt": f"number {number}"} for number in range(3)]
    tasks = [asyncio.create_task(rig.ask(body)) for body in bodies]
    await until(lambda: engine.open == 3)
    held = rig.gateway._presence().held
    digests = Digests(SECRET)
    assert (held.broken, held.placed_again) == (3, 0)
    assert set(held.digests) == {digests.of("/v1/completions", json.dumps(body).encode()) for body in bodies}
    assert held.tokens == sum(lease.tokens for lease in leases(rig)) > 0
    hold.set()
    await asyncio.gather(*tasks)
    assert rig.gateway._presence().held == Lost()


def leases(rig: Rig) -> list[Lease]:
    return [record.lease for record in rig.owner.records if record.lease is not None]
