"""A gateway before a model with two groups: each request goes where its context fits, by estimate or after all."""

import dataclasses
import json
from typing import Any

from cluster.spec import ClusterSpec
from tests.deployments.gateway.fake_engine import FakeEngine, good, whole
from tests.deployments.gateway.rig import MakeRig, Rig

MODEL = {
    "name": "demo",
    "source": "/nowhere",
    "settings": {"max_model_len": 4_096},
    "groups": [{"name": "cheap", "settings": {"max_model_len": 1_024}}, {"name": "dear"}],
    "lanes": {"short": ["cheap", "dear"]},
}
TOO_LONG = json.dumps(
    {"object": "error", "message": "This model's maximum context length is 1024 tokens.", "param": "input_tokens"}
).encode()


def engine(group: str, context: int) -> FakeEngine:
    made = FakeEngine()
    made.facts = dataclasses.replace(made.facts, group=group, max_model_len=context)
    return made


async def two_groups(make_rig: MakeRig) -> tuple[Rig, FakeEngine, FakeEngine]:
    rig = await make_rig(0, models=[MODEL])
    return rig, await rig.add(engine("cheap", 1_024)), await rig.add(engine("dear", 4_096))


def body(prompt: Any, max_tokens: int | None = 10) -> dict[str, Any]:
    return {"model": "demo", "prompt": prompt, **({} if max_tokens is None else {"max_tokens": max_tokens})}


async def test_a_request_goes_where_its_context_fits(make_rig: MakeRig) -> None:
    rig, cheap, dear = await two_groups(make_rig)
    for ask in (body([1] * 100), body([1] * 1_014), body([1] * 700, None), body("short")):
        assert (await rig.ask(ask))[0] == 200
    assert (len(cheap.seen), len(dear.seen)) == (4, 0)
    for ask in (body([1] * 1_015), body([1] * 100, 1_000), body([1] * 4_000), body("x" * 2_700)):
        assert (await rig.ask(ask))[0] == 200
    assert (len(cheap.seen), len(dear.seen)) == (4, 4), "900 tokens of text may be more than a thousand"
    status, error = await rig.error(body([1] * 4_097))
    assert (status, error["code"]) == (400, "context_length_exceeded")


async def test_what_one_engine_finds_too_long_goes_to_the_next_group(make_rig: MakeRig) -> None:
    rig, cheap, dear = await two_groups(make_rig)
    cheap.behave = whole(TOO_LONG, status=400)
    assert (await rig.ask(body("many tokens in few characters")))[0] == 200
    assert (len(cheap.seen), len(dear.seen)) == (1, 1)
    ledger = await rig.last()
    assert ledger.attempts == 2
    dear.behave = whole(TOO_LONG, status=400)
    status, error = await rig.error(body("far too many"))
    assert (status, error["code"]) == (400, "context_length_exceeded"), "nobody has a longer one"
    assert (len(cheap.seen), len(dear.seen)) == (2, 2)
    dear.behave = good


async def test_clients_and_operators_see_the_groups(make_rig: MakeRig) -> None:
    rig, cheap, dear = await two_groups(make_rig)
    assert (await rig.ask(body([1] * 100)))[0] == 200
    await rig.last()
    assert (await rig.page("/v1/models"))["data"][0]["max_model_len"] == 4_096
    metrics, (model,) = await rig.page("/metrics"), (await rig.page("/raylane/status"))["models"]
    assert f'raylane_replica_group{{group="cheap",model="demo",replica="{cheap.facts.replica_id}"}} 1.0' in metrics
    assert 'raylane_group_waiting_requests{groups="cheap,dear",lane="short",model="demo"} 0.0' in metrics
    assert model["desired_replicas"] == 2
    assert {one["replica_id"]: one["group"] for one in model["replicas"]} == {
        cheap.facts.replica_id: "cheap",
        dear.facts.replica_id: "dear",
    }


async def test_lanes_may_name_other_groups_while_the_cell_runs(make_rig: MakeRig) -> None:
    rig, cheap, dear = await two_groups(make_rig)
    content = rig.service.spec.model_dump(mode="json")
    content["models"][0]["lanes"] = {"short": ["dear"], "medium": ["cheap"], "long": ["dear"]}
    await rig.gateway._apply(ClusterSpec.model_validate(content))
    assert (await rig.ask(body([1] * 100)))[0] == 200
    assert (len(cheap.seen), len(dear.seen)) == (0, 1)
