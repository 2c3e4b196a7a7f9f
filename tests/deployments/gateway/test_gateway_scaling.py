"""The owner's books for its autoscaler, what the autoscaler tells in return, and the lanes as a waiting room."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from autoscaling.signals.signals import signals_of
from deployments.cell.scaling_facts import SCALING_PATH, ScalingFacts, read_scaling_facts
from deployments.cell.scaling_state import ScalingState
from tests.deployments.gateway.fake_engine import FakeEngine, waiting
from tests.deployments.gateway.rig import ASK, SECRET, MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_orders import model
from tests.deployments.peering.setups import MODEL, make_digest, make_model, make_spec

ZERO = {
    "name": "demo",
    "source": "/nowhere",
    "settings": {"max_model_len": 1_024},
    "autoscaling": {"policy": "backlog"},
}
PATIENT = [
    {"name": "interactive", "ttft_ms": 500},
    {"name": "hasty", "ttft_ms": 500, "attainment": 0.9, "patience_s": 5},
]


async def page(rig: Rig, name: str = "demo", secret: str = SECRET) -> tuple[int, bytes]:
    """What the owner shows to an autoscaler."""
    url, headers = rig.gateway.others.own_url + f"{SCALING_PATH}/{name}", {"authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.read()


async def books(rig: Rig) -> ScalingFacts:
    status, payload = await page(rig)
    assert status == 200
    return read_scaling_facts(payload)


def state(**changes: Any) -> ScalingState:
    return replace(ScalingState("demo", 1, 1, 0, 1, "wake", time.time(), 300.0), **changes)


async def test_what_peers_have_to_spare_is_in_the_books(rig: Rig) -> None:
    assert (await books(rig)).peers_spare == 0.0
    rig.owner.help_peers(make_spec(), "eu", MODEL)
    peering = rig.owner.peering
    assert peering is not None
    digest = make_digest("us", peering.ask()["us"], make_model(replicas=4, free=70))
    assert peering.heard(digest) is None
    assert (await books(rig)).peers_spare == pytest.approx(4 * 0.5 / 2 / 2**0.5), "another may hand over too"


async def test_the_books_are_the_schedulers(make_rig: MakeRig) -> None:
    rig = await make_rig(classes=PATIENT)
    go = asyncio.Event()
    for _ in range(3):
        assert (await rig.ask())[0] == 200
    rig.engines[0].behave = waiting(go)
    asks = [
        asyncio.create_task(rig.ask({**ASK, "stream": True}, headers={"x-raylane-class": "hasty"})) for _ in range(8)
    ]
    await until(lambda: sum(lane.waiting for lane in rig.owner.snapshot().lanes) == 4)
    reported = await books(rig)
    assert (reported.model, reported.epoch, reported.age_s) == ("demo", 1, 0.0)
    assert reported.attainment == {"interactive": 0.99, "hasty": 0.9}
    assert [(replica.status, replica.sequences) for replica in reported.snapshot.replicas] == [("ready", 4)]
    assert sum(lane.waiting for lane in reported.snapshot.lanes) == 4
    assert (reported.snapshot.finished, reported.snapshot.endings["finished"]) == (3, 3)
    signals = signals_of(reported.snapshot, 1.0, 1e9, 1, reported.attainment)
    assert (signals.ready, signals.running, signals.waiting, signals.arrived, signals.starting) == (1, 4, 4, 11, 0)
    assert signals.attainment == {"interactive": 0.99, "hasty": 0.9}
    go.set()
    assert {status for status, _ in await asyncio.gather(*asks)} == {200}
    await until(lambda: rig.owner.snapshot().counted == 11)


async def test_who_may_not_or_asks_for_nonsense(rig: Rig) -> None:
    assert (await page(rig, secret="wrong"))[0] == 401
    status, payload = await page(rig, "other/model")
    assert (status, json.loads(payload)["error"]["code"]) == (404, "model_not_found")
    assert (await rig.get(f"{SCALING_PATH}/demo"))[0] == 404, "it is on the cell's port only"


async def test_one_that_owns_nothing_says_so(rig: Rig) -> None:
    rig.dispatcher.follow(None)
    status, payload = await page(rig)
    assert (status, json.loads(payload)["error"]["code"]) == (409, "not_owner")


async def test_a_model_without_replicas_has_books(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0)
    await until(lambda: rig.dispatcher.own is not None)
    waits = asyncio.create_task(rig.ask())
    await until(lambda: rig.owner.snapshot().submitted == 1)
    reported = await books(rig)
    signals = signals_of(reported.snapshot, 1.0, 1e9, 0, reported.attainment)
    assert (signals.waiting, signals.arrived, signals.replicas, signals.starting) == (1, 1, (), 0)
    await rig.add(FakeEngine())
    assert (await waits)[0] == 200


async def test_what_an_autoscaler_says_is_shown(rig: Rig) -> None:
    before = await model(rig)
    assert (before["scaling"], before["desired_replicas"]) == (None, 1)
    counts = {"requested": 4, "applied": 3, "ready": 1, "starting": 2}
    said = {**counts, "reason": "backlog", "shadow": {"requested": 5}}
    await rig.directory.scaling(state(**said, alarms=("stale",)))
    await until(lambda: rig.gateway._announced.scaling.states)
    shown = await model(rig)
    assert shown["desired_replicas"] == 3
    assert {**said, "alarms": ["stale"]}.items() <= shown["scaling"].items()
    replicas = await rig.samples("raylane_replicas")
    assert {key.split('state="')[1][:-2]: value for key, value in replicas.items()} == counts
    assert await rig.samples("raylane_scaling_decisions_total") == {'{model="demo",reason="backlog"}': 1}
    assert await rig.samples("raylane_scaling_alarms_total") == {'{kind="stale",model="demo"}': 1}


async def test_a_start_that_is_too_far_off_is_told(make_rig: MakeRig) -> None:
    rig = await make_rig(
        engines=0, models=[{**ZERO, "replicas": {"count": 0, "min": 0, "max": 2}}], timeouts={"queue_wait_s": 60}
    )
    await until(lambda: rig.dispatcher.own is not None)
    assert (await rig.page("/ready"))["status"] == "ready"
    first = asyncio.create_task(rig.error())
    await until(lambda: rig.owner.snapshot().submitted == 1)
    assert not first.done(), "nobody knows yet how long a start takes"
    await rig.directory.scaling(state())
    status, error = await first
    assert (status, error["code"], error["type"]) == (503, "no_replica", "overloaded_error")
    async with rig.post("/v1/completions", ASK) as response:
        assert response.status == 503
        assert 290 <= int(response.headers["retry-after"]) <= 340
        assert "no replica now" in (await response.json())["error"]["message"]
    assert rig.owner.snapshot().rejections == {("short", "starting"): 2}
    record = await rig.page(f"/raylane/requests/{(await rig.last(2)).request_id}")
    assert (record["decisions"][-1]["verdict"], record["decisions"][-1]["reason"]) == ("rejected", "starting")
    await rig.add(FakeEngine())
    assert (await rig.ask())[0] == 200


async def test_a_start_that_is_near_is_waited_for(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=0, models=[{**ZERO, "replicas": {"count": 0, "min": 0, "max": 2}}], classes=PATIENT)
    await until(lambda: rig.dispatcher.own is not None)
    await rig.directory.scaling(state(start_up_eta_s=30.0))
    await until(lambda: rig.owner.scheduler.starting.ready_at_s != {})
    hasty = {"x-raylane-class": "hasty"}
    status, error = await rig.error(headers=hasty)
    assert (status, error["code"]) == (503, "no_replica")
    patient = asyncio.create_task(rig.ask())
    await until(lambda: sum(lane.waiting for lane in rig.owner.snapshot().lanes) == 1)
    await rig.add(FakeEngine())
    assert (await patient)[0] == 200
    assert (await rig.ask(headers=hasty))[0] == 200
    await rig.directory.scaling(state(ready=1, reason="steady", start_up_eta_s=None))
    await until(lambda: rig.owner.scheduler.starting.ready_at_s == {})
