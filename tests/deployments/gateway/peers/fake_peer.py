"""A peer that has the secret and does what a test wants: its digests, its answers to hops, and how these break."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from cluster.spec import ClusterSpec
from deployments.gateway.peers.auth import CELL_HEADER
from deployments.gateway.peers.client import HOP_HEADER, HOP_PATH, REFUSAL_HEADER
from deployments.gateway.peers.digests import DIGEST_PATH, digest_to_json
from deployments.gateway.peers.hop import read_header
from deployments.gateway.peers.view import VIEW_PATH
from deployments.peering import Digest, HopFacts, LaneDigest, ModelDigest, Question
from deployments.peering.rules import Rules
from tests.deployments.gateway.fake_engine import event
from tests.deployments.gateway.peers.cells import Cells, known_to
from tests.deployments.gateway.rig import Rig, until

STREAM_TYPE = "text/event-stream; charset=utf-8"


class Taken:
    """A hop whose body is here, and the answer to it, as a script writes it."""

    def __init__(self, cell: str, request: web.Request) -> None:
        self._cell = cell
        self._request = request
        self.response: web.StreamResponse | None = None

    async def head(self, status: int = 200, kind: str = STREAM_TYPE, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = web.StreamResponse(
            status=status, headers={CELL_HEADER: self._cell, "content-type": kind, **named}
        )
        await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        assert self.response is not None
        await self.response.write(data)

    async def whole(self, body: bytes, status: int = 200, **headers: str) -> None:
        await self.head(status, "application/json", content_length=str(len(body)), **headers)
        await self.write(body)

    def raw(self, data: bytes) -> None:
        """Bytes instead of an answer."""
        assert self._request.transport is not None
        self._request.transport.write(data)  # type: ignore[attr-defined]

    def reset(self) -> None:
        assert self._request.transport is not None
        self._request.transport.abort()


Script = Callable[[Taken], Awaitable[None]]


async def good(taken: Taken) -> None:
    """Two events, streamed."""
    await taken.head()
    for text in "ab":
        await taken.write(event(text))
    await taken.write(b"data: [DONE]\n\n")


async def hangs(taken: Taken) -> None:
    """It takes the request, and says nothing."""
    await asyncio.sleep(60)


class FakePeer:
    """One cell at the port that the spec names for it. `script`: the answer to a hop that it takes; `refuses`: why it
    takes none (`HopRefusal`, or a word of its own), before the body; `judge` and `answer_digest` replace the whole."""

    def __init__(self, spec: ClusterSpec, cell: str, port: int) -> None:
        self.cell = cell
        self.script: Script = good
        self.refuses: str | None = None
        self.judge: Callable[[web.Request], Awaitable[web.StreamResponse | None]] = self._judge
        self.answer_digest: Callable[[web.Request], Awaitable[web.StreamResponse]] = self._digest
        self.hops: list[HopFacts] = []
        self.left = 0
        self.wait_s = 0.0
        self.view = b"{}"
        self._marks = Rules(spec).marks
        self._port = port
        self._sequence = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> "FakePeer":
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post(DIGEST_PATH, self._asked)
        app.router.add_post(HOP_PATH, self._hop, expect_handler=self._expected)
        app.router.add_post(VIEW_PATH, self._viewed)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def says(self, content: Any) -> web.Response:
        return web.json_response(content, headers={CELL_HEADER: self.cell})

    def digest(self, model: str, question: Question) -> Digest:
        """One free replica."""
        self._sequence += 1
        lanes = tuple(LaneDigest(name, self.wait_s, self.wait_s) for name in ("short", "medium", "long", "all"))
        one = ModelDigest(model, lanes, 1, 100, 100, 100_000, 100_000, 1e6)
        return Digest(self.cell, 1, self._sequence, question, self._marks, (one,))

    async def _asked(self, request: web.Request) -> web.StreamResponse:
        return await self.answer_digest(request)

    async def _digest(self, request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["questions"]
        return self.says(
            {"digests": {name: digest_to_json(self.digest(name, Question(*one))) for name, one in asked.items()}}
        )

    async def _viewed(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=self.view, headers={CELL_HEADER: self.cell}, content_type="application/json")

    async def _expected(self, request: web.Request) -> web.StreamResponse | None:
        self.hops.append(read_header(request.headers[HOP_HEADER]))
        try:
            refused = await self.judge(request)
        except asyncio.CancelledError:
            self.left += 1
            raise
        if refused is None:
            assert request.transport is not None
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # type: ignore[attr-defined]
        return refused

    async def _judge(self, request: web.Request) -> web.StreamResponse | None:
        return None if self.refuses is None else self.refusal(self.refuses)

    def refusal(self, why: str) -> web.Response:
        return web.Response(status=503, headers={CELL_HEADER: self.cell, REFUSAL_HEADER: why, "connection": "close"})

    async def _hop(self, request: web.Request) -> web.StreamResponse:
        taken = Taken(self.cell, request)
        try:
            await request.read()
            await self.script(taken)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left += 1
            raise
        return taken.response or web.Response(status=500)


async def beside_fake(cells: Cells) -> tuple[Rig, FakePeer]:
    """`eu` without a replica, which knows a fake `us`."""
    home, spec = await cells.start("eu", engines=0), cells.spec_of("us")
    peer = await FakePeer(spec, "us", spec.gateway.port).start()
    await until(lambda: all(known_to(home).values()))
    return home, peer
