"""A simulated replica under load and at its end: what its feed tells, clients that leave, draining, epochs, death."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from deployments.engine.simulated.driver import Driver
from deployments.protocol import ENGINE_DIED_CODE, FEED_PATH, Finished, Hello, Load, Message, ReplicaState
from tests.deployments.engine.simulated.conftest import SECRET, STEP_S
from tests.deployments.engine.simulated.test_app import CHAT, PROMPT_TOKENS, Make, chat
from tests.feeds import Messages


async def next_message(feed: Messages, kind: type[Message], holds: Callable[[Any], bool] = lambda message: True) -> Any:
    async for message in feed:
        if isinstance(message, kind) and holds(message):
            return message
    raise EOFError("the feed has ended")


async def test_the_feed_carries_load_and_statistics(session: aiohttp.ClientSession) -> None:
    async with session.get(FEED_PATH) as response:
        feed = Messages(response)
        hello = await next_message(feed, Hello)
        assert (hello.facts.max_num_seqs, hello.facts.kv_tokens, hello.facts.max_model_len) == (8, 16_384, 4_096)
        asking = asyncio.create_task(chat(session, max_tokens=60))
        assert (await next_message(feed, Load, lambda load: load.running == 1)).kv_usage > 0
        finished = await next_message(feed, Finished)
        await asking
    assert (
        finished.usage.sequences,
        finished.usage.prompt_tokens,
        finished.usage.output_tokens,
        finished.usage.cached_tokens,
    ) == (1, PROMPT_TOKENS, 60, 0)
    assert finished.usage.prefill_s == pytest.approx(STEP_S + 1e-3, rel=0.01)
    assert finished.usage.decode_s == pytest.approx(59 * (STEP_S + 1e-5), rel=0.01)
    assert finished.usage.queued_s == 0


async def test_what_does_not_fit_waits_inside_the_engine_and_is_told_so(session: aiohttp.ClientSession) -> None:
    async with session.get(FEED_PATH) as response:
        feed = Messages(response)
        asking = [asyncio.create_task(chat(session, max_tokens=40)) for _ in range(9)]
        full = await next_message(feed, Load, lambda load: load.waiting == 1)
        assert full.running == 8
        queued = sorted([(await next_message(feed, Finished)).usage.queued_s for _ in asking])
        await asyncio.gather(*asking)
    assert queued[-1] > 30 * STEP_S


async def test_an_engine_that_dies_fails_its_requests_and_is_noticed(make_replica: Make) -> None:
    replica = await make_replica()
    async with aiohttp.ClientSession(replica.facts.url, headers={"Authorization": f"Bearer {SECRET}"}) as session:
        body = {**CHAT, "max_tokens": 3_000, "stream": True}
        async with session.post("/v1/chat/completions", json=body) as response:
            await response.content.readline()
            replica._backend.kill()
            rest = await response.text()
    assert f'"code":"{ENGINE_DIED_CODE}"' in rest
    async with asyncio.timeout(5):
        await replica.left_ready.wait()
    assert replica.state is ReplicaState.UNHEALTHY


async def test_a_replica_whose_engine_has_died_of_an_error_ends(
    make_replica: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(driver: Driver) -> None:
        raise KeyError("of an error")

    monkeypatch.setattr(Driver, "run", dies)
    replica = await make_replica()
    async with asyncio.timeout(5):
        await replica.left_ready.wait()
    assert replica.failed is not None
    assert replica.failed.detail == "the simulated engine: KeyError('of an error')"
    await replica.stop()
