"""Two groups of one model, live: short requests on the cheap one, long ones on the dear one, which also serves what the
cheap one has no room for, or while it is gone."""

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.live.clients import Answer, ask, clients
from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import GROUPED, SEQUENCES

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("vllm_meanwhile")]


async def all_of(cluster: LiveCluster, *bodies: dict[str, Any]) -> list[Answer]:
    async with clients() as session:
        answers = await asyncio.gather(*(ask(session, cluster.url, model=GROUPED, **body) for body in bodies))
    assert [answer.end for answer in answers] == ["done"] * len(bodies), answers
    return answers


def replica_of(cluster: LiveCluster, group: str) -> dict[str, Any]:
    (found,) = (one for one in cluster.replicas() if one["group"] == group)
    return found


async def test_each_request_goes_to_the_first_group_that_it_fits(grouped: LiveCluster) -> None:
    cheap, dear = (replica_of(grouped, group)["replica_id"] for group in ("cheap", "dear"))
    for prompt, max_tokens, expected in ((100, 24, cheap), (8_100, 92, cheap), (8_100, 93, dear), (10_000, 24, dear)):
        (answer,) = await all_of(grouped, {"prompt": [1] * prompt, "max_tokens": max_tokens})
        assert answer.replica == expected, (prompt, max_tokens)
    burst = await all_of(grouped, *({"prompt": [1] * 20, "max_tokens": 80} for _ in range(SEQUENCES + 4)))
    counts = [sum(answer.replica == one for answer in burst) for one in (cheap, dear)]
    assert counts == [SEQUENCES, 4], "the cheap one is full, the dear one has room"
    metrics = grouped.ask("/metrics", grouped.owner_url()).text
    assert f'raylane_replica_group{{group="cheap",model="{GROUPED}",replica="{cheap}"}} 1.0' in metrics


async def test_the_next_group_serves_while_the_first_is_gone(grouped: LiveCluster) -> None:
    before, dear = replica_of(grouped, "cheap"), replica_of(grouped, "dear")
    under_way = asyncio.create_task(all_of(grouped, *({"prompt": [2] * 20, "max_tokens": 60},) * 2))
    await asyncio.to_thread(eventually, lambda: replica_of(grouped, "cheap")["leases"] == 2)
    os.kill(before["pid"], signal.SIGKILL)
    await asyncio.to_thread(eventually, lambda: [one["group"] for one in grouped.replicas()] == ["dear"])
    (answer,) = await all_of(grouped, {"prompt": [1] * 100})
    assert answer.replica == dear["replica_id"]
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    await asyncio.to_thread(eventually, grouped.is_whole)
    after = await asyncio.to_thread(replica_of, grouped, "cheap")
    assert after["replica_id"] != before["replica_id"]
    assert replica_of(grouped, "dear")["pid"] == dear["pid"], "the other group is left alone"
    (answer,) = await all_of(grouped, {"prompt": [1] * 100})
    assert answer.replica == after["replica_id"]
