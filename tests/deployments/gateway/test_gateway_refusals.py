"""Clients who ask for what there is not, speak no HTTP, or send too much: each is told why, or cut."""

import asyncio
import io
import itertools
import json
import random
from typing import Any

import aiohttp
import pytest

from deployments.http import protocol as http_protocol
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import ASK, CREDENTIALS, STREAM, MakeRig, Rig, head, openai_error


async def test_a_wrong_method(rig: Rig) -> None:
    paths = (("/v1/completions", "POST"), ("/tokenize", "POST"), ("/v1/models", "GET, HEAD"), ("/metrics", "GET, HEAD"))
    for method, (path, allowed) in itertools.product(["GET", "PUT", "DELETE", "PATCH", "OPTIONS"], paths):
        if method in allowed:
            continue
        client = await rig.connect()
        await client.request(path, b"", method, **CREDENTIALS)
        status, headers, body = await client.answer()
        assert (status, headers["allow"]) == (405, allowed)
        assert openai_error(body)["code"] == "method_not_allowed"
        assert headers["x-request-id"]
        client.leave()


async def test_head(rig: Rig) -> None:
    for path, desired in (("/v1/models", 200), ("/health", 200), ("/v1/completions", 405), ("/nothing", 404)):
        client = await rig.connect()
        await client.request(path, b"", "HEAD")
        status, headers = await client.answer_head()
        assert status == desired
        assert "x-request-id" in headers
        await client.request("/health", b"", "GET")  # the connection is in step: no body came
        assert (await client.answer())[0] == 200
        client.leave()


async def test_unknown_paths(rig: Rig) -> None:
    for path in (
        "/",
        "/v1",
        "/v1/completions/",
        "/v1/chat",
        "//v1/models",
        "/v1/models%2f",
        "/raylane/none",
        "/..",
        "/v1/responses/resp_1",
        "/docs",
    ):
        client = await rig.connect()
        await client.request(path, b"", "GET")
        status, headers, body = await client.answer()
        assert status == 404, path
        assert openai_error(body)["code"] in ("not_found", "model_not_found")
        assert headers["x-request-id"]
        client.leave()


async def test_a_body_over_the_limit(make_rig: MakeRig) -> None:
    rig = await make_rig(limits={"max_body_bytes": 1_024})
    exact = json.dumps(ASK).encode().ljust(1_024)
    assert (await rig.ask(exact))[0] == 200
    over = exact + b" "
    status, error = await rig.error(over)
    assert (status, error["code"]) == (413, "body_too_large")
    assert "1025" in error["message"]
    assert "1024" in error["message"]
    assert len(rig.engines[0].seen) == 1


async def test_a_body_far_over_the_limit(make_rig: MakeRig) -> None:
    """The client gets its 413 though it is still sending, announced or not."""
    rig = await make_rig(limits={"max_body_bytes": 1_024})

    async def chunks() -> Any:
        for _ in range(320):
            yield b"x" * 65_536

    for body in (io.BytesIO(b"x" * 20_000_000), chunks()):
        url = rig.url + "/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, data=body) as response:
            assert response.status == 413
            assert openai_error(await response.read())["code"] == "body_too_large"
    await rig.last(2)
    assert {ledger.outcome for ledger in rig.closed} == {RequestOutcome.REFUSED}


@pytest.mark.parametrize(
    "more", [b"".join(b"x-%d: " % number + b"y" * 1_000 + b"\r\n" for number in range(80)), b"x: " + b"y" * 80_000]
)
async def test_a_head_that_does_not_end(rig: Rig, more: bytes) -> None:
    client = await rig.connect()
    client.writer.write(b"GET /health HTTP/1.1\r\n" + more)
    status, _, body = await client.answer()
    assert status == 431
    openai_error(body)
    assert await client.is_cut()


async def test_a_head_timer_leaves_a_running_answer_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    rig.engines[0].behave = pieces(event("a"), 0.8, event("b"), DONE)
    client = await rig.connect(STREAM)
    await client.answer_head()
    client.writer.write(b"GET /hea")  # half a next request, far too early
    body = b""
    while not body.endswith(b"0\r\n\r\n"):
        body += await client.reader.read(65_536)
    assert event("b") in body
    assert await client.is_cut()


async def test_mangled_requests(rig: Rig) -> None:
    """Whatever comes over a connection, each is answered or ended, and the next client notices nothing."""
    dice = random.Random(7)
    body = json.dumps(STREAM).encode()
    good = head("POST", "/v1/completions", len(body), **{"x-request-id": "a", "connection": "keep-alive"}) + body
    for number in range(150):
        mangled = bytearray(good * dice.choice([1, 1, 2]))
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(mangled))
            match dice.randrange(4):
                case 0:
                    mangled[at] = dice.randrange(256)
                case 1:
                    del mangled[at : at + dice.randint(1, 40)]
                case 2:
                    mangled[at:at] = dice.randbytes(dice.randint(1, 20))
                case _:
                    mangled[at:at] = b"\r\n"
        client = await rig.connect()
        cut = dice.randrange(len(mangled) + 1)
        client.writer.write(bytes(mangled[:cut]))
        await asyncio.sleep(0)
        if not client.writer.transport.is_closing():
            client.writer.write(bytes(mangled[cut:]))
        if number % 3:
            try:
                async with asyncio.timeout(0.05):
                    while await client.reader.read(65_536):
                        pass
            except (TimeoutError, ConnectionError):
                pass
        client.leave()
    assert (await rig.ask())[0] == 200
