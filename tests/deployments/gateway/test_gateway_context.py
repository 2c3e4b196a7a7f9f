"""Conversations that are longer than the model's context (1,024 tokens): rejected, or without their oldest turns."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from deployments.gateway.entrance import digest_of
from deployments.telemetry.verdicts import RequestVerdict
from tests.deployments.gateway.fake_engine import Behaviour, good, whole
from tests.deployments.gateway.rig import MakeRig, Rig, openai_error
from tests.deployments.gateway.test_gateway_simulated import simulated

CLASSES = [{"name": "strict", "ttft_ms": 500}, {"name": "lax", "ttft_ms": 500, "context": "drop_turns"}]
LAX = {"x-raylane-class": "lax"}
TURNS = [{"role": role, "content": f"{n} " + "word " * 40} for n in range(20) for role in ("user", "assistant")]
LONG = {"model": "demo", "messages": [*TURNS, {"role": "user", "content": "And?"}], "max_tokens": 3, "seed": 7}
CHATS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TOO_LONG = (
    b'{"error": {"message": "Reduce the prompt.", "type": "BadRequestError", "param": "input_tokens", "code": 400}}'
)


def counting(counter: str = "/tokenize", field: str = "count") -> Behaviour:
    """An engine whose tokens have five characters."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.path != counter:
            return await good(request, body)
        return web.json_response({field: tokens_of(body)})

    return behave


def tokens_of(body: dict[str, Any]) -> int:
    return sum(len(one["content"]) for one in body.get("messages", body.get("input"))) // 5


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    rig = await make_rig(classes=CLASSES)
    rig.engines[0].behave = counting()
    return rig


async def test_without_the_policy_nothing_is_counted_or_changed(rig: Rig) -> None:
    sent = json.dumps(LONG, indent=1).encode()
    async with rig.post(CHATS, sent) as answer:
        assert (answer.status, answer.headers.get("x-raylane-dropped")) == (200, None)
    (seen,) = rig.engines[0].seen
    assert (seen.path, seen.body) == (CHATS, sent)


async def test_a_rejection_says_by_how_many_tokens(rig: Rig) -> None:
    rig.engines[0].behave = whole(TOO_LONG, status=400)
    for stream in (False, True):
        status, error = await rig.error({**LONG, "stream": stream}, CHATS)
        chars = sum(len(one["content"] + one["role"]) for one in LONG["messages"])
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["message"] == f"Reduce the prompt: about {round(chars / 3) - 1_024} tokens too many"
    status, error = await rig.error({"model": "demo", "prompt": [1] * 1_030})
    assert error["message"].endswith("the model's context: 6 tokens too many")
    rig.engines[0].behave = good


async def test_the_oldest_turns_go(rig: Rig) -> None:
    async with rig.post(CHATS, {**LONG, "stream": True}, headers=LAX) as answer:
        assert answer.status == 200
        dropped = dict(one.split("=") for one in answer.headers["x-raylane-dropped"].split("; "))
        await answer.read()
    *counted, seen = rig.engines[0].seen
    assert {one.path for one in counted} == {"/tokenize"}
    assert 1 <= len(counted) <= 4
    body, turns = json.loads(seen.body), int(dropped["turns"])
    assert body == {**LONG, "stream": True, "messages": [*TURNS[:2], *TURNS[2 + 2 * turns :], LONG["messages"][-1]]}
    assert 0.5 * 1_024 < tokens_of(body) < 1_024
    assert int(dropped["tokens"]) == pytest.approx(tokens_of(LONG) - tokens_of(body), rel=0.1)
    ledger = await rig.last()
    first = ledger.decisions[0].record()
    assert (first["verdict"], first["reason"]) == ("dropped_turns", "context")
    assert {name: str(first[name]) for name in dropped} == dropped
    assert ledger.expected_prompt_tokens <= 1_024


@pytest.mark.whole
async def test_a_replica_counts(make_rig: MakeRig, tmp_path: Path) -> None:
    """A simulated one, with a replica's own entrance."""
    async with simulated(make_rig, tmp_path, 2.0, classes=CLASSES) as rig:
        body = {**LONG, "model": "m-simulated", "messages": [*TURNS * 3, LONG["messages"][-1]]}
        status, error = await rig.error(body, CHATS)
        assert (status, error["message"].rsplit(":", 1)[1].split()[0]) == (400, "about")
        async with rig.post(CHATS, body, headers=LAX) as answer:
            assert answer.status == 200
            assert "turns=" in answer.headers["x-raylane-dropped"]
            assert 0.6 * 4_096 < (await answer.json())["usage"]["prompt_tokens"] < 4_096


async def test_what_fits_goes_as_it_came(rig: Rig) -> None:
    for turns, counted in ((4, set()), (18, {"/tokenize"})):
        rig.engines[0].seen.clear()
        sent = json.dumps({**LONG, "messages": [*TURNS[:turns], LONG["messages"][-1]]}, indent=1).encode()
        async with rig.post(CHATS, sent, headers=LAX) as answer:
            assert (answer.status, answer.headers.get("x-raylane-dropped")) == (200, None)
        assert {one.path for one in rig.engines[0].seen[:-1]} == counted
        assert rig.engines[0].seen[-1].body == sent


async def test_where_too_much_must_stay_the_engine_judges_it_whole(rig: Rig) -> None:
    for last in ("word " * 1_500, "word " * 50_000):
        rig.engines[0].seen.clear()
        sent = json.dumps({**LONG, "messages": [*TURNS, {"role": "user", "content": last}]}).encode()
        assert (await rig.ask(sent, CHATS, headers=LAX))[0] == 200
        assert rig.engines[0].seen[-1].body == sent
    assert len(rig.engines[0].seen) == 1, "what is far too long is not counted"


async def test_where_no_replica_can_count_the_estimate_decides(rig: Rig) -> None:
    rig.engines[0].behave = lambda request, body: (
        whole(b"{}", 500)(request, body) if request.path == "/tokenize" else good(request, body)
    )
    async with rig.post(CHATS, LONG, headers=LAX) as answer:
        assert answer.status == 200
        assert "turns=" in answer.headers["x-raylane-dropped"]
    assert 0 < tokens_of(json.loads(rig.engines[0].seen[-1].body)) < 1_024


async def test_no_replica_counts_what_this_cell_may_not_serve(rig: Rig) -> None:
    spec = rig.service.spec
    lax = spec.classes[1].model_copy(update={"residency": ("there",)})
    rig.service.configure(spec.model_copy(update={"classes": (spec.classes[0], lax)}))
    await rig.ask(LONG, CHATS, headers=LAX)
    assert "/tokenize" not in {one.path for one in rig.engines[0].seen}
    assert (await rig.last()).decisions[0].verdict is RequestVerdict.DROPPED_TURNS


async def test_a_responses_client_decides_by_truncation(rig: Rig) -> None:
    response = {"model": "demo", "input": LONG["messages"]}
    for truncation, headers, dropped in (
        ("auto", {}, True),
        ("disabled", LAX, False),
        (None, LAX, True),
        (None, {}, False),
    ):
        body = response if truncation is None else {**response, "truncation": truncation}
        async with rig.post(RESPONSES, body, headers=headers) as answer:
            assert answer.status == 200
            assert ("x-raylane-dropped" in answer.headers) == dropped
        assert (len(json.loads(rig.engines[0].seen[-1].body)["input"]) < len(LONG["messages"])) == dropped
    assert json.loads(rig.engines[0].seen[0].body)["messages"], "it is counted as a chat"


async def test_anthropics_messages(rig: Rig) -> None:
    rig.engines[0].behave = counting("/v1/messages/count_tokens", "input_tokens")
    async with rig.post(MESSAGES, LONG, headers=LAX) as answer:
        assert "turns=" in answer.headers["x-raylane-dropped"]
    assert tokens_of(json.loads(rig.engines[0].seen[-1].body)) < 1_024
    assert rig.engines[0].seen[0].path == "/v1/messages/count_tokens"


async def test_tenants_stay_apart(make_rig: MakeRig) -> None:
    rig = await make_rig(classes=CLASSES, tenants=[{"name": "a", "keys": [digest_of("key")]}])
    rig.engines[0].behave = counting()
    assert (await rig.ask(LONG, CHATS, headers={**LAX, "authorization": "Bearer key"}))[0] == 200
    assert len(json.loads(rig.engines[0].seen[-1].body)["cache_salt"]) == 64


async def test_a_body_that_is_no_conversation_is_left_alone(rig: Rig) -> None:
    for path, body in (
        ("/v1/completions", {"model": "demo", "prompt": "word " * 2_000}),
        (RESPONSES, {"model": "demo", "input": "word " * 2_000, "truncation": "auto"}),
        (CHATS, {"model": "demo", "messages": [{"role": "user", "content": "word " * 2_000, "tool_calls": 5}]}),
    ):
        sent = json.dumps(body).encode()
        assert (await rig.ask(sent, path, headers=LAX))[0] == 200
        assert rig.engines[0].seen[-1].body == sent


async def test_errors_of_the_engine_keep_the_header(rig: Rig) -> None:
    rig.engines[0].behave = lambda request, body: (
        counting()(request, body) if request.path == "/tokenize" else whole(TOO_LONG, 400)(request, body)
    )
    async with rig.post(CHATS, LONG, headers=LAX) as answer:
        assert answer.status == 400
        assert "x-raylane-dropped" in answer.headers
        assert openai_error(await answer.read())["code"] == "context_length_exceeded"
    rig.engines[0].behave = good
