"""A stream that waits says so, with SSE comments, in the lane and before the engine's first byte; and never once its
answer has begun."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from deployments.gateway.placed import note_admission, turned_away, wait_comment
from deployments.scheduling import Admission, AdmissionKind, RejectCause, Request
from deployments.telemetry.ledger import Ledger, RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, FakeEngine, dying, event, good, pieces, refusing, waiting, whole
from tests.deployments.gateway.rig import ASK, STREAM, MakeRig, Rig, until

ANSWER = event("a") + event("b") + event("c") + DONE
PLACED = b": placed, waiting for the first token\n\n"


async def events(response: aiohttp.ClientResponse) -> bytes:
    """One event or comment, as it came."""
    async with asyncio.timeout(20):
        return await response.content.readuntil(b"\n\n")


async def beat(rig: Rig) -> None:
    """Lets the one flow's heartbeat out now."""
    await until(lambda: [flow.beat for flow in rig.service.flows._flows] != [None] and len(rig.service.flows))
    (flow,) = rig.service.flows._flows
    assert flow.beat is not None
    flow.beat.__self__._next_s = 0.0  # type: ignore[attr-defined]
    flow.expire(time.monotonic())


@asynccontextmanager
async def commented(rig: Rig, ready: Callable[[], object] = lambda: True) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer to a stream on whose wait one comment was sent, as soon as the request was `ready` for that."""

    async def comment() -> None:
        await until(ready)
        await beat(rig)

    commenting = asyncio.create_task(comment())
    async with rig.post("/v1/completions", STREAM) as response:
        await commenting
        yield response


async def test_comments_come_in_the_lane_and_before_the_first_byte(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, heartbeat_s=0.2)
    async with rig.post("/v1/completions", STREAM, headers={"x-request-id": "mine"}) as response:
        assert (await events(response)).startswith(b": waiting")
        assert (await events(response)).startswith(b": waiting")
        assert (response.status, response.content_type) == (200, "text/event-stream")
        headers = {name.lower() for name in response.headers}
        assert response.headers["x-request-id"] == "mine"
        assert not headers & {"server-timing", "x-raylane-placement", "content-length"}
        engine = FakeEngine()
        engine.behave = waiting(hold := asyncio.Event())
        await rig.add(engine)
        while (said := await events(response)).startswith(b": waiting"):
            pass
        assert said == PLACED
        commented_s = time.monotonic()
        hold.set()
        rest = await response.read()
        assert rest.replace(PLACED, b"") == ANSWER
    ledger = await rig.last()
    assert (ledger.outcome, ledger.status) == (RequestOutcome.OK, 200)
    assert ledger.first_byte_s is not None
    assert ledger.first_byte_s > commented_s  # a comment is no token
    assert sum(flow.met + flow.missed for flow in rig.owner.scheduler.tally.flows.values()) == 1


async def test_expiry_after_a_comment_is_an_error_event(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, timeouts={"queue_wait_s": 0.7})
    async with commented(rig) as response:
        *comments, error, done = (await response.read()).split(b"\n\n")[:-1]
    assert (len(comments), done) == (1, b"data: [DONE]")
    assert comments[0].startswith(b": waiting")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "queue_timeout"
    ledger = await rig.last()
    assert (ledger.outcome, ledger.error) == (RequestOutcome.FAILED, "queue_timeout")


@pytest.mark.parametrize(
    ("status", "payload", "code"),
    [
        (400, b'{"error":{"message":"no","param":"prompt","code":400}}', "invalid_value"),
        (500, b'{"error":{"message":"boom","code":500}}', "engine_error"),
        (200, b'{"id": "whole"}', "engine_error"),
    ],
)
async def test_an_answer_that_is_no_stream_becomes_an_error_event(
    rig: Rig, status: int, payload: bytes, code: str
) -> None:
    rig.engines[0].behave = waiting(hold := asyncio.Event(), whole(payload, status))
    async with commented(rig, lambda: rig.engines[0].open) as response:
        assert await events(response) == PLACED
        hold.set()
        error, done = (await response.read()).split(b"\n\n")[:-1]
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == code
    assert done == b"data: [DONE]"
    assert (await rig.last()).error == code


@pytest.mark.parametrize("bad", [refusing("draining"), dying()], ids=["refused", "died"])
async def test_a_request_moves_on_after_a_comment(make_rig: MakeRig, bad: Any) -> None:
    rig = await make_rig(engines=2)
    hold = asyncio.Event()
    for engine in rig.engines:
        engine.behave = waiting(hold, bad)
    async with commented(rig, lambda: any(engine.open for engine in rig.engines)) as response:
        first, second = sorted(rig.engines, key=lambda engine: -engine.open)
        second.behave = good
        assert await events(response) == PLACED
        hold.set()
        assert await response.read() == ANSWER
    assert (len(first.seen), len(second.seen)) == (1, 1)
    assert (await rig.last()).outcome is RequestOutcome.OK


async def test_nothing_is_said_once_the_answer_has_begun(rig: Rig) -> None:
    rig.engines[0].behave = pieces(event("a"), hold := asyncio.Event(), DONE)
    async with rig.post("/v1/completions", STREAM) as response:
        assert await events(response) == event("a")
        (flow,) = rig.service.flows._flows
        await beat(rig)
        assert flow.beat is not None
        flow.beat(time.monotonic() + 1e6)  # even if it were asked
        hold.set()
        assert await response.read() == DONE


async def test_a_client_that_leaves_between_comments_leaves_nothing(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    client = await rig.connect(STREAM)
    await beat(rig)
    assert (await client.answer_head())[0] == 200
    client.leave()
    assert (await rig.last()).outcome is RequestOutcome.CANCELLED


@pytest.mark.parametrize(("ask", "spec"), [(ASK, {}), (STREAM, {"heartbeat_s": 0})], ids=["not streamed", "off"])
async def test_no_comments(make_rig: MakeRig, ask: dict[str, Any], spec: dict[str, Any]) -> None:
    rig = await make_rig(**spec)
    rig.engines[0].behave = waiting(hold := asyncio.Event())
    asked = asyncio.create_task(rig.ask(ask))
    await until(lambda: rig.engines[0].open)
    (flow,) = rig.service.flows._flows
    assert flow.beat is None
    hold.set()
    assert (await asked)[0] == 200


async def test_an_embedding_is_never_a_stream(make_rig: MakeRig) -> None:
    model = {"name": "embedder", "source": "/nowhere", "task": "embed", "settings": {"max_model_len": 1_024}}
    rig = await make_rig(engines=0, models=[model])
    engine = await rig.add(FakeEngine("embedder", "embed"))
    engine.behave = waiting(hold := asyncio.Event(), whole(b'{"data": []}'))
    asked = asyncio.create_task(rig.ask({"model": "embedder", "input": "x", "stream": True}, "/v1/embeddings"))
    await until(lambda: engine.open)
    assert [flow.beat for flow in rig.service.flows._flows] == [None]
    hold.set()
    assert await asked == (200, b'{"data": []}')


def test_the_expected_wait_is_the_promise_less_what_has_passed() -> None:
    ledger = Ledger("r", "r-1", "/v1/completions", arrived_s=10.0, arrived_unix_s=0.0)
    assert wait_comment(ledger, 11.0) == "waiting"
    ledger.submitted(10.0)
    ledger.eta_s = (12.0, 40.0)
    assert wait_comment(ledger, 10.0) == "waiting, expected wait 12 s p50, 40 s p95"
    assert wait_comment(ledger, 25.0) == "waiting, expected wait 0 s p50, 25 s p95"
    assert wait_comment(ledger, 51.0) == "waiting, for longer than expected"
    ledger.left_lane(52.0, placed=True)
    assert wait_comment(ledger, 53.0) == "placed, waiting for the first token"


@pytest.mark.parametrize("cause", [RejectCause.STARTING, RejectCause.LANE_FULL])
def test_a_wait_that_nobody_knows_is_no_number(cause: RejectCause) -> None:
    ledger = Ledger("r", "r-1", "/v1/completions", arrived_s=0.0, arrived_unix_s=0.0)
    rejected = Admission(AdmissionKind.REJECT, "all", cause, (3.0, math.inf), 2.0, 1.0)
    note_admission(ledger, Request("r", 5, 5, 0.0, 9.0, 9.0), rejected)
    json.dumps(ledger.record(), allow_nan=False)
    assert "inf" not in str(turned_away("demo", "t", rejected))
    ledger.submitted(0.0)
    assert wait_comment(ledger, 1.0) == "waiting, expected wait 2 s p50, unknown p95"
