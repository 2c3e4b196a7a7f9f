"""A shadow policy is promoted and taken back over the real page: in the spec of the whole cell, and in the audit."""

import asyncio
from typing import Any

import pytest
import yaml

from cluster.spec import ClusterSpec
from deployments.cell.act import Act, ActKind
from deployments.cell.directory import Directory
from deployments.cell.orders import standing
from tests.deployments.gateway.rig import SECRET, MakeRig, Rig
from tests.deployments.gateway.test_gateway_apply import changed, put
from tests.deployments.gateway.test_gateway_orders import BY, SCALED, post

SHADOWED: list[dict[str, Any]] = [
    {**SCALED[0], "autoscaling": {"policy": "backlog", "shadow": {"policy": "hpa", "settings": {"target": 5}}}}
]


def policies(rig: Rig) -> tuple[str, str | None]:
    spec = rig.service.spec
    section = spec.autoscaling_of(spec.models[0])
    return section.policy, None if section.shadow is None else section.shadow.policy


async def ask(rig: Rig, kind: str, secret: str = SECRET, **more: Any) -> tuple[int, Any]:
    return await post(rig, "/raylane/shadow", {**BY, "model": "demo", "kind": kind, **more}, secret)


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(models=SHADOWED)


async def test_a_promotion_is_in_force_everywhere_and_taken_back(rig: Rig) -> None:
    status, answer = await ask(rig, "promote")
    assert (status, answer["active"], answer["shadow"]) == (200, "hpa", "backlog")
    assert policies(rig) == ("hpa", "backlog")
    listing = await rig.directory.watch(-1, 0)
    assert ClusterSpec.model_validate_json(listing.spec_json or "") == rig.service.spec
    assert listing.orders.promotion_of("demo") == standing(rig.service.spec, "demo")
    text = yaml.safe_dump({"autoscaling": answer["autoscaling"]})
    again = ClusterSpec.model_validate(
        {**rig.service.spec.model_dump(), "models": [{**SHADOWED[0], **yaml.safe_load(text)}]}
    )
    assert again.models[0].autoscaling == rig.service.spec.models[0].autoscaling
    status, answer = await ask(rig, "rollback")
    assert (status, policies(rig)) == (200, ("backlog", "hpa"))
    orders = await rig.directory.orders()
    assert orders.promoted == ()
    assert {(kind, count) for _, kind, count in orders.acts} == {(ActKind.PROMOTE, 1), (ActKind.ROLLBACK, 1)}
    assert (await rig.samples("raylane_operator_acts_total"))['{kind="promote",model="demo"}'] == 1


async def test_what_cannot_be_is_refused_before_anything_is_done(rig: Rig) -> None:
    assert (await ask(rig, "promote", secret="wrong"))[0] == 401
    status, answer = await ask(rig, "rollback")
    assert status == 400
    assert "no promotion to roll back" in answer["error"]["message"]
    assert (await ask(rig, "other"))[0] == 400
    assert (await post(rig, "/raylane/shadow", {**BY, "model": "no", "kind": "promote"}))[0] == 400
    assert policies(rig) == ("backlog", "hpa")
    assert (await ask(rig, "rollback", force=True))[0] == 200
    assert policies(rig) == ("hpa", "backlog")


async def test_without_a_shadow_there_is_nothing_to_promote(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    status, answer = await ask(rig, "promote")
    assert status == 400
    assert "has no shadow" in answer["error"]["message"]


async def test_what_an_apply_has_put_back_is_no_promotion_to_take_back(rig: Rig) -> None:
    own, knob = (
        changed(rig),
        changed(rig, models=[{**SHADOWED[0], "autoscaling": {**SHADOWED[0]["autoscaling"], "up_per_minute": 3}}]),
    )
    assert (await ask(rig, "promote"))[0] == 200
    assert (await put(rig, own))[0] == 200
    status, answer = await ask(rig, "rollback")
    assert (status, policies(rig)) == (400, ("backlog", "hpa"))
    assert "no promotion to roll back" in answer["error"]["message"]
    assert (await ask(rig, "promote"))[0] == 200
    promoted = changed(rig)
    promoted["models"][0]["autoscaling"]["up_per_minute"] = 3
    assert (await put(rig, promoted))[0] == 200, "another setting, the same policies"
    assert (await ask(rig, "rollback"))[0] == 200
    assert policies(rig) == ("backlog", "hpa")
    assert rig.service.spec.models[0].autoscaling == ClusterSpec.model_validate(knob).models[0].autoscaling


async def test_a_second_promotion_is_the_way_back(rig: Rig) -> None:
    for active in ("hpa", "backlog"):
        assert (await ask(rig, "promote"))[0] == 200
        assert policies(rig)[0] == active
    assert (await ask(rig, "rollback"))[0] == 400
    assert (await ask(rig, "promote"))[0] == 200
    assert (await ask(rig, "rollback"))[0] == 200
    assert policies(rig) == ("backlog", "hpa")


async def test_what_could_not_be_put_in_force_is_not_written_down(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(change: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.directory.store, "write", full)
        assert (await ask(rig, "promote"))[0] == 503
    assert policies(rig) == ("backlog", "hpa")
    assert (await rig.directory.watch(-1, 0)).spec_json is None
    assert (await ask(rig, "rollback"))[0] == 400


async def test_an_apply_that_comes_in_between_is_not_lost(rig: Rig) -> None:
    """The apply has reached the directory, and its gateway has not heard of it yet, when the promotion comes."""
    gate, entered, apply = asyncio.Event(), asyncio.Event(), rig.directory.apply

    async def slow(spec_json: str) -> int:
        number = await apply(spec_json)
        entered.set()
        await gate.wait()
        return number

    rig.directory.apply = slow  # type: ignore[method-assign]
    desired = changed(rig)
    desired["models"][0]["autoscaling"]["backlog"]["short_cost"] = 20.0
    putting = asyncio.create_task(put(rig, desired))
    await entered.wait()
    rig.directory.apply = apply  # type: ignore[method-assign]
    promoting = asyncio.create_task(ask(rig, "promote"))
    await asyncio.wait([promoting], timeout=0.2)
    gate.set()
    assert (await putting)[0] == (await promoting)[0] == 200
    section = rig.service.spec.models[0].autoscaling
    assert section is not None
    assert section.shadow is not None
    assert (section.policy, section.shadow.backlog.short_cost) == ("hpa", 20.0)


async def test_a_promotion_of_a_spec_that_another_gateway_has_replaced_is_refused() -> None:
    directory, act = Directory(SECRET), Act(1.0, ActKind.PROMOTE, "demo", "me")
    assert await directory.exchange(act, "a", None) is not None
    assert await directory.exchange(act, "c", "b") is None
    assert (await directory.watch(-1, 0)).spec_json == "a"
    assert (await directory.orders()).acts == (("demo", ActKind.PROMOTE, 1),)
