"""The replica's front door, over real HTTP."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from deployments.protocol import (
    CLAIM_PATH,
    DRAIN_PATH,
    DRAINING_CODE,
    ENGINE_DIED_CODE,
    ENGINE_DIED_HEADER,
    ERROR_EVENT,
    FEED_PATH,
    NAMED_ERROR_EVENT,
    UNHEALTHY_CODE,
    DrainReason,
    Finished,
    Hello,
    Load,
    ReplicaState,
    Usage,
)
from tests.deployments.engine.guarded_engine import SECRET, Behind
from tests.feeds import Messages


@pytest.mark.whole
@pytest.mark.parametrize("path", ["/", "/metrics", "/docs", "/v1/completions", FEED_PATH, DRAIN_PATH, CLAIM_PATH])
@pytest.mark.parametrize(
    "given",
    [None, "Bearer wrong", "bearer s3cret", f"Bearer {SECRET}x", "Basic s3cret", "Bearer ", f"Bearer {SECRET}, x"],
)
async def test_without_the_secret_every_path_is_closed(
    behind: Behind, session: aiohttp.ClientSession, path: str, given: str | None
) -> None:
    headers = {} if given is None else {"Authorization": given}
    async with aiohttp.ClientSession(session._base_url) as stranger, stranger.post(path, headers=headers) as response:
        assert response.status == 401
        error = (await response.json())["error"]
        assert error["code"] == "invalid_secret"
        assert set(error) == {"message", "type", "param", "code"}
    assert behind.state is ReplicaState.READY


async def test_the_secret_goes_no_further(session: aiohttp.ClientSession) -> None:
    async with session.post("/v1/completions") as response:
        assert "authorization" not in await response.text()


async def test_work_is_booked_with_its_tokens(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.post("/v1/completions", headers={"X-Request-Id": "mine"}) as response:
        await response.read()
    report = await behind.reports.get()
    assert (report.request_id, report.status, report.usage.sequences, report.usage.output_tokens) == ("mine", 200, 1, 2)
    assert report.first_byte_s is not None
    assert 0 <= report.first_byte_s <= report.wall_s


async def test_reading_is_not_booked(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.get("/metrics") as response:
        assert response.status == 200
    assert behind.reports.empty()
    assert behind.books.idle


async def test_a_client_that_leaves_is_reported_without_statistics(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.go.clear()
    async with session.post("/v1/completions", headers={"X-Request-Id": "left"}) as response:
        await response.content.readany()
        response.close()
    report = await asyncio.wait_for(behind.reports.get(), 5)
    assert (report.request_id, report.status, report.usage.sequences) == ("left", 200, 0)
    assert behind.books.idle


async def test_draining_refuses_new_work_and_lets_the_old_end(behind: Behind, session: aiohttp.ClientSession) -> None:
    behind.go.clear()
    async with session.post("/v1/completions") as running:
        await running.content.readany()
        async with session.get(DRAIN_PATH) as response:
            assert response.status == 405
        for body in (b"{", b"[]", b'{"reason": "boredom"}', b"{}"):
            async with session.post(DRAIN_PATH, data=body) as response:
                assert response.status == 400
        assert behind.state is ReplicaState.READY
        async with session.post(DRAIN_PATH) as response:
            assert (response.status, (await response.json())["exchanges"]) == (202, 1)
        assert behind.reason is DrainReason.OPERATOR
        async with session.post(DRAIN_PATH, json={"reason": "spot_notice"}) as response:
            assert (response.status, (await response.json())["reason"]) == (202, "spot_notice")
        assert behind.reason is DrainReason.SPOT_NOTICE
        async with session.post("/v1/completions") as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == DRAINING_CODE
        async with session.get("/metrics") as response:
            assert response.status == 200
        behind.go.set()
        assert (await running.read()).endswith(b"!")


async def test_an_unhealthy_replica_refuses_work_by_another_code(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.state = ReplicaState.UNHEALTHY
    async with session.post("/v1/completions") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, UNHEALTHY_CODE)
    assert behind.reports.empty()


async def test_the_feed_flows_until_it_is_closed(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.get(FEED_PATH) as response:
        assert response.headers["content-type"] == "application/octet-stream"
        messages = Messages(response)
        assert isinstance(await anext(messages), Hello)
        assert isinstance(await anext(messages), Load)
        finished = Finished("id", 200, Usage(5, 0, 3, 0, 1, 0.1, 0.2, 0.0), 0.1, 0.3)
        behind.feed.tell(finished)
        assert await anext(messages) == finished
        behind.feed.tell(finished)
        behind.feed.close()
        assert await anext(messages) == finished
        assert isinstance(await anext(messages), Load)  # the last word tells why it ends
        assert [message async for message in messages] == []


async def test_a_feed_that_nobody_reads_is_hung_up(behind: Behind, session: aiohttp.ClientSession) -> None:
    async with session.get(FEED_PATH, read_bufsize=1_024) as response:
        await anext(Messages(response))
        finished = Finished("x" * 4_096, 200, Usage(5, 0, 3, 0, 1, 0.1, 0.2, 0.0), 0.1, 0.3)
        async with asyncio.timeout(20):
            while behind.feed.subscribers:
                behind.feed.tell(finished)
                await asyncio.sleep(0)


async def through(behind: Behind, app: Any) -> list[Any]:
    """What a gateway's request gets from the guard with that app behind it."""
    behind.guard.app = app
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {SECRET}".encode()), (b"x-raylane-epoch", b"1")]
    await behind.guard({"path": "/v1/completions", "method": "POST", "headers": headers}, None, send)  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize(
    ("state", "status", "body", "marked"),
    [
        (ReplicaState.UNHEALTHY, 500, b"{}", True),
        (ReplicaState.UNHEALTHY, 200, b'data: {"error": {"code": 500}}\n\n', True),
        (ReplicaState.UNHEALTHY, 200, b'event: error\ndata: {"type": "error"}\n\n', True),
        (ReplicaState.UNHEALTHY, 200, b'data: {"choices": []}\n\n', False),
        (ReplicaState.UNHEALTHY, 400, b"{}", False),
        (ReplicaState.READY, 500, b"{}", False),
        (ReplicaState.DRAINING, 500, b"{}", False),
    ],
)
async def test_an_error_of_a_dead_engine_is_marked_as_such(
    state: ReplicaState, status: int, body: bytes, marked: bool
) -> None:
    behind = Behind()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        behind.state = state
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"rest"})

    sent = await through(behind, app)
    assert [message["type"].rpartition(".")[2] for message in sent] == ["start", "body", "body"]
    assert (sent[0]["status"], sent[1]["body"] + sent[2]["body"]) == (status, body + b"rest")
    assert ((ENGINE_DIED_HEADER.encode(), b"true") in sent[0]["headers"]) is marked


@pytest.mark.parametrize("state", ReplicaState)
@pytest.mark.parametrize(
    "reported",
    [b'data: {"error": {"message": "EngineCore", "code": 500}}\n\n', b'event: error\ndata: {"type":"error"}\n\n'],
)
async def test_an_engine_that_dies_within_a_stream_is_told_in_our_words(reported: bytes, state: ReplicaState) -> None:
    behind = Behind()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'data: {"choices": []}\n\n', "more_body": True})
        behind.state = state
        await send({"type": "http.response.body", "body": reported, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    sent = await through(behind, app)
    first, second, last = [message["body"] for message in sent[1:]]
    assert (first, last) == (b'data: {"choices": []}\n\n', b"data: [DONE]\n\n")
    if state is ReplicaState.UNHEALTHY:
        named = NAMED_ERROR_EVENT if reported.startswith(NAMED_ERROR_EVENT) else b""
        assert second.startswith(named + ERROR_EVENT)
        assert second.endswith(b"\n\n")
        assert json.loads(second.removeprefix(named).removeprefix(b"data: "))["error"]["code"] == ENGINE_DIED_CODE
    else:
        assert second == reported
