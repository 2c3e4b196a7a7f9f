"""A replica of a live cluster as its gateway sees it: an address, a secret, a feed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from deployments.protocol import EPOCH_HEADER, FEED_PATH, REQUEST_ID_HEADER, Message
from tests.feeds import Messages
from tests.live.cluster import PATIENCE_S, LiveCluster


class Replica:
    """One of the replicas that `cluster.replicas()` shows. `family`: its processes, the engine's core among them."""

    def __init__(self, cluster: LiveCluster, shown: dict[str, Any]) -> None:
        self.replica_id: str = shown["replica_id"]
        self.url: str = shown["url"]
        self.pid: int = shown["pid"]
        self.headers = {"Authorization": f"Bearer {cluster.secret()}"}
        self.epoch: int = cluster.model()["epoch"]
        self.family = cluster.family(self.pid)

    def named(self, request_id: str) -> dict[str, str]:
        """What the model's owner sends along with a request of that id."""
        return {REQUEST_ID_HEADER: request_id, EPOCH_HEADER: str(self.epoch)}

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Of somebody who knows the secret."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(self.url, headers=self.headers, timeout=timeout) as session:
            yield session

    @asynccontextmanager
    async def feed(self, session: aiohttp.ClientSession) -> AsyncIterator[asyncio.Queue[Message]]:
        """The replica's feed, read into a queue by a task of its own."""
        messages: asyncio.Queue[Message] = asyncio.Queue()

        async def read() -> None:
            async with session.get(FEED_PATH, timeout=aiohttp.ClientTimeout(total=None)) as response:
                assert response.status == 200
                async for message in Messages(response):
                    messages.put_nowait(message)

        task = asyncio.create_task(read())
        try:
            yield messages
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def chat(self, session: aiohttp.ClientSession, name: str, **options: Any) -> dict[str, Any]:
        """The answer to a chat under that request id."""
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": "Count from 1 to 5."}],
            "ignore_eos": True,
            **options,
        }
        async with session.post("/v1/chat/completions", json=body, headers=self.named(name)) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    @asynccontextmanager
    async def stream(
        self, session: aiohttp.ClientSession, name: str, max_tokens: int = 7_000
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream under that request id, whose first bytes may be read."""
        body = {"model": "demo", "prompt": "1 2 3", "stream": True, "ignore_eos": True, "max_tokens": max_tokens}
        async with session.post(
            "/v1/completions", json=body, headers=self.named(name), read_bufsize=1 << 22
        ) as response:
            assert response.status == 200
            yield response


async def until(messages: asyncio.Queue[Message], desired: Callable[[Any], bool]) -> Any:
    """The first message of a feed that is `desired`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await messages.get()
            if desired(message):
                return message
