"""The page of a re-planner: it shows what arrives and what autoscalers have, and puts bounds in force."""

import json
import time
from typing import Any

import pytest

from deployments.cell.scaling_state import ScalingState
from tests.deployments.gateway.rig import openai_error, until
from tests.deployments.gateway.test_gateway_orders import BY, SCALED, MakeRig, get, post

PATH = "/raylane/bounds"
BOUNDS: dict[str, Any] = {**BY, "for_s": 600, "bounds": [{"model": "demo", "floor": 2, "ceiling": 4}]}


async def test_the_page_has_what_arrived_and_what_runs(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    for _ in range(3):
        assert (await rig.ask())[0] == 200
    page = await get(rig, PATH)
    (found,) = page["models"].values()
    assert sum(arrived for _, _, arrived in found["flows"]) == 3
    assert found["epoch"] == rig.owner.epoch
    (group,) = found["groups"]
    assert (group["group"], group["applied"], group["ready"], group["room"]) == ("demo", 1, 1, None)
    await rig.directory.scaling(ScalingState("demo", 2, 5, 1, 1, "unschedulable", time.time()))
    await until(lambda: rig.gateway._announced.scaling_of("demo") is not None)
    (group,) = (await get(rig, PATH))["models"]["demo"]["groups"]
    assert (group["applied"], group["room"], group["reason"]) == (5, 2, "unschedulable")


async def test_bounds_are_in_force_until_they_end_and_shown(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    status, answer = await post(rig, PATH, BOUNDS)
    assert status == 200
    assert [(one["kind"], one["replicas"]) for one in answer["controls"]] == [("floor", 2), ("ceiling", 4)]
    (group,) = (await get(rig, PATH))["models"]["demo"]["groups"]
    assert [one["kind"] for one in group["controls"]] == ["floor", "ceiling"]
    assert (await post(rig, "/raylane/release", {**BY, "model": "demo"}))[0] == 200
    assert len((await rig.directory.orders()).controls) == 2, "a release ends what operators ordered"
    await post(rig, PATH, {**BOUNDS, "for_s": 1})
    assert (await rig.directory.orders()).of("demo", time.time() + 2) == ()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**BOUNDS, "for_s": 7_200}, "for_s"),
        ({**BOUNDS, "bounds": []}, "bounds"),
        ({**BOUNDS, "bounds": [{"model": "demo", "floor": 5, "ceiling": 4}]}, "bounds.0"),
        ({**BOUNDS, "bounds": [{"model": "demo", "floor": -1, "ceiling": 4}]}, "bounds.0.floor"),
        ({**BOUNDS, "nonsense": 1}, "nonsense"),
        ({"bounds": BOUNDS["bounds"], "for_s": 60}, "by"),
    ],
)
async def test_wrong_bounds_change_nothing_and_say_what_is_allowed(
    make_rig: MakeRig, body: dict[str, Any], param: str
) -> None:
    rig = await make_rig(models=SCALED)
    status, answer = await post(rig, PATH, body)
    assert (status, openai_error(json.dumps(answer).encode())["param"]) == (400, param)
    assert (await rig.directory.orders()).controls == ()


async def test_bounds_of_a_model_that_is_not_here_and_without_the_secret_are_refused(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    both = [*BOUNDS["bounds"], {"model": "other", "floor": 0, "ceiling": 1}]
    status, answer = await post(rig, PATH, {**BOUNDS, "bounds": both})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert (await post(rig, PATH, BOUNDS, secret="wrong"))[0] == 401
    assert (await rig.directory.orders()).controls == (), "all of them, or none"
