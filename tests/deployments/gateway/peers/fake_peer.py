"""A peer that has the secret and does what a test wants: its digests, its answers to hops, and how these break."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from cluster.spec import ClusterSpec
from deployments.gateway.peers.auth import (
    CELL_HEADER,
    CONTENT_HEADER,
    HOP_HEADER,
    NONCE_HEADER,
    SIGNATURE_HEADER,
    Call,
    Signer,
)
from deployments.gateway.peers.client import HOP_PATH, TAKEN
from deployments.gateway.peers.digests import DIGEST_PATH, digest_to_json
from deployments.gateway.peers.envelope import HopEnvelope, read_envelope
from deployments.gateway.peers.frames import FrameKind, FrameWriter
from deployments.gateway.peers.view import VIEW_PATH
from deployments.peering import Digest, LaneDigest, ModelDigest, Question
from deployments.peering.rules import Rules
from tests.deployments.gateway.fake_engine import event
from tests.deployments.gateway.peers.cells import PEERS_SECRET

HEAD: dict[str, Any] = {"status": 200, "headers": [["content-type", "text/event-stream; charset=utf-8"]]}


class Taken:
    """The answer to a hop, as a script writes it."""

    def __init__(self, response: web.StreamResponse, writer: FrameWriter, request: web.Request) -> None:
        self._response = response
        self._writer = writer
        self._request = request

    async def json(self, kind: FrameKind, content: Any) -> None:
        await self._response.write(self._writer.encode_json(kind, content))

    async def put(self, kind: FrameKind, content: bytes = b"") -> None:
        await self._response.write(self._writer.encode(kind, content))

    async def raw(self, data: bytes) -> None:
        await self._response.write(data)

    def reset(self) -> None:
        assert self._request.transport is not None
        self._request.transport.abort()


Script = Callable[[Taken], Awaitable[None]]


async def good(taken: Taken) -> None:
    """Two events, streamed."""
    await taken.json(FrameKind.HEAD, HEAD)
    for text in "ab":
        await taken.put(FrameKind.DATA, event(text))
    await taken.put(FrameKind.DATA, b"data: [DONE]\n\n")
    await taken.json(FrameKind.END, {"error": None})


class FakePeer:
    """One cell at the port that the spec names for it. `script`: the answer to a hop; `answer_hop` and `answer_digest`
    replace the whole answers."""

    def __init__(self, spec: ClusterSpec, cell: str, port: int, secret: str = PEERS_SECRET) -> None:
        self.cell = cell
        self.script: Script = good
        self.answer_hop: Callable[[web.Request, Call], Awaitable[web.StreamResponse]] = self._take
        self.answer_digest: Callable[[web.Request, Call], Awaitable[web.StreamResponse]] = self._digest
        self.hops: list[HopEnvelope] = []
        self.left = 0
        self.wait_s = 0.0
        self.view = b"{}"
        self.signer = Signer(cell, secret)
        self._marks = Rules(spec).marks
        self._models = [model.name for model in spec.models]
        self._port = port
        self._sequence = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> "FakePeer":
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post(DIGEST_PATH, self._asked)
        app.router.add_post(HOP_PATH, self._hop)
        app.router.add_post(VIEW_PATH, self._viewed)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def signed(self, call: Call, content: Any, status: int = 200) -> web.Response:
        """A whole answer."""
        body = json.dumps(content).encode()
        headers = {CELL_HEADER: self.cell, SIGNATURE_HEADER: self.signer.answer(call, status, body)}
        return web.Response(status=status, body=body, headers=headers, content_type="application/json")

    def digest(self, model: str, question: Question) -> Digest:
        """One free replica."""
        self._sequence += 1
        lanes = tuple(LaneDigest(name, self.wait_s, self.wait_s) for name in ("short", "medium", "long", "all"))
        one = ModelDigest(model, lanes, 1, 100, 100, 100_000, 100_000, 1e6)
        return Digest(self.cell, 1, self._sequence, question, self._marks, (one,))

    async def _asked(self, request: web.Request) -> web.StreamResponse:
        return await self.answer_digest(request, call_of(request))

    async def _digest(self, request: web.Request, call: Call) -> web.StreamResponse:
        asked = (await request.json())["questions"]
        digests = {name: digest_to_json(self.digest(name, Question(*question))) for name, question in asked.items()}
        return self.signed(call, {"digests": digests})

    async def _viewed(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        call, body = call_of(request), self.view
        headers = {CELL_HEADER: self.cell, SIGNATURE_HEADER: self.signer.answer(call, 200, body)}
        return web.Response(body=body, headers=headers, content_type="application/json")

    async def _hop(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        call = call_of(request)
        self.hops.append(read_envelope(call.hop))
        try:
            return await self.answer_hop(request, call)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left += 1
            raise

    async def _take(self, request: web.Request, call: Call) -> web.StreamResponse:
        signature = self.signer.answer(call, 200, TAKEN.encode())
        response = web.StreamResponse(
            headers={CELL_HEADER: self.cell, HOP_HEADER: TAKEN, SIGNATURE_HEADER: signature},
        )
        await response.prepare(request)
        key = self.signer.frame_key(self.cell, call.sender, call.nonce)
        await self.script(Taken(response, FrameWriter(key), request))
        return response


def call_of(request: web.Request) -> Call:
    names = (CELL_HEADER, NONCE_HEADER, CONTENT_HEADER, HOP_HEADER)
    return Call(*(request.headers.get(name, "") for name in names))
