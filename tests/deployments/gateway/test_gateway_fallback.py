"""Other names of a model, and the model that answers in its place."""

import asyncio
import dataclasses
import json
from functools import partial
from typing import Any

import pytest

from deployments.gateway.entrance import digest_of
from tests.deployments.gateway.fake_engine import DONE, FakeEngine, dying, event, good, waiting
from tests.deployments.gateway.rig import ASK, MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_deaths import killed_by

SETTINGS = {"max_model_len": 1_024}
BIG = {"name": "big", "aliases": ["demo", "best"], "source": "/nowhere", "settings": SETTINGS}
SMALL = {"name": "small", "source": "/nowhere", "settings": {"max_model_len": 512}}
CLASSES = [{"name": "hasty", "ttft_ms": 500, "patience_s": 10}, {"name": "batch", "ttft_ms": 500, "patience_s": 20}]
MODELS = [{**BIG, "fallback": [{"to": "small", "classes": ["hasty"]}]}, SMALL]


async def two_models(make_rig: MakeRig, engines: int = 1) -> tuple[Rig, FakeEngine, FakeEngine]:
    """A gateway before a large model, with that many engines, and a small one."""
    rig = await make_rig(0, models=MODELS, classes=CLASSES)
    small = await rig.add(FakeEngine("small"))
    big = FakeEngine("big")
    if engines:
        await rig.add(big)
    await until(lambda: all(one.owner is not None for one in rig.service.dispatchers.values()))
    return rig, big, small


def asked(engine: FakeEngine) -> list[Any]:
    return [json.loads(one.body)["model"] for one in engine.seen]


@pytest.mark.parametrize("name", ["big", "demo", "best"])
async def test_an_alias_leads_to_its_model(make_rig: MakeRig, name: str) -> None:
    rig, big, _ = await two_models(make_rig)
    assert (await rig.ask({**ASK, "model": name}))[0] == 200
    assert asked(big) == ["big"], "the engine knows the model's own name alone"
    assert big.seen[0].body.startswith(json.dumps({**ASK, "model": name}).encode()[:-1])
    assert (await rig.last()).model == "big"
    status, error = await rig.error({**ASK, "model": "other"})
    assert (status, error["message"]) == (404, "model = 'other': not served here; allowed: big, demo, best, small")


async def test_another_model_answers_where_there_is_no_replica(make_rig: MakeRig) -> None:
    rig, _, small = await two_models(make_rig, engines=0)
    async with rig.post("/v1/completions", ASK) as response:
        assert response.status == 200
        assert response.headers["x-raylane-degraded"] == "fallback; model=big; reason=patience"
    assert asked(small) == ["small"]
    ledger = await rig.last()
    assert (ledger.model, ledger.traffic_class) == ("small", "hasty")
    assert [one.verdict for one in ledger.decisions] == ["rejected", "fell_back", "admitted", "placed"]
    flows = {name: one.snapshot() for name, one in rig.service.dispatchers.items()}
    came = {name: sum(flow.arrived for flow in of.flows) for name, of in flows.items() if of is not None}
    assert came == {"big": 1, "small": 0}, "demand of the model that was asked for"


@pytest.mark.parametrize(
    ("changes", "headers"),
    [
        ({}, {"x-raylane-fallback": "never"}),
        ({}, {"x-raylane-class": "batch"}),
        ({"prompt": [1, 2, 3]}, {}),
        ({"logprobs": 1}, {}),
        ({"logit_bias": {"7": 1}}, {}),
        ({"max_tokens": 600}, {}),
    ],
)
async def test_what_stays_with_its_model(make_rig: MakeRig, changes: dict[str, Any], headers: dict[str, str]) -> None:
    rig, big, small = await two_models(make_rig, engines=0)
    waits = asyncio.create_task(rig.ask({**ASK, **changes}, headers=headers))
    own = rig.service.dispatchers["big"].own
    assert own is not None
    await until(lambda: own.scheduler.lanes.jobs)
    await rig.add(big)
    assert (await waits)[0] == 200
    assert (len(big.seen), len(small.seen)) == (1, 0)
    assert not (await rig.last()).degraded


async def test_what_waits_falls_back_as_the_last_replica_dies(make_rig: MakeRig) -> None:
    rig, big, small = await two_models(make_rig)
    never = asyncio.Event()
    big.behave = waiting(never)
    body, batch = {**ASK, "stream": True}, {"x-raylane-class": "batch"}
    running = [asyncio.create_task(rig.ask({**body, "prompt": f"{n}"}, headers=batch)) for n in range(4)]
    await until(lambda: len(big.running) == 4)
    waits = [asyncio.create_task(rig.ask(body)) for _ in range(6)]
    own = rig.service.dispatchers["big"].own
    assert own is not None
    await until(lambda: len(own.scheduler.lanes.jobs) == 6)
    await big.kill()
    answers = await asyncio.wait_for(asyncio.gather(*waits), 2.0)
    assert {status for status, _ in answers} == {200}
    assert all(body.endswith(DONE) for _, body in answers)
    assert asked(small) == ["small"] * 6
    assert not any(task.done() for task in running), "they may have killed it, and wait for their own model"
    for task in running:
        task.cancel()


@pytest.mark.parametrize("is_deadly", [False, True])
async def test_what_the_other_model_rejects_waits_for_its_own(make_rig: MakeRig, is_deadly: bool) -> None:
    """It is at its tenant's limit there, or its body has killed replicas, and its client was told."""
    tenants = [{"name": "t", "keys": [digest_of("k")], "requests_per_minute": 600 if is_deadly else 1}]
    rig = await make_rig(0, models=MODELS, classes=CLASSES, tenants=tenants)
    for _ in range(3):
        engine = await rig.add(FakeEngine("small"))
        engine.behave = killed_by("deadly", engine)
    ask = partial(rig.ask, {**ASK, "prompt": "deadly" if is_deadly else "alive"}, headers={"x-api-key": "k"})
    assert (await ask())[0] == (422 if is_deadly else 200)
    waits = asyncio.create_task(ask())
    own = rig.service.dispatchers["big"].own
    assert own is not None
    await until(lambda: waits.done() or own.scheduler.lanes.jobs)
    await rig.add(FakeEngine("big"))
    assert (await waits)[0] == 200
    assert ((await rig.last(2)).model, sum(len(one.seen) for one in rig.engines)) == ("big", 3 if is_deadly else 2)


async def test_a_stream_that_has_begun_stays_where_it_is(make_rig: MakeRig) -> None:
    rig, big, small = await two_models(make_rig)
    big.behave = dying(event("a"), 0.05)
    status, body = await rig.ask({**ASK, "stream": True})
    assert (status, b"replica_lost" in body) == (200, True)
    assert not small.seen


async def test_never_from_a_fallback_and_back_where_that_has_no_room(make_rig: MakeRig) -> None:
    chain = [
        {**BIG, "fallback": [{"to": "small"}]},
        {**SMALL, "fallback": [{"to": "third"}]},
        {**SMALL, "name": "third"},
    ]
    rig = await make_rig(0, models=chain, classes=CLASSES)
    third = await rig.add(FakeEngine("third"))
    await until(lambda: all(one.owner is not None for one in rig.service.dispatchers.values()))
    waits = asyncio.create_task(rig.ask())
    own = rig.service.dispatchers["big"].own
    assert own is not None
    await until(lambda: own.scheduler.lanes.jobs)
    big = await rig.add(FakeEngine("big"))
    assert (await waits)[0] == 200
    assert (asked(big), third.seen) == (["big"], [])
    ledger = await rig.last()
    assert (ledger.model, ledger.degraded) == ("big", ())
    flows = own.snapshot().flows
    assert sum(flow.arrived for flow in flows) == 1, "it came once"
    big.behave = good
    assert (await rig.ask({**ASK, "model": "small"}))[0] == 200
    assert asked(third) == ["third"], "who asks for the small model has a fallback of its own"
    assert dataclasses.asdict((await rig.last(2)).degraded[0])["model"] == "small"
