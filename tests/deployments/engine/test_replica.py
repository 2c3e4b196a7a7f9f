"""A replica whose engine dies or hangs: its clients are told, its feed says why, and it ends by itself. The engine is a
stand-in for vLLM."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from cluster.spec import EngineSettings, Health, Model
from deployments.engine import replica as replica_module
from deployments.engine.backend import EngineCapacity, EngineLoad
from deployments.engine.exchanges import Exchanges
from deployments.engine.replica import Identity, ReplicaServer
from deployments.engine.start_clock import StartClock
from deployments.protocol import ENGINE_DIED_CODE, EPOCH_HEADER, FEED_PATH, EngineFault, Failed, Load, ReplicaState
from tests.feeds import Messages

SECRET = "s3cret"
VLLMS_WORDS = (
    b'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", '
    b'"code": 500}}\n\n'
)


class Engine:
    """Answers every request with one event, and with vLLM's words when it has died, if it `tells` anything then."""

    watch_every_s = 0.01
    capacity = EngineCapacity(64, 4, 64, 256)
    last_words = "it fell over"

    def __init__(self, tells: bool = True) -> None:
        self.died = asyncio.Event()
        self.tells = tells
        self.unfinished = 0
        self.stopped = False

    @property
    def dead(self) -> bool:
        return self.died.is_set()

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        self.unfinished += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await self.died.wait()
        if not self.tells:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await send({"type": "http.response.body", "body": VLLMS_WORDS, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def compiling(self) -> bool:
        return False

    async def probe(self) -> None:
        return

    async def wait_dead(self, timeout_s: float) -> None:
        await asyncio.wait([asyncio.ensure_future(self.died.wait())], timeout=timeout_s)

    def kill(self) -> None:
        self.died.set()

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture
async def engine() -> Engine:
    return Engine()


@pytest.fixture
async def replica(engine: Engine) -> AsyncIterator[ReplicaServer]:
    async def start(model: Model, load: EngineLoad, exchanges: Exchanges, clock: StartClock) -> Engine:
        return engine

    model = Model(name="m", source="org/m", settings=EngineSettings(max_model_len=64), health=Health(stall_s=0.2))
    replica = ReplicaServer(model, Identity("r", "node", "127.0.0.1"), SECRET, start)
    await replica.start()
    yield replica
    engine.kill()
    await replica.stop()


def session(replica: ReplicaServer) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {SECRET}", EPOCH_HEADER: "1"}
    return aiohttp.ClientSession(replica.facts.url, headers=headers, timeout=aiohttp.ClientTimeout(total=20))


@pytest.mark.parametrize("fault", EngineFault)
async def test_clients_are_told_the_feed_says_why_and_the_replica_ends(
    engine: Engine, replica: ReplicaServer, fault: EngineFault
) -> None:
    async with session(replica) as client, client.get(FEED_PATH) as feed, client.post("/v1/completions") as answer:
        assert await answer.content.readuntil(b"\n\n") == b"data: {}\n\n"
        if fault is EngineFault.DEAD:
            engine.kill()
        rest = await answer.content.read()  # one that hangs is killed after `stall_s`
        messages = [message async for message in Messages(feed)]
    assert f'"code":"{ENGINE_DIED_CODE}"'.encode() in rest
    assert b"EngineCore" not in rest
    (failed,) = [message for message in messages if isinstance(message, Failed)]
    detail = "it fell over" if fault is EngineFault.DEAD else "the engine took no step for 0.2 s"
    assert failed == Failed(fault, detail)
    reported = [message.state for message in messages if isinstance(message, Load)]
    assert reported[-1] is ReplicaState.UNHEALTHY
    assert await replica.wait_failed() == failed
    assert engine.stopped
    async with session(replica) as client:
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.post("/v1/completions")


async def test_a_dead_engine_that_tells_nobody_holds_the_replica_no_longer_than_that(
    engine: Engine, replica: ReplicaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "_TELL_S", 0.1)
    monkeypatch.setattr(replica_module, "_CLOSE_S", 0.1)
    engine.tells = False
    async with session(replica) as client, client.post("/v1/completions") as answer:
        await answer.content.readuntil(b"\n\n")
        engine.kill()
        async with asyncio.timeout(20):
            assert (await replica.wait_failed()).fault is EngineFault.DEAD


async def test_a_replica_that_drains_ends_without_a_failure(engine: Engine, replica: ReplicaServer) -> None:
    failing = asyncio.create_task(replica.wait_failed())
    await replica.stop()
    await asyncio.sleep(0)
    assert not failing.done()
    assert replica.failed is None
    failing.cancel()
