"""Feeds against a real server: who is ready, silent, back, or lost."""

import asyncio
from dataclasses import replace

import pytest

from deployments.gateway import feeds
from deployments.protocol import Finished, Hello, Load, ReplicaState, Usage, encode
from deployments.wire import encode as encode_any
from deployments.wire import framed
from tests.deployments.gateway.fake_engine import FakeEngine, good, pieces
from tests.deployments.gateway.rig import STREAM, MakeRig, Rig, until


def states(rig: Rig) -> dict[str, str]:
    return {replica.replica_id: replica.status for replica in rig.owner.snapshot().replicas}


async def test_hello_makes_ready_and_load_is_kept(rig: Rig) -> None:
    engine = rig.engines[0]
    feed = rig.gateway.feeds.by_replica[engine.facts.replica_id]
    await engine.say(encode(Load(ReplicaState.READY, 3, 2, 5, 0.25)))
    await until(lambda: feed.load is not None and feed.load.kv_usage == 0.25)
    assert rig.dispatcher.replicas.is_ready(engine.facts.replica_id)


async def test_a_replica_that_is_not_ready_gets_nothing(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    engine = FakeEngine()
    engine.state = ReplicaState.DRAINING
    await engine.start()
    rig.engines.append(engine)
    await rig.directory.register(engine.facts)
    await until(lambda: engine.facts.replica_id in rig.gateway.feeds.by_replica)
    await asyncio.sleep(0.3)
    assert not rig.dispatcher.replicas.ready
    await engine.become(ReplicaState.READY)
    await until(lambda: rig.dispatcher.replicas.ready)


@pytest.mark.parametrize(
    ("state", "status"), [(ReplicaState.DRAINING, "draining"), (ReplicaState.UNHEALTHY, "unresponsive")]
)
async def test_states_are_followed(rig: Rig, state: ReplicaState, status: str) -> None:
    engine = rig.engines[0]
    await engine.become(state)
    await until(lambda: not rig.dispatcher.replicas.ready)
    assert states(rig) == {engine.facts.replica_id: status}
    await engine.become(ReplicaState.READY)
    await until(lambda: states(rig) == {engine.facts.replica_id: "ready"})
    assert rig.dispatcher.replicas.ready


async def streaming(rig: Rig, hold: asyncio.Event) -> asyncio.Task[tuple[int, bytes]]:
    """A stream of two pieces that has begun; the second one comes after the event."""
    engine = rig.engines[0]
    engine.behave = pieces(b"data: 1\n\n", hold, b"data: 2\n\n")
    running = asyncio.create_task(rig.ask(STREAM))
    await until(lambda: engine.open == 1)
    return running


@pytest.mark.whole
async def test_feed_outage_sets_aside_and_a_word_brings_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "UNRESPONSIVE_AFTER_S", 0.3)
    engine, hold = rig.engines[0], asyncio.Event()
    running = await streaming(rig, hold)
    engine.speaks.clear()
    await until(lambda: not rig.dispatcher.replicas.ready)
    assert rig.owner.snapshot().replicas[0].leases == 1  # what runs there may go on
    engine.speaks.set()
    await until(lambda: rig.dispatcher.replicas.ready)
    hold.set()
    assert (await running)[1] == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.whole
async def test_long_feed_outage_is_a_loss(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "UNRESPONSIVE_AFTER_S", 0.1)
    monkeypatch.setattr(feeds, "LOST_AFTER_S", 0.4)
    engine = rig.engines[0]
    running = await streaming(rig, asyncio.Event())
    engine.speaks.clear()
    assert b"replica_lost" in (await running)[1]
    assert not rig.owner.snapshot().replicas
    engine.speaks.set()


async def test_a_broken_feed_alone_is_no_loss(rig: Rig) -> None:
    engine, hold = rig.engines[0], asyncio.Event()
    running = await streaming(rig, hold)
    for _ in range(5):
        await until(lambda: rig.dispatcher.replicas.ready)
        engine.end_feeds()
        await until(lambda: not rig.dispatcher.replicas.ready)
    await until(lambda: rig.dispatcher.replicas.ready)
    hold.set()
    assert (await running)[1] == b"data: 1\n\ndata: 2\n\n"


async def test_a_message_that_is_none_only_costs_the_connection(rig: Rig, subtests: pytest.Subtests) -> None:
    facts = rig.engines[0].facts
    nonsense = (
        b"nonsense",
        b"\xff",
        framed(b"nonsense"),
        framed(encode_any(("Load", {}))),
        framed(encode_any(("Unknown", {}))),
        encode(Hello(facts, ReplicaState.READY, version=9)),
    )
    for message in nonsense:
        with subtests.test(message=message[:20]):
            await rig.engines[0].say(message)
            await until(lambda: not rig.dispatcher.replicas.ready)
            await until(lambda: rig.dispatcher.replicas.ready)
            assert (await rig.ask())[0] == 200


async def test_a_replica_that_comes_back_under_its_name(rig: Rig) -> None:
    """The directory still lists it; a new connection finds it."""
    engine = rig.engines[0]
    port = int(engine.facts.url.rpartition(":")[2])
    await engine.kill()
    await until(lambda: not states(rig))
    await engine.start(port)
    await rig.directory.register(replace(engine.facts, pid=2))  # a change, so that nobody waits for the next look
    await until(lambda: rig.dispatcher.replicas.ready)
    engine.behave = good
    assert (await rig.ask())[0] == 200


async def test_statistics_of_unknown_requests_are_ignored(rig: Rig) -> None:
    await rig.engines[0].say(encode(Finished("nobody", 200, Usage(1, 0, 1, 0, 1, 0.0, 0.0, 0.0), 0.0, 0.0)))
    assert (await rig.ask())[0] == 200


async def test_replicas_of_unknown_models_are_ignored(rig: Rig) -> None:
    await rig.directory.register(replace(rig.engines[0].facts, replica_id="x", model="another"))
    await rig.add(FakeEngine())
    assert len(rig.gateway.feeds.by_replica) == 2


async def test_a_directory_that_fails_is_asked_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([RuntimeError("the actor is dead"), OSError("no head")])
    watch = rig.directory.watch

    async def flaky(version: int, timeout_s: float) -> object:
        for failure in failures:
            raise failure
        return await watch(version, timeout_s)

    monkeypatch.setattr(rig.directory, "watch", flaky)
    await rig.add(FakeEngine())
    assert len(rig.dispatcher.replicas.ready) == 2
