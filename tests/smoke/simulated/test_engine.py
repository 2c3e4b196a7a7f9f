"""Simulated engines behind the real stack: `raylane up`, Ray, the gateway, OpenAI's own client."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.live.cluster import LiveCluster, eventually
from tests.smoke.conftest import openai_client
from tests.smoke.simulated.conftest import ALIAS, GROUPED, REPLICAS, SMALL
from tests.smoke.simulated.conftest import BIG as MODEL

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("vllm_meanwhile")]

ASK: list[Any] = [{"role": "user", "content": "Say something."}]


@pytest.fixture
def client(simulated: LiveCluster) -> Iterator[openai.OpenAI]:
    with openai_client(simulated) as client:
        yield client


def test_a_stream_is_marked_and_paced(client: openai.OpenAI) -> None:
    began = time.monotonic()
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ASK, max_tokens=200, stream=True, stream_options={"include_usage": True}
    ) as raw:
        assert raw.headers["x-raylane-simulated"] == "true"
        chunks = list(raw.parse())
    took_s = time.monotonic() - began
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text.split()) == 200
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 200
    assert {chunk.system_fingerprint for chunk in chunks} == {"raylane-simulated"}
    assert 200 * 0.0069 < took_s < 200 * 0.0069 + 5


def test_models_and_status_say_so(client: openai.OpenAI, simulated: LiveCluster) -> None:
    assert [(card.id, card.owned_by) for card in client.models.list()] == [
        (MODEL, "raylane-simulated"),
        (SMALL, "raylane-simulated"),
        (GROUPED, "raylane-simulated"),
        (ALIAS, "raylane-simulated"),
    ]
    assert simulated.model()["engine"] == "simulated"
    for command in ("status", "top"):
        assert "SIMULATED" in simulated.cli(command, "--once").stdout
    assert "SIMULATED" in simulated.log.read_text()


async def test_clients_that_leave_free_the_engines(simulated: LiveCluster) -> None:
    before = (await asyncio.to_thread(simulated.model))["endings"]
    async with openai.AsyncOpenAI(base_url=simulated.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:

        async def ask(stream: bool) -> None:
            answer = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20_000, stream=stream)
            if stream:
                async for _ in answer:
                    pass

        asking = [asyncio.create_task(ask(number % 2 == 0)) for number in range(12)]
        await asyncio.to_thread(
            eventually, lambda: sum(replica["engine_running"] for replica in simulated.replicas()) == 12
        )
        assert len({replica["replica_id"] for replica in simulated.replicas() if replica["engine_running"]}) == REPLICAS
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    settled = (await asyncio.to_thread(simulated.settle))["endings"]
    assert settled["cancelled"] - before["cancelled"] >= 12
    assert settled["failed"] == before["failed"]
