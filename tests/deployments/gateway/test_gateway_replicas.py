"""Replicas that fail, refuse, die or answer nonsense: what the client gets, and what is left of it."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import (
    DONE,
    FakeEngine,
    dying,
    event,
    good,
    pieces,
    raw,
    refusing,
    waiting,
    whole,
)
from tests.deployments.gateway.rig import ASK, CHAT, STREAM, MakeRig, Rig, openai_error, until
from tests.deployments.gateway.test_gateway_timeouts import last_events

NO_ANSWERS = [
    raw(b""),
    raw(b"this is not HTTP\r\n\r\n"),
    raw(b"HTTP/1.1 abc Nonsense\r\n\r\n"),
    raw(b"HTTP/1.1 999 Beyond\r\ncontent-length: 2\r\n\r\n{}"),
    raw(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"),
    raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"),
    raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
    raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    dying(),
]


@pytest.mark.whole
@pytest.mark.parametrize("ask", [ASK, STREAM], ids=["whole", "stream"])
async def test_an_answer_that_is_none(rig: Rig, ask: dict[str, Any], subtests: pytest.Subtests) -> None:
    for number, behave in enumerate(NO_ANSWERS):
        with subtests.test(number=number):
            rig.engines[0].behave = behave
            status, error = await rig.error(ask)
            assert (status, error["code"]) == (502, "replica_lost")
            assert (await rig.last(number + 1)).outcome is RequestOutcome.FAILED
    rig.engines[0].behave = good
    assert (await rig.ask(ask))[0] == 200


async def test_the_end_without_a_blank_line_is_passed_on(rig: Rig) -> None:
    rig.engines[0].behave = pieces(event("a"), b"data: [DONE]")
    assert (await rig.ask(STREAM))[1] == event("a") + b"data: [DONE]"


async def test_a_refused_request_goes_to_another_replica(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    first, second = rig.engines
    for code in ("draining", "unhealthy"):
        first.behave = second.behave = refusing(code, times=1)
        assert (await rig.ask(STREAM))[0] == 200
        await until(lambda: len(rig.dispatcher.replicas.ready) == 2)  # their feeds say that they are ready
        first.behave = second.behave = good
    ids = [seen.headers["x-request-id"] for engine in rig.engines for seen in engine.seen]
    assert len(set(ids)) == len(ids)
    assert rig.owner.snapshot().endings["refused"] >= 2


async def test_a_refused_request_waits_at_the_head(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    engine = FakeEngine(max_num_seqs=2)
    engine.behave = waiting(release := asyncio.Event())
    await rig.add(engine)
    asks = [asyncio.create_task(rig.ask({**ASK, "prompt": "held"}))]
    await until(lambda: len(engine.seen) == 1)
    engine.behave = refusing("draining", times=1)
    for number, name in enumerate(("first", "second", "third")):
        asks.append(asyncio.create_task(rig.ask({**ASK, "prompt": name})))
        await until(lambda desired=number + 2: rig.owner.snapshot().submitted == desired)  # type: ignore[misc]
    await asyncio.gather(*asks[1:])
    release.set()
    await asks[0]
    assert [json.loads(seen.body)["prompt"] for seen in engine.seen] == ["held", "first", "first", "second", "third"]


async def test_nothing_else_counts_as_a_refusal(rig: Rig) -> None:
    code = b'{"error": {"code": ["draining"]}}'
    for payload in (
        b'{"error": {"message": "draining", "code": 503}}',
        b"draining",
        b'{"error": "draining"}',
        b"[]",
        code,
    ):
        rig.engines[0].behave = whole(payload, status=503)
        status, error = await rig.error()
        assert (status, error["code"], error["type"]) == (503, "engine_error", "server_error")
    assert rig.owner.snapshot().endings["refused"] == 0
    assert rig.owner.snapshot().endings["failed"] == 5


async def test_an_error_of_the_engine_comes_in_openais_form(rig: Rig) -> None:
    payload = b'{"error":{"message":"no","type":"BadRequestError","param":"body.temperature","code":400}}'
    for status, code in ((400, "invalid_value"), (422, "invalid_value"), (500, "engine_error")):
        rig.engines[0].behave = whole(payload, status=status)
        for ask in (ASK, STREAM):
            reported, answer, headers = await rig.answered(ask)
            assert reported == status
            assert headers["x-request-id"]
            error = openai_error(answer)
            assert (error["message"], error["code"]) == ("no", code)
            assert error["param"] == ("temperature" if status < 500 else None)
    assert (await rig.last(6)).outcome is RequestOutcome.FAILED
    assert (rig.closed[0].outcome, rig.closed[0].error) == (RequestOutcome.REFUSED, "invalid_value")
    rig.engines[0].behave = whole(payload, status=400)
    status, error = await rig.error({"model": "demo", "prompt": 5}, path="/tokenize")
    assert (status, error["param"]) == (400, "temperature")


async def test_an_error_in_the_engines_stream(rig: Rig) -> None:
    """vLLM's event when its core has died: the client gets it in the one form, and the books know that the request
    failed."""
    reported = (
        b'data: {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": null, "code": '
        b"500}}\n\n"
    )
    rig.engines[0].behave = pieces(event("a") + reported[:20], 0.02, reported[20:] + DONE)
    before, error = last_events((await rig.ask(STREAM))[1])
    assert before == event("a")
    assert (error["code"], error["message"]) == ("engine_error", "EngineCore died")
    ledger = await rig.last()
    assert (ledger.outcome, ledger.error) == (RequestOutcome.FAILED, "engine_error")
    assert rig.owner.snapshot().endings["failed"] == 1


async def test_a_text_that_speaks_of_errors_is_none(rig: Rig) -> None:
    stream = event('data: {"error": "x"}') + event('{"error":') + DONE
    rig.engines[0].behave = pieces(stream)
    assert (await rig.ask(STREAM))[1] == stream
    assert (await rig.last()).outcome is RequestOutcome.OK


async def test_a_redirect_is_not_followed(rig: Rig) -> None:
    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=307, headers={"location": rig.url + "/health"})

    rig.engines[0].behave = behave
    assert (await rig.ask(allow_redirects=False))[0] == 307


async def test_a_huge_answer(rig: Rig) -> None:
    payload = b'{"x": "' + b"y" * 20_000_000 + b'"}'
    rig.engines[0].behave = whole(payload)
    assert await rig.ask() == (200, payload)


async def test_a_huge_question(make_rig: MakeRig) -> None:
    """Of more than the mebibyte above which aiohttp warns."""
    rig = await make_rig(limits={"max_body_bytes": 64 << 20})
    body = json.dumps({**ASK, "prompt": "x " * 5_000_000}).encode()
    assert (await rig.ask(body))[0] == 200
    assert rig.engines[0].seen[0].body == body


async def test_tokenizer_requests_find_a_replica_that_answers(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    tokens = b'{"count": 3, "tokens": [1, 2, 3]}'
    rig.engines[0].behave = refusing("draining")
    rig.engines[1].behave = whole(tokens)
    for _ in range(4):
        assert await rig.ask({"model": "demo", "prompt": "x"}, path="/tokenize") == (200, tokens)
    await rig.engines[0].kill()
    for _ in range(4):
        assert await rig.ask({"prompt": "x"}, path="/tokenize") == (200, tokens)
    rig.engines[1].behave = dying()
    assert (await rig.error({"prompt": "x"}, path="/tokenize"))[0] == 502
    await rig.engines[1].kill()
    await until(lambda: not rig.dispatcher.replicas.ready)
    status, error = await rig.error({"model": "demo", "tokens": [1]}, path="/detokenize")
    assert (status, error["code"]) == (503, "no_replica")


async def test_what_the_engine_sees(rig: Rig) -> None:
    """The cluster's secret and our own id; nothing of the client's credentials, and its body to the byte."""
    body = json.dumps(CHAT).encode() + b" \n"
    headers = {
        "authorization": "Bearer the-clients-own",
        "x-request-id": "theirs",
        "cookie": "a=b",
        "user-agent": "them",
        "content-type": "text/plain",
    }
    assert (await rig.ask(body, path="/v1/chat/completions", headers=headers))[0] == 200
    seen = rig.engines[0].seen[0]
    assert seen.body == body
    sent = seen.headers
    assert sent["authorization"] == "Bearer the-secret"
    assert sent["content-type"] == "application/json"
    assert sent["x-request-id"] not in ("theirs", "")
    assert not set(sent) & {"cookie", "user-agent"}


@pytest.mark.whole
async def test_statistics_that_never_come(rig: Rig) -> None:
    rig.engines[0].tells = False
    await rig.ask(STREAM)
    ledger = await rig.last()
    assert ledger.finished is None
    assert "engine" in ledger.stages()
