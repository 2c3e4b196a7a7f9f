"""A model's last replicas are killed: another model answers in its place."""

import asyncio
import os
import signal
import time

import aiohttp
import pytest

from tests.live.clients import STREAM
from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import ALIAS, BIG, GROUPED, HASTY

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("vllm_meanwhile")]

WITHIN_S = 2.0
ASKED = 20
UNSEEN_S = 0.3
"""What is sent before the ends are known goes to both, and is taken for what has killed them."""


async def first_byte(cluster: LiveCluster, number: int) -> tuple[float, str, str]:
    """When the first byte came, what the answer's head says of a lesser answer, and the model that it names."""
    body = {**STREAM, "model": ALIAS, "user": f"fallback-{number}", "max_tokens": 4}
    async with aiohttp.ClientSession(headers={"x-raylane-class": HASTY}) as session:
        await asyncio.sleep(number * WITHIN_S / ASKED / 2)
        async with session.post(cluster.url + "/v1/completions", json=body) as response:
            text = await response.content.read(1)
            came_s = time.monotonic()
            text += await response.content.read()
            assert (response.status, text.endswith(b"data: [DONE]\n\n")) == (200, True), text
            return came_s, response.headers.get("x-raylane-degraded", ""), BIG if BIG.encode() in text else GROUPED


async def test_another_model_answers_where_the_last_replica_is_killed(grouped: LiveCluster) -> None:
    _, degraded, model = await first_byte(grouped, 0)
    assert (degraded, model) == ("", GROUPED), "an alias is no degradation, and the answer names the model"
    replicas = await asyncio.to_thread(grouped.replicas)
    for replica in replicas:
        os.kill(replica["pid"], signal.SIGKILL)
    killed_s = time.monotonic()
    await asyncio.sleep(UNSEEN_S)
    answers = await asyncio.gather(*(first_byte(grouped, number) for number in range(ASKED)))
    fallen = [came_s for came_s, degraded, model in answers if degraded.startswith("fallback; ") and model == BIG]
    assert len(fallen) == sum(model == BIG for _, _, model in answers), "each says so"
    assert fallen
    print(f"{len(fallen)} of {ASKED} answers by another model, the first {min(fallen) - killed_s:.2f} s after the kill")
    assert min(fallen) - killed_s < WITHIN_S
    await asyncio.to_thread(eventually, grouped.is_whole)
    await asyncio.to_thread(grouped.settle)
