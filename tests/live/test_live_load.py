"""Storms: every request is answered, every lease ends, the engines come to rest, and the gateway's memory stays
flat."""

import asyncio
import time

import aiohttp
import psutil
import pytest

from tests.live.clients import Answer, ask, at_once, clients, quantile
from tests.live.cluster import LiveCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]


async def test_2000_streams_at_64(cluster: LiveCluster, tell: list[str]) -> None:
    before = cluster.model()["endings"]
    start = time.monotonic()
    async with clients() as session:
        answers = await at_once(
            2_000, 64, lambda number: ask(session, cluster.url, prompt=f"{number}, 2, 3,", max_tokens=8 + number % 32)
        )
    took_s = time.monotonic() - start
    assert [answer for answer in answers if (answer.end, answer.status) != ("done", 200)] == []
    after = (await asyncio.to_thread(cluster.settle))["endings"]
    assert {ending: after[ending] - before[ending] for ending in after} == {
        "finished": 2_000,
        "cancelled": 0,
        "failed": 0,
        "refused": 0,
    }
    assert len({answer.replica for answer in answers}) == 2
    tell.append(
        f"2,000 streams at 64: {2_000 / took_s:.0f} requests/s, "
        f"{sum(answer.tokens for answer in answers) / took_s:.0f} events/s"
    )


async def test_the_ledgers_add_up(cluster: LiveCluster, tell: list[str]) -> None:
    known = len(cluster.records())
    async with clients() as session:
        await at_once(300, 48, lambda number: ask(session, cluster.url, stream=number % 3 != 0))
    await asyncio.to_thread(cluster.settle)
    records = cluster.records()[known:]
    assert len(records) == 300
    excess = [abs(record["unaccounted_s"]) - max(0.002, 0.01 * record["wall_s"]) for record in records]
    assert quantile(excess, 0.99) <= 0
    assert all(seconds >= 0 for record in records for seconds in record["stages_s"].values())
    assert all(record["output_tokens"] == record["max_tokens"] for record in records)
    tell.append(f"unaccounted p99: {quantile([abs(record['unaccounted_s']) for record in records], 0.99) * 1e3:.3f} ms")


async def test_memory_is_flat_over_10000_requests(cluster: LiveCluster, tell: list[str]) -> None:
    gateway = psutil.Process(cluster.gateway_pid())

    async def burst(session: aiohttp.ClientSession, count: int) -> int:
        answers = await at_once(
            count,
            64,
            lambda number: ask(session, cluster.url, prompt=f"{number},", max_tokens=1, stream=number % 2 == 0),
        )
        assert {answer.end for answer in answers} == {"done"}
        await asyncio.to_thread(cluster.settle)
        return gateway.memory_info().rss

    async with clients() as session:
        rss = [await burst(session, 2_000) for _ in range(6)]  # the first one warms up
    growth = rss[-1] - rss[0]
    tell.append(
        f"gateway: {rss[-1] / 2**20:.0f} MiB, grown by {growth / 2**20:.1f} MiB over 10,000 requests after 2,000 "
        f"({[r >> 20 for r in rss]})"
    )
    assert growth < 8 << 20


async def test_mixed_manners(cluster: LiveCluster) -> None:
    """Good, bad and leaving clients at once: the good ones notice nothing."""

    async def one(session: aiohttp.ClientSession, number: int) -> Answer:
        match number % 4:
            case 0:
                return await ask(session, cluster.url, max_tokens=0)
            case 1:
                task = asyncio.create_task(ask(session, cluster.url, max_tokens=2_000))
                await asyncio.sleep(number % 50 / 50)
                task.cancel()
                return Answer(end="left")
            case _:
                return await ask(session, cluster.url)

    async with clients() as session:
        answers = await at_once(600, 48, lambda number: one(session, number))
    ends = [answer.end for answer in answers]
    assert (ends.count("done"), ends.count("error"), ends.count("left")) == (300, 150, 150)
    await asyncio.to_thread(cluster.settle)
