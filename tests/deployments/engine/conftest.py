"""A replica's front door over real HTTP, with a pretended engine behind it."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from deployments.http.server import HttpServer
from tests.deployments.engine.guarded_engine import SECRET, Behind


@pytest.fixture
async def behind() -> Behind:
    return Behind()


@pytest.fixture
async def session(behind: Behind) -> AsyncIterator[aiohttp.ClientSession]:
    server = HttpServer(behind.guard, "127.0.0.1", 0, keep_alive_s=5)
    await server.start()
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{server.port}", headers=headers, timeout=aiohttp.ClientTimeout(total=20)
    ) as session:
        yield session
    behind.go.set()
    behind.feed.close()
    await server.stop(2)
