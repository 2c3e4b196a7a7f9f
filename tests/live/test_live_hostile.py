"""Hostile bodies against real vLLM: through the gateway none gets a 5xx that vLLM by itself would not give it, and the
replica lives on."""

import asyncio
import random

import aiohttp
import pytest

from benchmarks.hostile.bodies import body_of, size_of
from tests.live.clients import ask
from tests.live.cluster import LiveCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

BODIES = 300
MAX_BYTES = 1 << 17


async def test_no_server_error_that_vllm_does_not_give(cluster: LiveCluster, tell: list[str]) -> None:
    engine = cluster.replicas()[0]
    before = {replica["replica_id"] for replica in cluster.replicas()}
    through, bare = [], []
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout, headers={"content-type": "application/json"}) as session:
        for number in range(BODIES):
            draw = random.Random(f"live/{number}")
            path, body = body_of(draw, size_of(draw, MAX_BYTES))
            async with session.post(cluster.url + path, data=body) as response:
                through.append(response.status)
                await response.read()
            if through[-1] >= 500:
                async with session.post(
                    engine["url"] + path, data=body, headers={"authorization": f"Bearer {cluster.secret()}"}
                ) as response:
                    bare.append((number, path, body[:200], through[-1], response.status))
                    await response.read()
        assert (await ask(session, cluster.url)).status == 200
    counts = {status: through.count(status) for status in sorted(set(through))}
    tell.append(f"{BODIES} bodies: {counts}; by vLLM itself where 5xx: {[status for *_, status in bare]}")
    assert [one for one in bare if one[-1] < 500] == []
    assert {replica["replica_id"] for replica in await asyncio.to_thread(cluster.replicas)} == before
