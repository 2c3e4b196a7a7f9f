"""A replica of a real vLLM, asked at its own door as a gateway does: secret, ports, feed, metrics, a client that
leaves."""

import asyncio
import time
from typing import Any

import aiohttp
import psutil
import pytest

from deployments.protocol import Finished, Hello, Load, ReplicaState
from tests.live.cluster import LiveCluster
from tests.live.replica import Replica, until

pytestmark = [pytest.mark.live, pytest.mark.contract]

PATHS = (
    "/",
    "/docs",
    "/openapi.json",
    "/metrics",
    "/health",
    "/ping",
    "/load",
    "/v1/models",
    "/v1/completions",
    "/tokenize",
)
OURS = ("/raylane/feed", "/raylane/drain", "/nowhere")


@pytest.fixture
def replica(cluster: LiveCluster) -> Replica:
    return Replica(cluster, cluster.replicas()[0])


async def test_every_path_asks_for_the_secret(cluster: LiveCluster) -> None:
    for replica in await asyncio.to_thread(lambda: [Replica(cluster, shown) for shown in cluster.replicas()]):
        right = replica.headers["Authorization"]
        async with aiohttp.ClientSession(replica.url) as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": right + "x"}):
                for path in (*PATHS, *OURS):
                    for method in ("GET", "POST"):
                        async with session.request(method, path, headers=headers) as response:
                            assert response.status == 401, (method, path)
                            assert (await response.json())["error"]["code"] == "invalid_secret"
        async with replica.session() as session, session.get("/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "demo"


def test_nothing_of_ours_listens_beyond_loopback(cluster: LiveCluster) -> None:
    family = cluster.family()
    ours = {
        int(cluster.url.rsplit(":", 1)[1]),
        *(int(replica["url"].rsplit(":", 1)[1]) for replica in cluster.replicas()),
    }
    bound = [
        connection.laddr
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.port for address in bound if address.port in ours} == ours
    assert all(address.ip == "127.0.0.1" for address in bound if address.port in ours)
    # A replica's own process also has Ray's ports, which are open to all by Ray's design (and ask for Ray's token).
    children = {
        child for replica in cluster.replicas() for child in psutil.Process(replica["pid"]).children(recursive=True)
    }
    inner = [
        connection.laddr
        for child in children
        for connection in child.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {cluster.engine_core(replica["pid"]) for replica in cluster.replicas()} <= children
    assert inner
    assert {address.ip for address in inner} == {"127.0.0.1"}


async def test_the_feed_tells_load_and_tokens(replica: Replica) -> None:
    async with replica.session() as session, replica.feed(session) as messages:
        hello = await messages.get()
        assert isinstance(hello, Hello)
        assert hello.state is ReplicaState.READY
        assert hello.facts.kv_tokens >= 8192
        answer = await replica.chat(session, "feed-1", max_tokens=12, n=2)
        finished = await until(
            messages, lambda message: isinstance(message, Finished) and message.request_id == "feed-1"
        )
        assert (finished.status, finished.usage.sequences) == (200, 2)
        assert finished.usage.output_tokens == answer["usage"]["completion_tokens"] == 24
        assert finished.usage.prompt_tokens == 2 * answer["usage"]["prompt_tokens"]
        assert 0 < finished.first_byte_s <= finished.wall_s
        # `/v1/responses` takes its engine id from the body, not from our header.
        body: dict[str, Any] = {"model": "demo", "input": "hi", "max_output_tokens": 5}
        async with session.post("/v1/responses", json=body, headers=replica.named("feed-2")) as response:
            assert response.status == 200
            answered = (await response.json())["usage"]["output_tokens"]  # fewer than 5 where it sampled an end token
        finished = await until(
            messages, lambda message: isinstance(message, Finished) and message.request_id == "feed-2"
        )
        assert 1 <= answered <= 5
        assert (finished.usage.sequences, finished.usage.output_tokens) == (1, answered)
        await until(messages, lambda message: isinstance(message, Load) and message.running == message.exchanges == 0)


async def test_a_client_that_leaves_frees_the_engine(replica: Replica) -> None:
    async with replica.session() as session, replica.feed(session) as messages:
        for round_ in range(5):
            async with replica.stream(session, f"leave-{round_}") as response:
                await response.content.readline()
                await until(messages, lambda message: isinstance(message, Load) and message.running == 1)
                response.close()
            left = time.monotonic()
            await until(
                messages, lambda message: isinstance(message, Load) and message.running == 0 and message.kv_usage == 0
            )
            assert time.monotonic() - left < 2
        finished = await until(
            messages, lambda message: isinstance(message, Finished) and message.request_id == "leave-4"
        )
        assert finished.usage.sequences == 0
