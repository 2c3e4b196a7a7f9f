"""The operator's commands as they are typed, against a running gateway."""

import asyncio
import dataclasses
import json
import time
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.console import console
from cli.gateway import operator
from cli.main import app
from deployments.cell.scaling_state import ScalingState
from tests.deployments.gateway.fake_engine import FakeEngine
from tests.deployments.gateway.rig import SECRET, MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_orders import SCALED


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(console, "width", 200)
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYLANE_SECRET", SECRET)


async def run(rig: Rig, *arguments: object, code: int = 0) -> str:
    """What a command prints; it must end with that code."""
    result = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, arguments), "--url", rig.url])
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result.stdout + result.stderr


async def decided(rig: Rig, requested: int, reason: str, *alarms: str, model: str = "demo") -> None:
    """An autoscaler has decided, and the gateway has heard of it."""
    await rig.directory.scaling(ScalingState(model, requested, 1, 1, 0, reason, time.time(), alarms=alarms))
    await until(lambda: (seen := rig.gateway._announced.scaling_of(model)) is not None and seen.reason == reason)


async def test_hold_pin_release(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    await decided(rig, 4, "demand")
    assert "Nothing is held" in await run(rig, "controls")
    assert "at least 2 replicas for 30m" in await run(rig, "hold", "demo", 2, "--for", "30m", "--why", "launch [day]")
    assert "exactly 3 replicas for 1h 30m" in await run(rig, "pin", "demo", 3, "--for", "1.5h")
    (hold, pin) = (await rig.directory.orders()).of("demo", time.time())
    assert (hold.replicas, hold.by, hold.why, pin.replicas) == (2, operator(), "launch [day]", 3)
    shown = await run(rig, "controls")
    assert "launch [day]" in shown
    assert "1h 30m" in shown or "1h 29m" in shown
    assert len(json.loads(await run(rig, "controls", "--json"))["controls"]) == 2
    status = await run(rig, "status", "--once")
    assert "held at no fewer than 2 for another" in status
    assert "(launch [day])" in status
    assert "pinned at 3" in status
    ended = await run(rig, "release", "demo")
    assert f"Ended: the hold of model 'demo' at 2 replicas by {operator()}." in ended
    assert f"Ended: the pin of model 'demo' at 3 replicas by {operator()}." in ended
    assert (await rig.directory.orders()).controls == ()
    assert "was neither held nor pinned; nothing has changed" in await run(rig, "release", "demo")


async def test_a_hold_for_which_there_is_no_room_fails_and_stays_in_force(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    await decided(rig, 1, "min_replicas")
    following = asyncio.create_task(run(rig, "hold", "demo", 4, "--for", "30m", code=1))
    await until(lambda: rig.gateway._announced.orders.of("demo", time.time()))
    await decided(rig, 2, "unschedulable", "unschedulable")
    said = await following
    assert "Model 'demo' is to have at least 4 replicas for 30m, but there is room for 2: no GPU" in said
    assert "raylane release demo" in said
    assert [one.replicas for one in (await rig.directory.orders()).of("demo", time.time())] == [4]
    assert "exactly 2 replicas for 30m; 1 ready now" in await run(rig, "pin", "demo", 2, "--for", "30m")


async def test_what_is_refused(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    assert "--for 'soon': allowed: a number and its unit" in await run(rig, "hold", "demo", 2, "--for", "soon", code=2)
    assert "at most 7d" in await run(rig, "pin", "demo", 2, "--for", "8d", code=2)
    assert "allowed: at least 1 for a hold" in await run(rig, "hold", "demo", 0, "--for", "1h", code=1)
    assert "replicas = 9: allowed: at most 4, the model's replicas.max" in await run(
        rig, "pin", "demo", 9, "--for", "1h", code=1
    )
    assert "model = 'other': not served here; allowed: demo" in await run(rig, "pin", "other", 1, "--for", "1h", code=1)
    assert rig.engines[0].facts.replica_id in await run(rig, "cordon", "nobody", code=1)
    assert "replica = 'nobody': unknown; there are: engine-demo#" in await run(rig, "drain", "nobody", code=1)
    assert "node = 'nowhere': unknown; there are: node" in await run(rig, "drain", "nowhere", "--spot", code=1)


async def test_without_the_secret_nothing_goes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYLANE_SECRET", "wrong")
    assert "secret" in await run(rig, "cordon", rig.engines[0].facts.replica_id, code=1)
    monkeypatch.delenv("RAYLANE_SECRET")
    assert "RAYLANE_SECRET" in await run(rig, "cordon", rig.engines[0].facts.replica_id, code=1)
    for look in (("controls",), ("status", "--once"), ("top", "--once"), ("why", "any"), ("shadow", "report", "demo")):
        assert "RAYLANE_SECRET" in await run(rig, *look, code=1)


async def test_cordon_and_drain(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    first, second = (engine.facts.replica_id for engine in rig.engines)
    assert f"{first} is cordoned" in await run(rig, "cordon", first[len("engine-") :], "--why", "slow disk")
    shown = await run(rig, "status", "--once")
    assert "cordoned by" in shown
    assert ": slow disk" in shown
    assert first in await run(rig, "controls")
    assert "takes new work again" in await run(rig, "cordon", first, "--undo")
    assert f"{second} drains" in await run(rig, "drain", second)
    await until(lambda: rig.owner.snapshot().replicas[1].status == "draining")
    assert rig.engines[1].drained == ["operator"]
    assert f"{first} drains" in await run(rig, "drain", "node", "--spot")
    assert rig.engines[0].drained == ["spot_notice"]


GROUPED = {
    "name": "demo",
    "source": "/nowhere",
    "settings": {"max_model_len": 4_096},
    "autoscaling": {"policy": "backlog", "shadow": {"policy": "hpa"}},
    "groups": [
        {"name": "cheap", "settings": {"max_model_len": 1_024}, "replicas": {"max": 3}},
        {"name": "dear", "replicas": {"max": 2}},
    ],
}


async def test_groups_are_shown_and_ordered_by_name(make_rig: MakeRig) -> None:
    rig = await make_rig(0, models=[GROUPED])
    for group, context in (("cheap", 1_024), ("dear", 4_096)):
        engine = FakeEngine()
        engine.facts = dataclasses.replace(engine.facts, group=group, max_model_len=context)
        await rig.add(engine)
    await rig.directory.scaling(ScalingState("demo@cheap", 3, 3, 1, 2, "max_replicas", time.time(), 42.0, overflow=0.4))
    await until(lambda: rig.gateway._announced.scaling.states)
    metrics = await rig.page("/metrics")
    assert 'raylane_scaling_overflow{group="cheap",model="demo"} 0.4' in metrics
    assert 'raylane_replicas{model="demo@cheap",state="requested"} 3.0' in metrics
    shown = await run(rig, "status", "--once")
    assert "group cheap: 1/3 replicas, 0 leases, 0 finished, 40% of its demand is left to the next group" in shown
    assert "autoscaler: 3 requested (max_replicas), 3 applied, 2 starting" in shown
    assert "group dear: 1/1 replicas" in shown
    assert "group cheap: 1/3 replicas, 0 leases" in await run(rig, "top", "--once")
    await decided(rig, 2, "demand", model="demo@dear")
    assert "Model 'demo@dear' is to have exactly 2 replicas for 1h; 1 ready now" in await run(
        rig, "pin", "demo@dear", 2, "--for", "1h"
    )
    await until(lambda: rig.gateway._announced.orders.controls)
    assert "pinned at 2 for another" in await run(rig, "status", "--once")
    assert rig.gateway._announced.orders.of("demo@cheap", time.time()) == ()
    refused = await run(rig, "pin", "demo", 1, "--for", "1h", code=1)
    assert "model = 'demo': not served here; allowed: demo@cheap, demo@dear" in refused
    assert "replicas = 3: allowed: at most 2" in await run(rig, "pin", "demo@dear", 3, "--for", "1h", code=1)
    assert "now scales by policy hpa" in await run(rig, "shadow", "promote", "demo@cheap")
    await until(lambda: rig.service.spec.models[0].groups[0].autoscaling is not None)
    spec = rig.service.spec
    assert [spec.autoscaling_of(view).policy for view in spec.views_in()] == ["hpa", "backlog"]
    _, _, headers = await rig.answered({"model": "demo", "prompt": [1] * 2_000, "max_tokens": 5})
    await rig.settled()
    assert "group dear" in await run(rig, "why", headers["x-request-id"])


async def test_status_shows_the_autoscaler(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    assert "nothing decided yet" in await run(rig, "status", "--once")
    await rig.directory.scaling(ScalingState("demo", 3, 2, 1, 1, "backlog", time.time(), 42.0, ("stale",)))
    await until(lambda: rig.gateway._announced.scaling.states)
    shown = await run(rig, "status", "--once")
    assert "autoscaler: 3 requested (backlog), 2 applied, 1 starting (ready in 4" in shown
    assert "stale" in shown
    assert "no decision for" not in shown
    assert "1/2" in shown
    await rig.directory.scaling(ScalingState("demo", 2, 2, 2, 0, "steady", time.time() - 200))
    await until(lambda: rig.gateway._announced.scaling.states[0].reason == "steady")
    assert "no decision for 3m" in await run(rig, "status", "--once")
