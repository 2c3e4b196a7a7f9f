"""A real HTTP server on a loopback port that stands in for an engine replica, since an engine does not misbehave on
command.

It speaks the replica's feed (deployments/protocol.py) and answers requests as `behave` says; the behaviours below cover
how engines fail.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from deployments.engine.fence import Fence
from deployments.protocol import (
    BOOKING_HEADER,
    CLAIM_PATH,
    DRAIN_PATH,
    EPOCH_HEADER,
    FEED_PATH,
    HEARTBEAT_S,
    STALE_EPOCH_CODE,
    DrainReason,
    Finished,
    FirstTokens,
    Hello,
    Load,
    ReplicaFacts,
    ReplicaState,
    Usage,
    encode,
)

Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
DONE = b"data: [DONE]\n\n"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Seen:
    """A request that the engine got."""

    path: str
    headers: dict[str, str]
    body: bytes


class FakeEngine:
    """One replica. Its feed speaks while `speaks` is set; each end of a request is told as Finished while `tells`
    is."""

    def __init__(
        self, model: str = "demo", task: Any = "generate", max_num_seqs: int = 4, version: str = "one"
    ) -> None:
        self.behave: Behaviour = good
        self.seen: list[Seen] = []
        self.open = 0
        self.aborted = 0
        self.state = ReplicaState.READY
        self.drains_for: DrainReason | None = None
        self.leaving = False
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.tells = True
        self.fence = Fence()
        self.claimed: list[int] = []
        self.drained: list[str] = []
        self.running: dict[str, str] = {}
        self.twice: list[str] = []
        self.facts = ReplicaFacts(
            f"engine-{model}#{next(_numbers)}",
            *(model, "", 1, "node", task, 1_024, max_num_seqs, 2_048, 65_536),
            version=version,
        )
        self._feeds: set[web.StreamResponse] = set()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> "FakeEngine":
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get(FEED_PATH, self._feed)
        app.router.add_post(CLAIM_PATH, self._claim)
        app.router.add_post(DRAIN_PATH, self._drain)
        app.router.add_get("/{path:.*}", self._page)
        app.router.add_post("/{path:.*}", self._work)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.facts = replace(self.facts, url=url)
        return self

    async def kill(self) -> None:
        """Ends as a killed process does: every connection breaks at once, and no new one is made. One that has ended is
        no error."""
        if self._runner is None:
            return
        for site in list(self._runner.sites):
            await site.stop()
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()
        self._runner = None

    async def leave(self) -> None:
        """Ends as one does that has drained: its feeds end first, each with its last word."""
        self.leaving = True
        while self._feeds:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await self.kill()

    async def say(self, line: bytes) -> None:
        """Writes a line to every open feed."""
        for feed in list(self._feeds):
            await feed.write(line)

    async def become(self, state: ReplicaState) -> None:
        """Changes the state, and says so."""
        self.state = state
        await self.say(encode(self._load()))

    async def first_tokens(self, *request_ids: str) -> None:
        """Tells that the first tokens of these are there; of none: of all that run."""
        await self.say(encode(FirstTokens(request_ids or tuple(self.running))))

    def end_feeds(self) -> None:
        for feed in list(self._feeds):
            feed.force_close()
            feed._req.transport.abort()  # type: ignore[union-attr]

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        await self.speaks.wait()
        response = web.StreamResponse(headers={"content-type": "application/octet-stream"})
        await response.prepare(request)
        await response.write(encode(Hello(self.facts, self.state)))
        self._feeds.add(response)
        try:
            while not self.leaving:
                await self.speaks.wait()
                await response.write(encode(self._load()))
                await asyncio.sleep(HEARTBEAT_S / 5)
            await response.write(encode(self._load()))
            return response
        finally:
            self._feeds.discard(response)

    async def _claim(self, request: web.Request) -> web.StreamResponse:
        epoch = int((await request.json())["epoch"])
        if not self.fence.admits(epoch):
            return self._overtaken()
        self.claimed.append(epoch)
        running = [{"request_id": name, "booking": booking, "started": False} for name, booking in self.running.items()]
        return web.json_response({"epoch": epoch, "running": running})

    async def _drain(self, request: web.Request) -> web.StreamResponse:
        self.drained.append((await request.json())["reason"])
        await self.become(ReplicaState.DRAINING)
        return web.json_response({"state": "draining"}, status=202)

    def _overtaken(self) -> web.Response:
        error = {"message": "overtaken", "type": "invalid_request_error", "param": None, "code": STALE_EPOCH_CODE}
        return web.json_response({"error": {**error, "highest": self.fence.highest}}, status=409)

    async def _work(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not self.fence.admits(int(request.headers.get(EPOCH_HEADER, self.fence.highest))):
            return self._overtaken()
        request_id = request.headers["x-request-id"]
        if request_id in self.running:
            self.twice.append(request_id)
        self.running[request_id] = request.headers.get(BOOKING_HEADER, "")
        self.seen.append(Seen(request.path, {name.lower(): value for name, value in request.headers.items()}, body))
        self.open += 1
        ended = False
        try:
            response = await self.behave(request, json.loads(body))
            ended = response.status == 200
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.open -= 1
            booking = self.running.pop(request_id, "")
            if self.tells and (ended or self.state is ReplicaState.READY):
                asyncio.get_running_loop().call_soon(self._tell, request_id, ended, booking)
        return response

    async def _page(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(Seen(request.path, {name.lower(): value for name, value in request.headers.items()}, b""))
        return await self.behave(request, {})

    def _tell(self, request_id: str, ended: bool, booking: str) -> None:
        sequences = int(ended)
        usage = Usage(8 * sequences, 2 * sequences, 3 * sequences, 0, sequences, 0.002, 0.003, 0.001)
        message = Finished(request_id, 200 if ended else 499, usage, 0.004, 0.01, "" if ended else booking)
        self._say_task = asyncio.ensure_future(self.say(encode(message)))

    def _load(self) -> Load:
        return Load(self.state, self.open, 0, self.open, 0.0, self.drains_for)


def event(text: str = "x") -> bytes:
    return f"data: {json.dumps({'choices': [{'index': 0, 'text': text}]}, separators=(',', ':'))}\n\n".encode()


def pieces(*parts: bytes | float | asyncio.Event, status: int = 200, breaks: bool = False) -> Behaviour:
    """Streams bytes as they are, sleeps for numbers, waits for events."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for part in parts:
            if isinstance(part, bytes):
                await response.write(part)
            elif isinstance(part, asyncio.Event):
                await part.wait()
            else:
                await asyncio.sleep(part)
        if breaks:
            return _break(request, response)
        await response.write_eof()
        return response

    return behave


def dying(*parts: bytes | float | asyncio.Event) -> Behaviour:
    """Streams, then breaks the connection."""
    return pieces(*parts, breaks=True)


def raw(answer: bytes) -> Behaviour:
    """Writes bytes that need not be HTTP, and breaks the connection."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(answer)
        await asyncio.sleep(0.05)
        return _break(request, web.Response(status=200))

    return behave


def refusing(code: str, times: int = 1 << 30, then: Behaviour | None = None) -> Behaviour:
    """Answers 503 with that error code, as the guard of a replica does, for so many times."""
    left = itertools.count(times, -1)

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if next(left) <= 0:
            return await (then or good)(request, body)
        return web.json_response(
            {"error": {"message": "nothing was done", "type": "unavailable_error", "param": None, "code": code}},
            status=503,
        )

    return behave


def whole(payload: bytes, status: int = 200, content_type: str = "application/json") -> Behaviour:
    """Answers with a body that is not streamed."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, body=payload, content_type=content_type)

    return behave


def waiting(until: asyncio.Event, then: Behaviour | None = None) -> Behaviour:
    """Answers nothing before `until`."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await until.wait()
        return await (then or good)(request, body)

    return behave


async def good(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Three tokens, streamed or not."""
    if body.get("stream"):
        return await pieces(event("a"), event("b"), event("c"), DONE)(request, body)
    usage = {"prompt_tokens": 8, "completion_tokens": 3}
    return web.json_response({"id": "cmpl-1", "choices": [{"index": 0, "text": "abc"}], "usage": usage})


def _break(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return response
