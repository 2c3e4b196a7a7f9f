"""Clients that leave: how fast the lane, the engine and its KV cache are free of them, read from their own counters."""

import asyncio
import random
import time

import aiohttp
import pytest

from deployments.protocol import Load
from tests.live.clients import STREAM, Answer, ask, clients, quantile
from tests.live.cluster import LiveCluster, eventually_async

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]


async def stream(session: aiohttp.ClientSession, cluster: LiveCluster, **fields: object) -> aiohttp.ClientResponse:
    """A stream whose first byte has come."""
    response = await session.post(cluster.url + "/v1/completions", json={**STREAM, **fields})
    await response.content.readany()
    return response


async def in_the_lane(session: aiohttp.ClientSession, cluster: LiveCluster) -> tuple[int, int]:
    """How many wait, and how many were ever submitted."""
    async with session.get(cluster.url + "/raylane/status", headers=cluster.credentials) as response:
        model = (await response.json())["models"][0]
        return sum(lane["waiting"] for lane in model["lanes"]), model["submitted"]


async def test_lane_entries_are_gone_with_their_clients(cluster: LiveCluster, tell: list[str]) -> None:
    """With all replicas full, a hundred clients wait and leave one by one; the gateway is asked every few milliseconds
    how many wait."""
    async with clients() as session, clients() as waiters:
        submitted = (await in_the_lane(session, cluster))[1]

        async def all_submitted(count: int) -> int:
            while True:
                waiting, now = await in_the_lane(session, cluster)
                if now - submitted == count:
                    return waiting
                await asyncio.sleep(0.02)

        holding = [asyncio.create_task(ask(session, cluster.url, max_tokens=8_000)) for _ in range(100)]
        assert await all_submitted(100) > 0
        tasks = [asyncio.create_task(ask(waiters, cluster.url)) for _ in range(100)]
        waiting = await all_submitted(200)
        took = []
        for task in tasks:
            await asyncio.sleep(random.uniform(0, 0.01))
            left = time.monotonic()
            task.cancel()
            waiting -= 1
            while (await in_the_lane(session, cluster))[0] > waiting:
                assert time.monotonic() - left < 5
            took.append(time.monotonic() - left)
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, *tasks, return_exceptions=True)
    p50, p99 = quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3
    tell.append(f"lane entries gone, with the asking: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    await asyncio.to_thread(cluster.settle)


async def test_engine_work_is_gone_with_its_client(cluster: LiveCluster, tell: list[str]) -> None:
    """Two hundred clients leave at random moments, one after the other, while four others stream on. Timed are those
    that the engine was running."""
    before = cluster.model()["endings"]
    tokens = min(replica["kv_tokens"] for replica in cluster.replicas()) // 6  # so that none has to wait for KV blocks
    took: list[float] = []
    async with cluster.feeds() as loads, clients() as session:
        for _ in range(10):
            staying = [await stream(session, cluster, max_tokens=tokens) for _ in range(4)]
            await eventually_async(lambda: running(loads) == 4)
            for number in range(20):
                leaver = asyncio.create_task(
                    stream(session, cluster, max_tokens=tokens, prompt=f"{random.random()}, 2,")
                )
                if number % 4:
                    await eventually_async(lambda: running(loads) == 5, every_s=0.002)
                await asyncio.sleep(random.uniform(0, 0.2))
                was_running = running(loads) == 5
                left = time.monotonic()
                await leave(leaver)
                await eventually_async(
                    lambda: running(loads) == 4 and sum(load.waiting for load in loads.values()) == 0, every_s=0.002
                )
                if was_running:
                    took.append(time.monotonic() - left)
                await asyncio.sleep(0.15)  # one that left before it ran may show only now
                await eventually_async(lambda: running(loads) == 4)
            for response in staying:
                response.close()
            await eventually_async(lambda: running(loads) == 0 and all(load.kv_usage == 0 for load in loads.values()))
    p50, p99 = quantile(took, 0.5) * 1e3, quantile(took, 0.99) * 1e3
    tell.append(
        f"engine work gone after a client left: p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {max(took) * 1e3:.0f} ms "
        f"({len(took)} that ran)"
    )
    after = (await asyncio.to_thread(cluster.settle))["endings"]
    assert len(took) >= 150
    assert after["cancelled"] - before["cancelled"] >= 40 + 150
    assert after["failed"] == before["failed"]
    assert after["finished"] == before["finished"]


async def test_200_leave_at_once(cluster: LiveCluster, tell: list[str]) -> None:
    before = cluster.model()["endings"]
    async with cluster.feeds() as loads, clients() as session:
        tasks = [asyncio.create_task(ask(session, cluster.url, max_tokens=4_000)) for _ in range(200)]

        async def visit(task: asyncio.Task[Answer]) -> None:
            await asyncio.sleep(random.uniform(0, 5))
            task.cancel()

        await asyncio.gather(*(visit(task) for task in tasks))
        left = time.monotonic()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await eventually_async(lambda: running(loads) == 0 and all(load.kv_usage == 0 for load in loads.values()))
        tell.append(f"200 left within 5 s: engines at rest {(time.monotonic() - left) * 1e3:.0f} ms after the last one")
        assert time.monotonic() - left < 2
    after = (await asyncio.to_thread(cluster.settle))["endings"]
    finished = sum(isinstance(answer, Answer) and answer.end == "done" for answer in ended)
    assert after["finished"] - before["finished"] == finished
    assert after["failed"] == before["failed"]


def running(loads: dict[str, Load]) -> int:
    return sum(load.running for load in loads.values())


async def leave(leaver: "asyncio.Task[aiohttp.ClientResponse]") -> None:
    """Breaks the connection, wherever the request stands."""
    if leaver.done():
        leaver.result().close()
        return
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
