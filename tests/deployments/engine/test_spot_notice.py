"""The spot notice, asked of a real server that speaks as AWS's metadata does, and of some that do not."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from deployments.engine.spot_notice import spot_notice
from tests.deployments.gateway.rig import until

PATH = "/latest/meta-data/spot/instance-action"
NOTICE = {"action": "terminate", "time": "2026-11-21T12:00:00Z"}


class Metadata:
    """A machine's metadata. `tokens` are those that it has given out and still takes; with `plain` it knows of none."""

    def __init__(self) -> None:
        self.body: str | None = None
        self.status = 404
        self.tokens: set[str] = set()
        self.given = 0
        self.asked = 0
        self.plain = False
        self.url = ""
        self.token_ends = ""

    async def token(self, request: web.Request) -> web.Response:
        if self.plain:
            return web.Response(status=404)
        assert int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        self.given += 1
        self.tokens.add(f"token-{self.given}")
        return web.Response(text=f"token-{self.given}{self.token_ends}")

    async def action(self, request: web.Request) -> web.Response:
        self.asked += 1
        if not self.plain and request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return web.Response(status=401)
        return web.Response(status=self.status, text=self.body or "")


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    machine = Metadata()
    app = web.Application()
    app.router.add_put("/latest/api/token", machine.token)
    app.router.add_get(PATH, machine.action)
    async with TestServer(app) as server:
        machine.url = str(server.make_url(PATH))
        yield machine


async def asked(machine: Metadata, times: int) -> None:
    await until(lambda: machine.asked >= times)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_notice_is_told_as_soon_as_there_is_one(metadata: Metadata, plain: bool) -> None:
    metadata.plain = plain
    waits = asyncio.create_task(spot_notice(metadata.url, every_s=0.01))
    await asked(metadata, 5)
    assert not waits.done()
    assert metadata.given == (0 if plain else 1), "one token serves for long"
    metadata.status, metadata.body = 200, json.dumps(NOTICE)
    assert json.loads(await asyncio.wait_for(waits, 20)) == NOTICE


async def test_a_token_that_has_run_out_is_renewed(metadata: Metadata) -> None:
    waits = asyncio.create_task(spot_notice(metadata.url, every_s=0.01))
    await asked(metadata, 2)
    metadata.tokens.clear()
    await asked(metadata, 6)
    assert metadata.given == 2
    metadata.status, metadata.body = 200, json.dumps(NOTICE)
    await asyncio.wait_for(waits, 20)


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, "FALSE"), (200, "<html>welcome</html>"), (200, "{}"), (200, "[]"), (200, ""), (500, "{"), (403, "")],
)
async def test_whatever_else_is_said_is_no_notice(
    metadata: Metadata, status: int, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    metadata.status, metadata.body = status, body
    with caplog.at_level(logging.WARNING):
        waits = asyncio.create_task(spot_notice(metadata.url, every_s=0.01))
        await asked(metadata, 5)
    assert not waits.done()
    assert len(caplog.records) == 1, "told once, not each time"
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)


async def test_a_token_may_end_a_line_and_one_that_no_header_takes_ends_no_watch(metadata: Metadata) -> None:
    metadata.token_ends = "\n"
    waits = asyncio.create_task(spot_notice(metadata.url, every_s=0.01))
    await asked(metadata, 2)
    metadata.tokens.clear()
    metadata.token_ends = "\nof two lines"
    given = metadata.given
    await until(lambda: metadata.given > given)
    await asyncio.sleep(0.1)
    assert not waits.done()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)


async def test_a_machine_without_metadata_is_no_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        waits = asyncio.create_task(spot_notice(f"http://127.0.0.1:9{PATH}", every_s=0.01))
        await asyncio.sleep(0.2)
    assert not waits.done()
    assert len(caplog.records) == 1
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
