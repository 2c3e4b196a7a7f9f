"""What the ladder does to requests at the gateway: how far an operator has it go, what the engine and the client see,
and whom it spares."""

import json
from typing import Any

import pytest

from tests.deployments.gateway.fake_engine import DONE, FakeEngine
from tests.deployments.gateway.rig import ASK, CHAT, MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_orders import BY, post

CLASSES = [{"name": "interactive", "ttft_ms": 500}, {"name": "batch", "ttft_ms": 30_000}]
LADDER = [
    {"rung": "clamp", "classes": ["batch"], "max_tokens": 8},
    {"rung": "fallback", "classes": ["batch"]},
    {"rung": "shed", "classes": ["batch"]},
]
SETTINGS = {"max_model_len": 1_024}
MODELS = [
    {"name": "demo", "source": "/nowhere", "settings": SETTINGS, "fallback": [{"to": "small"}]},
    {"name": "small", "source": "/nowhere", "settings": SETTINGS},
]
BATCH = {"x-raylane-class": "batch"}
LONG = {**ASK, "max_tokens": 100}


async def with_ladder(make_rig: MakeRig, models: Any = MODELS, **spec: Any) -> Rig:
    rig = await make_rig(0, models=models, classes=CLASSES, ladder=LADDER, **spec)
    for one in models:
        await rig.add(FakeEngine(one["name"]))
    return rig


async def go(rig: Rig, mode: str, step: str = "") -> None:
    status, answer = await post(rig, "/raylane/ladder", {**BY, "model": "demo", "mode": mode, "step": step})
    assert status == 200, answer
    assert [one["ladder"] for one in answer["ladders"]] == ([] if mode == "auto" else [{"mode": mode, "step": step}])


async def degraded(rig: Rig, body: Any, path: str = "/v1/completions", **headers: str) -> tuple[int, str]:
    status, _, answered = await rig.answered(body, path, headers={**BATCH, **headers})
    return status, ", ".join(answered.getall("x-raylane-degraded", ()))


def sent(engine: FakeEngine) -> dict[str, Any]:
    return dict(json.loads(engine.seen[-1].body))


async def test_each_rung_says_what_it_does(make_rig: MakeRig) -> None:
    rig = await with_ladder(make_rig)
    big, small = rig.engines
    assert await degraded(rig, LONG) == (200, "")
    await go(rig, "at", "clamp:batch")
    assert await degraded(rig, LONG) == (200, "clamp; max_tokens=8; reason=ladder")
    assert sent(big)["max_tokens"] == 8
    assert await degraded(rig, {**ASK, "max_tokens": 8}) == (200, ""), "it asks for no more"
    assert await degraded(rig, LONG, **{"x-raylane-class": "interactive"}) == (200, "")
    await go(rig, "at", "fallback:batch")
    assert await degraded(rig, LONG) == (200, "fallback; model=demo; reason=ladder")
    assert sent(small)["max_tokens"] == 100, "the other model has a ladder of its own"
    assert await degraded(rig, LONG, **{"x-raylane-fallback": "never"}) == (200, "clamp; max_tokens=8; reason=ladder")
    await go(rig, "at", "shed:batch")
    assert await degraded(rig, LONG, **{"x-raylane-fallback": "never"}) == (503, "shed; reason=ladder")
    assert await degraded(rig, LONG) == (200, "fallback; model=demo; reason=ladder")
    shown = (await rig.page("/raylane/status"))["models"][0]["ladder"]
    assert (shown["at"], shown["order"]["step"]) == (3, "shed:batch")
    assert shown["touched"] == {"clamp:batch": 2, "fallback:batch": 2, "shed:batch": 1}
    await rig.settled()
    counts = await rig.samples("raylane_degraded_total")
    label = '{{class="batch",model="demo",reason="ladder",rung="{}"}}'
    assert counts == {label.format(rung): count for rung, count in (("clamp", 2), ("fallback", 2), ("shed", 1))}
    assert await rig.samples("raylane_ladder_steps") == {'{model="demo"}': 3, '{model="small"}': 0}
    await go(rig, "at_most", "")
    assert await degraded(rig, LONG) == (200, "")
    await go(rig, "auto")


async def test_a_stream_that_waits_tells_with_its_first_comment(make_rig: MakeRig) -> None:
    rig = await make_rig(0, models=MODELS, classes=CLASSES, ladder=LADDER, heartbeat_s=0.05)
    await until(lambda: all(one.owner is not None for one in rig.service.dispatchers.values()))
    await go(rig, "at", "clamp:batch")
    headers = {**BATCH, "x-raylane-fallback": "never"}
    async with rig.post("/v1/completions", {**LONG, "stream": True}, headers=headers) as response:
        assert response.headers["x-raylane-degraded"] == "clamp; max_tokens=8; reason=ladder"
        engine = await rig.add(FakeEngine("demo"))
        assert (await response.read()).endswith(DONE)
    assert sent(engine)["max_tokens"] == 8


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"min_tokens": 20},
    ],
)
async def test_an_answer_that_must_be_whole_is_not_clamped(make_rig: MakeRig, more: dict[str, Any]) -> None:
    rig = await with_ladder(make_rig)
    await go(rig, "at", "clamp:batch")
    body = {**CHAT, "max_tokens": 100}
    assert await degraded(rig, {**body, **more}, "/v1/chat/completions") == (200, "")
    assert sent(rig.engines[0])["max_tokens"] == 100
    assert (await degraded(rig, body, "/v1/chat/completions"))[1].startswith("clamp")


async def test_a_reasoning_model_keeps_room_for_its_answer(make_rig: MakeRig) -> None:
    models = [{**MODELS[0], "fallback": [], "settings": {**SETTINGS, "reasoning_parser": "qwen3"}}]
    rig = await with_ladder(make_rig, models)
    await go(rig, "at", "clamp:batch")
    (engine,) = rig.engines
    for field in ("max_tokens", "max_completion_tokens"):
        body = {key: value for key, value in CHAT.items() if key != "max_tokens"}
        await degraded(rig, {**body, field: 100}, "/v1/chat/completions")
        assert (sent(engine)[field], sent(engine)["thinking_token_budget"]) == (8, 4)
    await degraded(rig, {**CHAT, "max_tokens": 100, "thinking_token_budget": 2}, "/v1/chat/completions")
    assert sent(engine)["thinking_token_budget"] == 2
    response = {"model": "demo", "input": "hi", "max_output_tokens": 100}
    assert (await degraded(rig, response, "/v1/responses"))[1] == "", "its API has no bound on thoughts"


async def test_tenants_are_spared(make_rig: MakeRig) -> None:
    key = "sha256:" + "0" * 64
    rig = await with_ladder(make_rig)
    spec = rig.service.spec.model_dump(mode="json")
    spec["tenants"] = [{"name": "spared", "keys": [key], "spare": ["clamp", "fallback", "shed"]}]
    await go(rig, "at", "shed:batch")
    tenant = type(rig.service.spec).model_validate(spec).tenants[0]
    rig.service.keys.tenant_of = lambda *given: tenant  # type: ignore[method-assign]
    assert await degraded(rig, LONG) == (200, "")
    assert sent(rig.engines[0])["max_tokens"] == 100


async def test_an_order_by_an_alias_is_answered_with_the_models_name(make_rig: MakeRig) -> None:
    rig = await with_ladder(make_rig, [{**MODELS[0], "aliases": ["chat"]}, *MODELS[1:]])
    status, answer = await post(rig, "/raylane/ladder", {**BY, "model": "chat", "mode": "at", "step": "clamp:batch"})
    assert (status, answer["model"]) == (200, "demo")


async def test_what_is_no_step_is_refused(make_rig: MakeRig) -> None:
    rig = await with_ladder(make_rig)
    status, answer = await post(rig, "/raylane/ladder", {**BY, "model": "demo", "mode": "at", "step": "shed:x"})
    allowed = "clamp:batch, fallback:batch, shed:batch"
    assert (status, answer["error"]["message"]) == (400, f"step = 'shed:x': allowed: {allowed}")
    status, answer = await post(
        rig, "/raylane/ladder", {**BY, "model": "small", "mode": "at", "step": "fallback:batch"}
    )
    assert status == 400, "it has no fallback"
