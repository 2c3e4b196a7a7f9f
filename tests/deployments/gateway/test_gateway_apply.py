"""A changed spec takes effect in a running gateway, all of it or nothing; what waits keeps waiting."""

import asyncio
import copy
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cluster.files import shipped
from cluster.spec import ClusterSpec
from deployments.cell.directory import Directory
from deployments.gateway.entrance import digest_of
from deployments.telemetry.verdicts import RequestVerdict
from tests.deployments.gateway.fake_engine import FakeEngine, waiting
from tests.deployments.gateway.rig import ASK, PATIENCE_S, SECRET, MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_cache_semantic import MODELS


async def put(rig: Rig, spec: Any, secret: str = SECRET, **params: str) -> tuple[int, dict[str, Any]]:
    data = spec if isinstance(spec, bytes) else json.dumps(spec).encode()
    async with aiohttp.ClientSession() as session:
        headers = {"authorization": f"Bearer {secret}"}
        async with session.put(rig.url + "/raylane/spec", data=data, params=params, headers=headers) as response:
            return response.status, json.loads(await response.read())


def changed(rig: Rig, **sections: Any) -> dict[str, Any]:
    spec: dict[str, Any] = rig.service.spec.model_dump(mode="json")
    return {**copy.deepcopy(spec), **sections}


async def test_lanes_and_tenants_change_while_requests_wait(rig: Rig) -> None:
    rig.engines[0].behave = waiting(asyncio.Event())
    asks = [asyncio.ensure_future(rig.ask(ASK)) for _ in range(8)]
    await until(lambda: rig.owner.snapshot().submitted == 8 and rig.engines[0].open == 4)
    queued = sum(lane.waiting for lane in rig.owner.snapshot().lanes)
    desired = changed(
        rig,
        lanes=[{"name": "brief", "up_to_tokens": 8}, {"name": "rest"}],
        tenants=[{"name": "t", "keys": [digest_of("k")]}],
    )
    status, answer = await put(rig, desired, dry_run="1")
    assert status == 200
    assert {change["key"].split(".")[0] for change in answer["changes"]} == {"lanes", "tenants"}
    assert rig.owner.snapshot().lanes[0].name == "short"
    assert (await put(rig, desired))[0] == 200
    snapshot = rig.owner.snapshot()
    assert [lane.name for lane in snapshot.lanes] == ["brief", "rest", "promoted"]
    assert sum(lane.waiting for lane in snapshot.lanes) == queued
    assert (await rig.ask(ASK))[0] == 401
    assert (await put(rig, desired)) == (200, {"changes": []})
    for task in asks:
        task.cancel()
    await asyncio.gather(*asks, return_exceptions=True)


async def test_the_directory_hands_it_to_every_gateway(rig: Rig) -> None:
    desired = changed(rig, scheduling={"promoted_share": 0.5})
    await rig.directory.apply(ClusterSpec.model_validate(desired).model_dump_json())
    await until(lambda: rig.owner.scheduler.lanes.policy.promoted_share == 0.5)


async def test_what_needs_a_restart_or_is_wrong_changes_nothing(rig: Rig) -> None:
    before = rig.service.spec
    moved = changed(rig, name="other", scheduling={"promoted_share": 0.5})
    status, answer = await put(rig, moved)
    assert (status, answer["error"]["code"]) == (409, "needs_restart")
    assert answer["error"]["message"].startswith("name: needs a restart")
    status, answer = await put(rig, changed(rig, scheduling={"promoted_share": 7}))
    assert (status, answer["error"]["param"]) == (400, "scheduling.promoted_share")
    for body in (b"{", b"[]"):
        status, answer = await put(rig, body)
        assert (status, answer["error"]["message"].startswith("the body = ")) == (400, True), answer
    assert (await put(rig, changed(rig), secret="wrong"))[0] == 401
    assert rig.service.spec == before


async def test_a_spec_that_cannot_be_read_changes_nothing_and_the_rest_is_followed(rig: Rig) -> None:
    """A newer gateway of the cell has applied a key that this version does not know."""
    before = rig.service.spec
    await rig.directory.apply(json.dumps(changed(rig, a_key_of_later=1)))
    await rig.add(FakeEngine())
    assert (len(rig.dispatcher.replicas.ready), rig.service.spec) == (2, before)
    assert (await put(rig, changed(rig, scheduling={"promoted_share": 0.5})))[0] == 200
    assert rig.owner.scheduler.lanes.policy.promoted_share == 0.5


async def test_what_needs_an_extra_that_is_missing_changes_nothing(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where it is applied, nor where another gateway, which has the extra, has applied it."""
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    rig = await make_rig(engines=0, models=MODELS)
    before, tenants = rig.service.spec, [{"name": "t", "keys": [digest_of("k")]}]
    desired = changed(rig, tenants=tenants)
    desired["gateway"]["cache"] = {"semantic": {"model": "encoder"}}
    for params in ({"dry_run": "1"}, {}):
        status, answer = await put(rig, desired, **params)
        assert (status, answer["error"]["param"]) == (400, "gateway.cache.semantic")
        assert "the extra `semantic`" in answer["error"]["message"]
    await rig.directory.apply(ClusterSpec.model_validate(desired).model_dump_json())
    await rig.add(FakeEngine())
    assert (rig.service.spec, (await rig.get("/v1/models"))[0]) == (before, 200)
    assert (await put(rig, changed(rig, tenants=tenants)))[0] == 200
    assert (await rig.ask())[0] == 401


@pytest.mark.parametrize("is_silent", [False, True])
async def test_without_a_directory_nothing_is_applied(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """And one that comes back is asked again: nobody waits for what was asked before."""

    async def gone(*arguments: object) -> int:
        await asyncio.sleep(PATIENCE_S * is_silent)
        raise OSError("no head")

    before, desired = rig.service.spec, changed(rig, scheduling={"promoted_share": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr(rig.directory, "apply", gone)
        status, answer = await put(rig, desired)
    assert (status, answer["error"]["code"], rig.service.spec) == (503, "no_directory", before)
    assert ("may still" if is_silent else "no head") in answer["error"]["message"]
    assert (await put(rig, desired))[0] == 200


async def test_a_request_is_explained(rig: Rig) -> None:
    assert (await rig.ask(headers={"x-request-id": "mine/1"}))[0] == 200
    await rig.last()
    record = await rig.page("/raylane/requests/mine%2F1")
    assert (await rig.get("/raylane/requests/nobody"))[0] == 404
    assert record["request_id"] == "mine/1"
    assert [decision["verdict"] for decision in record["decisions"]] == ["admitted", "placed"]
    assert record["decisions"][1]["reason"] == "only_fit"
    assert abs(sum(record["stages_s"].values()) - record["wall_s"]) < 0.002


async def test_what_a_request_waits_for_is_explained(make_rig: MakeRig) -> None:
    rig, full = await make_rig(), asyncio.Event()
    rig.engines[0].behave = waiting(full)
    asks = [asyncio.ensure_future(rig.ask(ASK)) for _ in range(4)]
    await until(lambda: rig.engines[0].open == 4)
    asks.append(asyncio.ensure_future(rig.ask(ASK)))
    await until(lambda: rig.owner.snapshot().submitted == 5)
    full.set()
    await asyncio.gather(*asks)
    await until(lambda: len(rig.closed) == 5)
    (queued,) = (one for ledger in rig.closed for one in ledger.decisions if one.verdict is RequestVerdict.QUEUED)
    assert queued.facts["waits_for"] == "sequences"


async def test_an_itl_ms_that_is_applied_caps_what_runs(rig: Rig) -> None:
    rig.engines[0].behave = waiting(asyncio.Event())
    costs = str(shipped("specs/simulated-h100.costs.json"))
    strict = [{"name": "interactive", "ttft_ms": 500, "itl_ms": 0.01}]
    status, answer = await put(rig, changed(rig, classes=strict, autoscaling={"costs": costs}))
    assert status == 200, answer
    asks = [asyncio.ensure_future(rig.ask(ASK)) for _ in range(4)]
    await until(lambda: rig.owner.snapshot().submitted == 4 and rig.engines[0].open == 1)
    (replica,) = rig.owner.snapshot().replicas
    assert (replica.itl_class, replica.max_sequences) == ("interactive", 2)
    assert "itl" in {lane.head_waits_for for lane in rig.owner.snapshot().lanes}
    for task in asks:
        task.cancel()
    await asyncio.gather(*asks, return_exceptions=True)


async def test_a_directory_that_has_kept_an_older_spec_gets_the_newer_one(rig: Rig, tmp_path: Path) -> None:
    """Its disk was full when the newer one was put in force; then it restarted."""
    older, newer = (
        ClusterSpec.model_validate(changed(rig, scheduling={"promoted_share": share})).model_dump_json()
        for share in (0.4, 0.5)
    )
    restarted = Directory(SECRET, run_dir=str(tmp_path / "run"))
    await restarted.apply(older)
    await rig.directory.apply(newer)
    await until(lambda: rig.owner.scheduler.lanes.policy.promoted_share == 0.5)
    rig.gateway._directory._directory = restarted
    async with asyncio.timeout(PATIENCE_S):
        while (await restarted.watch(-1, 0)).spec_json != newer:
            assert rig.owner.scheduler.lanes.policy.promoted_share == 0.5
            await asyncio.sleep(0.02)
