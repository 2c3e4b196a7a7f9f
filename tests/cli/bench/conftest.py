"""A real HTTP server on a free loopback port that answers as OpenAI-compatible servers do, and as they fail: the
model's name picks how."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

DONE = b"data: [DONE]\n\n"


def token() -> bytes:
    """A completion event that carries a token."""
    return b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'


def usage(prompt: int, output: int) -> bytes:
    """The event with the usage that closes a stream."""
    event = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}
    return f"data: {json.dumps(event)}\n\n".encode()


@dataclass
class FakeServer:
    """The server's address and the bodies that it got."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    has_tokenize: bool = True
    now_open: int = 0
    max_open: int = 0
    tokenized: int = 0


async def _pieces(request: web.Request, *pieces: bytes | float) -> web.StreamResponse:
    """Writes bytes as they are, each in a chunk of its own, and sleeps for the numbers between them."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        if isinstance(piece, bytes):
            await response.write(piece)
        else:
            await asyncio.sleep(piece)
    await response.write_eof()
    return response


async def good(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers `max_tokens` tokens and their usage, streamed or not."""
    prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    prompt_tokens = len(prompt) if isinstance(prompt, list) else len(prompt.split())
    if not body["stream"]:
        counts = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        return web.json_response({"choices": [{"text": "x"}], "usage": counts})
    return await _pieces(
        request, *[token() for _ in range(body["max_tokens"])], usage(prompt_tokens, body["max_tokens"]), DONE
    )


async def refused(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(
        {"error": {"message": "the queue is full", "code": "queue_full", "type": "overloaded"}}, status=503
    )


async def bare_error(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(text="bad gateway", status=502)


async def cut_off(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(token() + token())
    await asyncio.sleep(0.02)
    assert request.transport is not None
    request.transport.abort()
    return response


STREAMS: dict[str, tuple[bytes | float, ...]] = {
    "error_event": (
        token(),
        token(),
        b'data: {"error": {"message": "the replica died", "code": "replica_lost"}}\n\n',
        DONE,
    ),
    "named_error_event": (token(), b'event: error\ndata: {"message": "gone", "code": "gone"}\n\n', DONE),
    "silent_end": (token(), token()),
    "no_tokens": (usage(3, 0), DONE),
    "slow": (0.1, token(), 0.3, token(), 0.05, token(), usage(3, 3), 0.1, DONE),
    "hanging": (token(), 30.0),
}
BEHAVIOURS = {one.__name__: one for one in (good, refused, bare_error, cut_off)}


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    """The running server. Its tokenizer takes one token a word; a chat costs five more."""
    fake = FakeServer()

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        fake.bodies.append(body)
        fake.headers.append(dict(request.headers))
        fake.now_open += 1
        fake.max_open = max(fake.max_open, fake.now_open)
        try:
            if (pieces := STREAMS.get(body["model"])) is not None:
                return await _pieces(request, *pieces)
            return await BEHAVIOURS[body["model"]](request, body)
        finally:
            fake.now_open -= 1

    async def tokenize(request: web.Request) -> web.StreamResponse:
        if not fake.has_tokenize:
            raise web.HTTPNotFound
        fake.tokenized += 1
        body = await request.json()
        words = (body["prompt"] if "prompt" in body else body["messages"][0]["content"]).split()
        answer = {
            "count": len(words) + (5 if "messages" in body else 0),
            "tokens": [1_000 + position for position in range(len(words))],
        }
        return web.json_response(answer | {"token_strs": [f"Ġ{word}" for word in words]})

    async def models(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "good"}, {"id": "other"}]})

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()
