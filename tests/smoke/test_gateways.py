"""Two gateways of one cell, live: both answer for the model, and the owner's death costs the other one's clients nothing."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.live.clients import Answer, ask, clients
from tests.live.cluster import LiveCluster, eventually, live_cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


async def streams(cluster: LiveCluster, count: int, max_tokens: int) -> list[asyncio.Task[Answer]]:
    """So many streams under way, each on a connection of its own, so that the kernel spreads them over the gateways."""

    async def one() -> Answer:
        async with clients() as session:
            return await ask(session, cluster.url, max_tokens=max_tokens, stream_options={"include_usage": True})

    return [asyncio.create_task(one()) for _ in range(count)]


async def test_the_owner_dies_under_load(tmp_path: Path) -> None:
    with live_cluster(tmp_path, "pair", gateways=2, replicas=1) as cluster:
        answers = await asyncio.gather(*await streams(cluster, 24, 8))
        assert {answer.end for answer in answers} == {"done"}
        assert {answer.gateway for answer in answers} == set(await asyncio.to_thread(cluster.gateways))
        before = await asyncio.to_thread(cluster.settle)
        assert before["placed"] == 24
        owner = before["owner"]
        load = await streams(cluster, 60, 120)  # more than one replica takes: some wait
        await asyncio.to_thread(eventually, lambda: cluster.model()["leases"] >= 32)
        pids = await asyncio.to_thread(cluster.gateways)
        os.kill(pids[owner], signal.SIGKILL)
        answers = await asyncio.gather(*load)
        others = [answer for answer in answers if answer.end == "done"]
        assert {answer.end for answer in answers} <= {"done", "silent"}, "the dead one's clients see a reset"
        assert others
        assert owner not in {answer.gateway for answer in others}
        assert {answer.counted for answer in others} == {120}
        await asyncio.to_thread(eventually, lambda: cluster.model()["owner"] not in (None, owner))
        after = await asyncio.to_thread(cluster.settle)
        assert after["epoch"] > before["epoch"]
        assert after["lost_requests"] > 0
        await asyncio.to_thread(eventually, lambda: len(cluster.gateways()) == 2)
