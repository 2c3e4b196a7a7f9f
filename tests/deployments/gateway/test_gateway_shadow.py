"""A shadow law is promoted and taken back over the real page: in the spec of the whole cell, and in the audit."""

from typing import Any

import yaml

from cluster.spec import ClusterSpec
from deployments.controls.act import ActKind
from tests.deployments.gateway.rig import SECRET, Rig
from tests.deployments.gateway.test_gateway_orders import BY, SCALED, MakeRig, post, samples

SHADOWED = [{**SCALED[0], "autoscaling": {"policy": "backlog", "shadow": {"policy": "hpa", "settings": {"target": 5}}}}]


def laws(rig: Rig) -> tuple[str, str | None]:
    """The active law and the shadow, in the spec in force."""
    spec = rig.service.spec
    section = spec.autoscaling_of(spec.models[0])
    return section.policy, None if section.shadow is None else section.shadow.policy


async def ask(rig: Rig, kind: str, secret: str = SECRET, **more: Any) -> tuple[int, Any]:
    return await post(rig, "/raylane/shadow", {**BY, "model": "demo", "kind": kind, **more}, secret)


async def test_a_promotion_is_in_force_everywhere_and_taken_back(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SHADOWED)
    status, answer = await ask(rig, "promote")
    assert (status, answer["active"], answer["shadow"]) == (200, "hpa", "backlog")
    assert laws(rig) == ("hpa", "backlog")
    listing = await rig.directory.watch(-1, 0)
    assert ClusterSpec.model_validate_json(listing.spec_json or "") == rig.service.spec
    assert listing.orders.promoted == ("demo",)
    text = yaml.safe_dump({"autoscaling": answer["autoscaling"]})
    again = ClusterSpec.model_validate({**rig.service.spec.model_dump(), "models": [{**SHADOWED[0], **yaml.safe_load(text)}]})
    assert again.models[0].autoscaling == rig.service.spec.models[0].autoscaling
    status, answer = await ask(rig, "rollback")
    assert (status, laws(rig)) == (200, ("backlog", "hpa"))
    orders = await rig.directory.orders()
    assert orders.promoted == ()
    assert {(kind, count) for _, kind, count in orders.acts} == {(ActKind.PROMOTE, 1), (ActKind.ROLLBACK, 1)}
    assert (await samples(rig, "raylane_operator_acts_total"))['{kind="promote",model="demo"}'] == 1


async def test_what_cannot_be_is_refused_before_anything_is_done(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SHADOWED)
    assert (await ask(rig, "promote", secret="wrong"))[0] == 401
    status, answer = await ask(rig, "rollback")
    assert status == 400
    assert "no promotion is in force" in answer["error"]["message"]
    assert (await ask(rig, "other"))[0] == 400
    assert (await post(rig, "/raylane/shadow", {**BY, "model": "no", "kind": "promote"}))[0] == 400
    assert laws(rig) == ("backlog", "hpa")
    assert (await ask(rig, "rollback", force=True))[0] == 200
    assert laws(rig) == ("hpa", "backlog")


async def test_without_a_shadow_there_is_nothing_to_promote(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    status, answer = await ask(rig, "promote")
    assert status == 400
    assert "has no shadow" in answer["error"]["message"]
