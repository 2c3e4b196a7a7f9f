"""Anthropic's API, through the whole gateway: its clients' headers, leases and salts as for others; errors, streams and
waits in its own form."""

import json
import time
from typing import Any

import pytest

from deployments.gateway.entrance import digest_of
from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.inquiry import read_inquiry
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import FakeEngine, dying, pieces, refusing, whole
from tests.deployments.gateway.rig import MakeRig, Rig, until

MESSAGE: dict[str, Any] = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": "one two three"}]}
STREAM = {**MESSAGE, "stream": True}
START = b'event: message_start\ndata: {"type":"message_start"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
FAILED = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"boom"}}\n\n'
DEAD = (
    b'event: error\ndata: {"error":{"message":"the engine '
    b'died","type":"server_error","param":null,"code":"engine_died"}}\n\n'
)
"""What a replica says in a stream of an engine that has died."""
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
KEY = "the-tenant's-key"
TENANTS = [{"name": "search", "keys": [digest_of(KEY)]}]


def anthropic_error(payload: bytes) -> dict[str, str]:
    """The error object in a body, whose form is checked."""
    content = json.loads(payload)
    assert set(content) == {"type", "error"}
    assert content["type"] == "error"
    assert set(content["error"]) == {"type", "message"}
    assert content["error"]["message"]
    return dict(content["error"])


def ended_by(answer: bytes) -> dict[str, str]:
    last = answer.split(b"\n\n")[-2]
    assert last.startswith(b"event: error\ndata: ")
    assert answer.endswith(b"\n\n")
    return anthropic_error(last.removeprefix(b"event: error\ndata: "))


async def test_answers_pass_untouched_under_a_lease(rig: Rig) -> None:
    rig.engines[0].behave = whole(b'{"type": "message"}')
    async with rig.post(MESSAGES, MESSAGE, headers={"x-request-id": "mine"}) as response:
        assert (response.status, await response.read()) == (200, b'{"type": "message"}')
        assert (response.headers["request-id"], response.headers["x-request-id"]) == ("mine", "mine")
    rig.engines[0].behave = pieces(START, STOP)
    assert await rig.ask(STREAM, MESSAGES + "?beta=true") == (200, START + STOP)
    ledger = await rig.last(2)
    assert (ledger.path, ledger.outcome, ledger.max_tokens, ledger.prompt_chars) == (
        MESSAGES,
        RequestOutcome.OK,
        8,
        len("userone two three"),
    )
    assert rig.owner.snapshot().placed == 2
    assert [(seen.path, json.loads(seen.body)) for seen in rig.engines[0].seen] == [
        (MESSAGES, MESSAGE),
        (MESSAGES, STREAM),
    ]


@pytest.mark.parametrize(
    ("body", "status", "kind", "named"),
    [
        ({**MESSAGE, "model": "other"}, 404, "not_found_error", "model"),
        ({**MESSAGE, "max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "demo", "messages": MESSAGE["messages"]}, 400, "invalid_request_error", "max_tokens"),
        ({**MESSAGE, "messages": []}, 400, "invalid_request_error", "messages"),
        ({key: value for key, value in MESSAGE.items() if key != "model"}, 400, "invalid_request_error", "model"),
        (b"nonsense", 400, "invalid_request_error", "JSON"),
        (b"[" * 50_000, 413, "request_too_large", "at most 128"),
    ],
)
async def test_bad_input(rig: Rig, body: Any, status: int, kind: str, named: str) -> None:
    got, payload = await rig.ask(body, MESSAGES)
    error = anthropic_error(payload)
    assert (got, error["type"]) == (status, kind)
    assert named in error["message"]
    assert not rig.engines[0].seen


async def test_the_key_may_come_as_anthropics_clients_send_it(make_rig: MakeRig) -> None:
    rig = await make_rig(tenants=TENANTS)
    for headers in (
        {},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
        {"authorization": "Bearer wrong", "x-api-key": KEY},
        {"authorization": KEY},
    ):
        for path in (MESSAGES, COUNT):
            status, payload = await rig.ask(MESSAGE, path, headers=headers)
            assert (status, anthropic_error(payload)["type"]) == (401, "authentication_error")
    assert "Incorrect API key provided" in (await rig.error(MESSAGE, headers={"x-api-key": "wrong"}))[1]["message"], (
        "litellm knows it by these words"
    )
    assert not rig.engines[0].seen
    for headers in (
        {"x-api-key": KEY},
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"Bearer {KEY}", "x-api-key": "wrong"},
    ):
        assert (await rig.ask(MESSAGE, MESSAGES, headers=headers))[0] == 200
    assert {len(json.loads(seen.body)["cache_salt"]) for seen in rig.engines[0].seen} == {64}, "salted for its tenant"
    assert (await rig.ask(MESSAGE, COUNT, headers={"x-api-key": KEY}))[0] == 200
    assert json.loads(rig.engines[0].seen[-1].body) == MESSAGE
    assert (await rig.ask(b"", "/v1/models", headers={"x-api-key": KEY}))[0] == 405
    client = await rig.connect()
    await client.request(MESSAGES, MESSAGE, **{"x-api-key": KEY, "X-Api-Key": "wrong"})
    assert (await client.answer())[0] == 400, "two keys: whose request is it?"


async def test_counting_tokens_needs_no_lease(rig: Rig) -> None:
    rig.engines[0].behave = whole(b'{"input_tokens": 5}')
    asked = {"model": "demo", "messages": MESSAGE["messages"]}
    assert await rig.ask(asked, COUNT) == (200, b'{"input_tokens": 5}')
    assert rig.engines[0].seen[0].path == COUNT
    assert rig.owner.snapshot().submitted == 0
    rig.engines[0].behave = whole(b'{"type":"error","error":{"type":"BadRequestError","message":"no such block"}}', 400)
    status, payload = await rig.ask(asked, COUNT)
    assert (status, anthropic_error(payload)["type"]) == (400, "invalid_request_error")
    assert "no such block" in anthropic_error(payload)["message"]


async def test_what_is_surely_longer_than_the_context_is_not_counted(rig: Rig) -> None:
    for asked in ({"messages": [{"role": "user", "content": "x" * 13_000}]}, {"tools": [{"x": "y" * 13_000}]}):
        status, payload = await rig.ask({**MESSAGE, **asked}, COUNT)
        assert (status, anthropic_error(payload)["type"]) == (400, "invalid_request_error")
        assert "context_length_exceeded: messages: 130" in anthropic_error(payload)["message"]
    assert not rig.engines[0].seen


async def test_overload_is_told_by_anthropics_status(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, timeouts={"queue_wait_s": 0.3})
    async with rig.post(MESSAGES, MESSAGE) as response:
        assert (response.status, response.headers["retry-after"]) == (529, "1")
        assert anthropic_error(await response.read())["type"] == "overloaded_error"
    assert (await rig.last()).status == 529


async def test_a_wait_is_a_ping(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, heartbeat_s=0.05)
    async with rig.post(MESSAGES, STREAM) as response:
        assert await response.content.readuntil(b"\n\n") == b'event: ping\ndata: {"type": "ping"}\n\n'
        assert response.headers["request-id"]
        engine = FakeEngine()
        engine.behave = refusing("draining")
        await rig.add(engine)
        await until(lambda: engine.seen)
        engine.behave = pieces(START, STOP)
        other = FakeEngine()
        other.behave = pieces(START, STOP)
        await rig.add(other)
        answer = await response.read()
        assert answer.replace(b'event: ping\ndata: {"type": "ping"}\n\n', b"") == START + STOP


async def test_a_wait_that_ends_badly_is_an_error_event(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, timeouts={"queue_wait_s": 0.5}, heartbeat_s=0.05)
    status, answer = await rig.ask(STREAM, MESSAGES)
    assert (status, ended_by(answer)["type"]) == (200, "overloaded_error")


@pytest.mark.parametrize(
    ("behave", "kind", "code"),
    [
        (pieces(START, FAILED), "api_error", "engine_error"),
        (pieces(START, DEAD), "api_error", "replica_lost"),
        (dying(START), "api_error", "replica_lost"),
    ],
    ids=["failed", "engine died", "replica died"],
)
async def test_a_stream_that_breaks_ends_with_an_error_event(rig: Rig, behave: Any, kind: str, code: str) -> None:
    rig.engines[0].behave = behave
    status, answer = await rig.ask(STREAM, MESSAGES)
    assert (status, ended_by(answer)["type"]) == (200, kind)
    assert answer.startswith(START)
    assert answer.count(b"event: error") == 1
    assert b"data: [DONE]" not in answer
    ledger = await rig.last()
    assert (ledger.outcome, ledger.error) == (RequestOutcome.FAILED, code)


async def test_what_an_engine_says_of_its_own_parts_is_not_passed_on(rig: Rig) -> None:
    """vLLM makes its stream of a chat's; an error event in that one it cannot read, and says so with all that it
    read."""
    said = (
        "1 validation error for ChatCompletionStreamResponse\nid\n  Field required [type=missing, "
        "input_value={'error': {...}}]"
    )
    reported = json.dumps({"type": "error", "error": {"type": "internal_error", "message": said}}).encode()
    rig.engines[0].behave = pieces(START, b"event: error\ndata: " + reported + b"\n\n")
    error = ended_by((await rig.ask(STREAM, MESSAGES))[1])
    assert "validation" not in error["message"]


def test_what_is_read_of_messages() -> None:
    blocks = [
        {"type": "text", "text": "abc"},
        {"type": "image", "source": {"type": "base64", "data": "x" * 1_000}},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "defg"}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "hi"},
    ]
    call = [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}]
    messages = [{"role": "assistant", "content": call}, {"role": "user", "content": blocks}]
    body = {**STREAM, "messages": messages, "system": [{"type": "text", "text": "be"}], "cache_salt": "mine"}
    inquiry = read_inquiry(BodyKind.MESSAGES, json.dumps(body).encode())
    said = "be" + "assistant" + "hm" + "t1" + "look" + '{"a": 1}' + "user" + "abc" + "t1" + "defg" + "t2" + "hi"
    assert inquiry.prompt_chars == len(said)
    assert (inquiry.kind, inquiry.stream, inquiry.cache_salt) == (BodyKind.MESSAGES, True, "mine")
    assert (inquiry.max_tokens, inquiry.sequences) == (8, 1)
    text = read_inquiry(BodyKind.MESSAGES, json.dumps({**MESSAGE, "system": "x" * 300}).encode())
    other = read_inquiry(BodyKind.MESSAGES, json.dumps({**MESSAGE, "system": "y" * 300}).encode())
    assert text.prefix
    assert text.prefix != other.prefix


@pytest.mark.parametrize("values", ['{"type":"text"},', '{"content":[{}]},'])
def test_too_many_blocks_are_refused_in_time(values: str) -> None:
    body = '{"model":"demo","max_tokens":1,"messages":[{"role":"user","content":[' + (values * 9_000)[:-1] + "]}]}"
    began = time.thread_time()
    with pytest.raises(ApiError, match="allowed: at most 4096") as refused:
        read_inquiry(BodyKind.MESSAGES, body.encode())
    assert refused.value.error is ErrorCode.BODY_TOO_LARGE
    assert time.thread_time() - began < 5
