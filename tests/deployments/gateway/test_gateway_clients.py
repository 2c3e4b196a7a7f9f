"""Clients of all manners: those who leave, who keep their connection, who speak odd HTTP."""

import asyncio
import json
import time
from typing import Any

import pytest

from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, Behaviour, FakeEngine, event, pieces, waiting
from tests.deployments.gateway.rig import ASK, STREAM, MakeRig, Rig, head, until
from tests.deployments.gateway.test_gateway_timeouts import never


async def test_leaving_in_the_lane(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    clients = [await rig.connect({**ASK, "prompt": str(number)}) for number in range(20)]
    await until(lambda: rig.owner.snapshot().lanes[0].waiting == 20)
    for client in clients[::2]:
        client.leave()
    left = time.monotonic()
    await until(lambda: rig.owner.snapshot().lanes[0].waiting == 10)
    assert time.monotonic() - left < 1
    ledger = await rig.last(10)
    assert (ledger.outcome, ledger.error, ledger.status) == (RequestOutcome.CANCELLED, "client_gone", 0)
    engine = await rig.add(FakeEngine())
    assert [(await client.answer())[0] for client in clients[1::2]] == [200] * 10
    assert sorted(int(json.loads(seen.body)["prompt"]) for seen in engine.seen) == list(range(1, 20, 2))


@pytest.mark.parametrize(
    ("ask", "behave"),
    [(ASK, never), (STREAM, never), (STREAM, pieces(event("a"), 3_600.0))],
    ids=["before a whole answer", "before a stream", "in a stream"],
)
async def test_leaving_while_the_engine_works(rig: Rig, ask: dict[str, Any], behave: Behaviour) -> None:
    engine = rig.engines[0]
    engine.behave = behave
    client = await rig.connect(ask)
    await until(lambda: engine.open == 1)
    if behave is not never:
        await client.answer_head()
    client.leave()
    await until(lambda: engine.aborted == 1)
    assert (await rig.last()).outcome is RequestOutcome.CANCELLED
    assert rig.owner.snapshot().endings["cancelled"] == 1


async def test_leaving_in_the_upload(rig: Rig) -> None:
    client = await rig.connect()
    client.writer.write(head("POST", "/v1/completions", 1_000) + b"{")
    await until(lambda: len(rig.service.flows) == 1)
    client.leave()
    ledger = await rig.last()
    assert (ledger.outcome, ledger.error) == (RequestOutcome.CANCELLED, "client_gone")


async def test_leaving_after_the_end_is_no_cancellation(rig: Rig) -> None:
    for _ in range(20):
        client = await rig.connect(STREAM)
        await client.answer()
        client.leave()
    await rig.last(20)
    assert {ledger.outcome for ledger in rig.closed} == {RequestOutcome.OK}
    assert rig.owner.snapshot().endings["finished"] == 20


@pytest.mark.whole
async def test_leaving_at_random_moments(make_rig: MakeRig) -> None:
    """A storm of clients that leave; the fixture checks that the books balance."""
    rig = await make_rig(engines=2)
    for engine in rig.engines:
        engine.behave = pieces(0.02, *[event(), 0.01] * 20, DONE)

    async def visit(number: int) -> None:
        client = await rig.connect(STREAM if number % 3 else ASK)
        await asyncio.sleep(number * 7 % 60 / 100)
        client.leave()

    await asyncio.gather(*(visit(number) for number in range(150)))
    await until(lambda: len(rig.closed) == 150)
    assert all(engine.open == 0 for engine in rig.engines)


async def test_keep_alive(rig: Rig) -> None:
    client = await rig.connect()
    asks: list[tuple[str, str, Any]] = [
        ("POST", "/v1/completions", ASK),
        ("POST", "/v1/completions", STREAM),
        ("GET", "/v1/models", b""),
        ("POST", "/v1/completions", b"{"),
        ("GET", "/v1/nothing", b""),
        ("DELETE", "/v1/models", b""),
        ("POST", "/v1/completions", ASK),
    ]
    statuses = []
    for method, path, body in asks:
        await client.request(path, body, method)
        status, headers, _ = await client.answer()
        assert headers.get("connection") != "close"
        statuses.append(status)
    assert statuses == [200, 200, 200, 400, 404, 405, 200]


async def test_pipelining(rig: Rig) -> None:
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write((head("POST", "/v1/completions", len(body)) + body) * 3)
    for _ in range(3):
        status, _, payload = await client.answer()
        assert (status, json.loads(payload)["choices"][0]["text"]) == (200, "abc")


async def test_expect_100_continue(rig: Rig) -> None:
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write(head("POST", "/v1/completions", len(body), expect="100-continue"))
    assert (await client.answer_head())[0] == 100
    client.writer.write(body)
    assert (await client.answer())[0] == 200


async def test_an_offered_upgrade_is_ignored(rig: Rig) -> None:
    """Java's HTTP client offers h2c with every request, and keeps the connection."""
    client = await rig.connect()
    offer = {"upgrade": "h2c", "connection": "Upgrade, HTTP2-Settings", "http2-settings": "AAMAAABk"}
    for _ in range(3):
        await client.request("/v1/completions", ASK, **offer)
        assert (await client.answer())[0] == 200


async def test_a_chunked_upload(rig: Rig) -> None:
    client = await rig.connect()
    body = json.dumps(ASK).encode()
    client.writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for at in range(0, len(body), 7):
        piece = body[at : at + 7]
        client.writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
    client.writer.write(b"0\r\n\r\n")
    assert (await client.answer())[0] == 200
    assert rig.engines[0].seen[0].body == body


IDS = [
    ("my-id_1.2:3/4", True),
    ("x" * 128, True),
    ("x" * 129, False),
    ("", False),
    ("has a space", False),
    ("ünï", False),
    ("tab\tinside", False),
    ("a;b=c,d<script>", True),
]


async def test_request_ids(rig: Rig, subtests: pytest.Subtests) -> None:
    asks = (
        ("/v1/completions", "POST", ASK),
        ("/v1/completions", "POST", b"{"),
        ("/v1/models", "GET", b""),
        ("/no", "GET", b""),
    )
    for given, kept in IDS:
        with subtests.test(given=given):
            for path, method, body in asks:
                client = await rig.connect()
                await client.request(path, body, method, **{"x-request-id": given})
                _, headers, _ = await client.answer()
                assert (headers["x-request-id"] == given) is kept
                assert headers["x-request-id"].isprintable()
                assert headers["x-request-id"]
                client.leave()


async def test_two_requests_with_one_id(rig: Rig) -> None:
    """A client's id is for its own books: ours is another one, so nothing collides."""
    rig.engines[0].behave = waiting(release := asyncio.Event())
    asks = [asyncio.create_task(rig.ask(headers={"x-request-id": "same"})) for _ in range(4)]
    await until(lambda: rig.engines[0].open == 4)
    release.set()
    assert [status for status, _ in await asyncio.gather(*asks)] == [200] * 4
    assert len({seen.headers["x-request-id"] for seen in rig.engines[0].seen}) == 4


async def test_two_id_headers(rig: Rig) -> None:
    client = await rig.connect()
    client.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: one\r\nX-Request-Id: two\r\n\r\n")
    assert (await client.answer())[1]["x-request-id"] == "one"
