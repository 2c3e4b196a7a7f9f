"""Two gateways of one cell, live: both answer for the model, and the owner's death costs the other one's clients
nothing."""

import asyncio
import os
import signal
import time

import pytest

from deployments.cell.membership import JOIN_EVERY_S
from tests.live.clients import Answer, ask, clients
from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import BIG, REPLICAS, SEATS

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("vllm_meanwhile")]

TOKENS = 400
"""Of the streams in which the owner dies: about three seconds, twice as long as it is waited for a report."""


async def streams(cluster: LiveCluster, count: int, max_tokens: int) -> list[asyncio.Task[Answer]]:
    """So many streams under way, each on a connection of its own, so that the kernel spreads them over the gateways."""

    async def one() -> Answer:
        async with clients() as session:
            return await ask(
                session, cluster.url, model=BIG, max_tokens=max_tokens, stream_options={"include_usage": True}
            )

    return [asyncio.create_task(one()) for _ in range(count)]


async def test_the_owner_dies_under_load(simulated: LiveCluster) -> None:
    at_first = await asyncio.to_thread(simulated.model)
    answers = await asyncio.gather(*await streams(simulated, 24, 8))
    assert {answer.end for answer in answers} == {"done"}
    assert {answer.gateway for answer in answers} == set(await asyncio.to_thread(simulated.gateways))
    before = await asyncio.to_thread(simulated.settle)
    assert before["placed"] - at_first["placed"] == 24
    owner = before["owner"]
    load = await streams(simulated, 2 * REPLICAS * SEATS, TOKENS)  # more than the replicas take: some wait
    await asyncio.to_thread(eventually, lambda: simulated.model()["leases"] >= REPLICAS * SEATS)
    reported_s = time.monotonic() + 1.5 * JOIN_EVERY_S  # what a gateway holds is known as of its last report
    await asyncio.to_thread(eventually, lambda: time.monotonic() > reported_s)
    pids = await asyncio.to_thread(simulated.gateways)
    os.kill(pids[owner], signal.SIGKILL)
    answers = await asyncio.gather(*load)
    others = [answer for answer in answers if answer.end == "done"]
    assert {answer.end for answer in answers} <= {"done", "cut"}, "the dead one's clients see a reset"
    assert others
    assert owner not in {answer.gateway for answer in others}
    assert {answer.counted for answer in others} == {TOKENS}
    await asyncio.to_thread(eventually, lambda: simulated.model()["owner"] not in (None, owner))
    after = await asyncio.to_thread(simulated.settle)
    assert after["epoch"] > before["epoch"]
    assert after["lost_requests"] > before["lost_requests"]
    await asyncio.to_thread(eventually, lambda: len(simulated.gateways()) == 2)
    (reported,) = [one for one in simulated.status()["departures"] if one["who"] == owner]
    assert (reported["cause"], reported["lost"]["broken"] > 0) == ("process_died", True)
