"""Storms: every request is answered, every lease ends, the engines come to rest, and the gateway's memory stays
flat."""

import asyncio
import time

import aiohttp
import pytest

from tests.live.clients import Answer, ask, at_once, clients
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
