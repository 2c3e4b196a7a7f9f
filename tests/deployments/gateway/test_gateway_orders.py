"""What operators order, over the real pages: it is checked, put in force, shown, counted and written down."""

import asyncio
import json
import time
from typing import Any

import pytest

from deployments.cell.act import ActKind
from tests.deployments.gateway.fake_engine import FakeEngine, waiting
from tests.deployments.gateway.rig import SECRET, MakeRig, Rig, openai_error, until

BY: dict[str, Any] = {"by": "me", "why": "a test"}
SCALED: list[dict[str, Any]] = [
    {
        "name": "demo",
        "source": "/nowhere",
        "settings": {"max_model_len": 1_024},
        "replicas": {"count": 1, "max": 4},
        "autoscaling": {"policy": "backlog"},
    }
]


async def post(rig: Rig, path: str, body: Any, secret: str = SECRET) -> tuple[int, Any]:
    status, answer = await rig.ask(body, path, headers={"authorization": f"Bearer {secret}"})
    return status, json.loads(answer)


async def model(rig: Rig) -> dict[str, Any]:
    return dict((await rig.page("/raylane/status"))["models"][0])


def status_of(rig: Rig, replica_id: str) -> str:
    return next(replica.status for replica in rig.owner.snapshot().replicas if replica.replica_id == replica_id)


def used(rig: Rig) -> list[int]:
    return [len(engine.seen) for engine in rig.engines]


async def test_a_cordoned_replica_gets_nothing_new(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    first, second = (engine.facts.replica_id for engine in rig.engines)
    status, answer = await post(rig, "/raylane/cordon", {**BY, "replica": first[len("engine-") :]})
    assert (status, answer["replica"]) == (200, first)
    assert [cordon["replica_id"] for cordon in answer["cordons"]] == [first]
    for _ in range(6):
        assert (await rig.ask())[0] == 200
    assert (await rig.ask({"model": "demo", "prompt": "x"}, "/tokenize"))[0] == 200
    assert used(rig) == [0, 7]
    states = {replica["replica_id"]: replica for replica in (await model(rig))["replicas"]}
    assert [states[name]["state"] for name in (first, second)] == ["cordoned", "ready"]
    assert (states[first]["cordon"]["by"], states[first]["cordon"]["why"]) == ("me", "a test")
    assert states[second]["cordon"] is None
    assert await rig.samples("raylane_cordoned_replicas") == {'{model="demo"}': 1}
    rig.engines[0].end_feeds()
    await until(lambda: status_of(rig, first) == "unresponsive")
    await until(lambda: status_of(rig, first) == "cordoned")
    assert (await rig.ask())[0] == 200
    assert used(rig) == [0, 8], "its feed came anew, and lifts nothing"
    assert (await post(rig, "/raylane/cordon", {**BY, "replica": first, "undo": True}))[0] == 200
    assert status_of(rig, first) == "ready"
    rig.engines[1].behave = waiting(asyncio.Event())
    held = [asyncio.ensure_future(rig.ask()) for _ in range(4)]
    await until(lambda: len(rig.engines[0].seen) >= 1)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_what_runs_on_a_cordoned_replica_goes_on_and_what_comes_waits(rig: Rig) -> None:
    go = asyncio.Event()
    rig.engines[0].behave = waiting(go)
    running = asyncio.create_task(rig.ask())
    await until(lambda: rig.engines[0].open == 1)
    await post(rig, "/raylane/cordon", {**BY, "replica": rig.engines[0].facts.replica_id})
    later = asyncio.create_task(rig.ask())
    await until(lambda: sum(lane.waiting for lane in rig.owner.snapshot().lanes) == 1)
    assert (await rig.get("/ready?model=demo"))[0] == 503
    go.set()
    assert (await running)[0] == 200
    assert not later.done()
    await post(rig, "/raylane/cordon", {**BY, "replica": rig.engines[0].facts.replica_id, "undo": True})
    assert (await later)[0] == 200


async def test_orders_name_their_replica(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    for path in ("/raylane/cordon", "/raylane/drain"):
        status, answer = await post(rig, path, {**BY, "replica": "nobody"})
        assert status == 404
        assert all(engine.facts.replica_id in answer["error"]["message"] for engine in rig.engines)
        status, answer = await post(rig, path, {**BY, "replica": "engine-demo#"})
        assert (status, answer["error"]["param"]) == (400, "replica")
        assert "ambiguous" in answer["error"]["message"]
    status, answer = await post(rig, "/raylane/cordon", {**BY, "replica": "engine", "undo": True})
    assert (status, answer["error"]["message"]) == (404, "replica = 'engine': unknown; there are: none")
    assert (await post(rig, "/raylane/drain", {**BY, "node": "other"}))[0] == 404


WRONG: list[tuple[str, Any, str | None]] = [
    ("/raylane/cordon", b"{", None),
    ("/raylane/cordon", {"replica": "x"}, "by"),
    ("/raylane/cordon", {**BY, "replica": ""}, "replica"),
    ("/raylane/cordon", {**BY, "replica": "x", "nonsense": 1}, "nonsense"),
    ("/raylane/drain", BY, None),
    ("/raylane/drain", {**BY, "replica": "x", "node": "y"}, None),
    ("/raylane/drain", {**BY, "replica": "x", "reason": "stop"}, "reason"),
    ("/raylane/controls", {**BY, "model": "demo", "kind": "hold", "replicas": 0, "for_s": 60}, None),
    ("/raylane/controls", {**BY, "model": "demo", "kind": "hold", "replicas": -1, "for_s": 60}, "replicas"),
    ("/raylane/controls", {**BY, "model": "demo", "kind": "pin", "replicas": 2, "for_s": 0}, "for_s"),
    ("/raylane/controls", {**BY, "model": "demo", "kind": "pin", "replicas": 2, "for_s": 0.9}, "for_s"),
    ("/raylane/controls", {**BY, "model": "demo", "kind": "pin", "replicas": 2, "for_s": 8 * 86_400}, "for_s"),
    ("/raylane/controls", {**BY, "model": "demo", "kind": "release", "replicas": 2, "for_s": 60}, "kind"),
    ("/raylane/controls", {**BY, "model": "demo", "kind": "pin", "replicas": 5, "for_s": 60}, "replicas"),
    ("/raylane/release", {**BY, "model": ""}, "model"),
]


async def test_wrong_orders_change_nothing_and_say_what_is_allowed(
    make_rig: MakeRig, subtests: pytest.Subtests
) -> None:
    rig = await make_rig(models=SCALED)
    for path, body, param in WRONG:
        with subtests.test(path=path, body=body):
            status, answer = await post(rig, path, body)
            error = openai_error(json.dumps(answer).encode())
            assert (status, error["param"]) == (400, param)
            assert "allowed" in error["message"] or body == b"{"
    hold = {"kind": "hold", "replicas": 1, "for_s": 60}
    for path, body in (("/raylane/controls", hold), ("/raylane/release", {})):
        status, answer = await post(rig, path, {**BY, **body, "model": "other"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
    for path in ("/raylane/controls", "/raylane/release", "/raylane/cordon", "/raylane/drain"):
        assert (await post(rig, path, BY, secret="wrong"))[0] == 401, "also from this machine"
    assert (await rig.directory.orders()).acts == ()


async def test_holds_and_pins_are_in_force_shown_and_counted(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    status, answer = await post(
        rig, "/raylane/controls", {**BY, "model": "demo", "kind": "hold", "replicas": 2, "for_s": 600}
    )
    assert status == 200
    assert "note" not in answer
    await post(rig, "/raylane/controls", {**BY, "model": "demo", "kind": "pin", "replicas": 3, "for_s": 60})
    shown = (await rig.page("/raylane/controls"))["controls"]
    assert [(one["model"], one["kind"], one["replicas"], one["by"], one["why"]) for one in shown] == [
        ("demo", "hold", 2, "me", "a test"),
        ("demo", "pin", 3, "me", "a test"),
    ]
    assert 500 < shown[0]["until_unix_s"] - time.time() <= 600
    assert [one["kind"] for one in (await model(rig))["controls"]] == ["hold", "pin"]
    assert await rig.samples("raylane_control") == {'{kind="hold",model="demo"}': 2, '{kind="pin",model="demo"}': 3}
    until_s = await rig.samples("raylane_control_until_seconds")
    assert until_s['{kind="hold",model="demo"}'] > time.time() + 500
    reported = (await rig.directory.orders()).of("demo", time.time())
    assert [(control.kind.value, control.replicas) for control in reported] == [("hold", 2), ("pin", 3)]
    assert (await post(rig, "/raylane/release", {**BY, "model": "demo"}))[0] == 200
    assert (await rig.page("/raylane/controls"))["controls"] == []
    assert await rig.samples("raylane_control") == {}
    assert await rig.samples("raylane_operator_acts_total") == {
        '{kind="hold",model="demo"}': 1,
        '{kind="pin",model="demo"}': 1,
        '{kind="release",model="demo"}': 1,
    }


async def test_a_control_ends_by_itself(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    await post(rig, "/raylane/controls", {**BY, "model": "demo", "kind": "pin", "replicas": 3, "for_s": 0.2})
    await asyncio.sleep(0.25)
    assert (await model(rig))["controls"] == []
    assert await rig.samples("raylane_control") == {}


async def test_what_may_be_held_follows_the_spec_in_force(make_rig: MakeRig) -> None:
    rig = await make_rig(models=SCALED)
    hold = {**BY, "model": "demo", "kind": "hold", "replicas": 6, "for_s": 600}
    assert (await post(rig, "/raylane/controls", hold))[0] == 400
    spec = rig.service.spec.model_dump(mode="json")
    spec["models"][0]["replicas"]["max"] = 8
    await rig.directory.apply(json.dumps(spec))
    await until(lambda: rig.service.spec.models[0].replicas.max == 8)
    assert (await post(rig, "/raylane/controls", hold))[0] == 200


async def test_a_replica_drains(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    go = asyncio.Event()
    for engine in rig.engines:
        engine.behave = waiting(go)
    running = [asyncio.create_task(rig.ask()) for _ in range(4)]
    await until(lambda: [engine.open for engine in rig.engines] == [2, 2])
    first = rig.engines[0]
    status, answer = await post(rig, "/raylane/drain", {**BY, "replica": first.facts.replica_id})
    assert (status, answer) == (200, {"draining": [first.facts.replica_id], "failed": {}, "audited": True})
    assert first.drained == ["operator"]
    await until(lambda: rig.owner.snapshot().replicas[0].status == "draining")
    later = [asyncio.create_task(rig.ask()) for _ in range(2)]
    await until(lambda: rig.engines[1].open == 4)
    go.set()
    assert {status for status, _ in await asyncio.gather(*running, *later)} == {200}
    assert used(rig) == [2, 4]
    assert (await rig.directory.orders()).acts == (("demo", ActKind.DRAIN, 1),)


async def test_without_a_directory_nothing_is_ordered_but_a_drain(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*arguments: object) -> None:
        raise OSError("no head")

    monkeypatch.setattr(rig.directory, "order", gone)
    name = rig.engines[0].facts.replica_id
    status, answer = await post(rig, "/raylane/cordon", {**BY, "replica": name})
    assert (status, answer["error"]["code"]) == (503, "no_directory")
    assert rig.owner.snapshot().replicas[0].status == "ready"
    status, answer = await post(rig, "/raylane/drain", {**BY, "replica": name})
    assert (status, answer) == (200, {"draining": [name], "failed": {}, "audited": False})
    assert rig.engines[0].drained == ["operator"]


async def test_a_replica_that_does_not_answer_is_told(rig: Rig) -> None:
    dead = FakeEngine()
    await rig.add(dead)
    name = dead.facts.replica_id
    feed = rig.gateway.feeds.by_replica[name]
    await dead.kill()
    rig.gateway.feeds.by_replica[name] = feed
    status, answer = await post(rig, "/raylane/drain", {**BY, "replica": name})
    rig.gateway.feeds.by_replica.pop(name, None)
    assert (status, answer["draining"]) == (200, [])
    assert "does not answer" in answer["failed"][name]
