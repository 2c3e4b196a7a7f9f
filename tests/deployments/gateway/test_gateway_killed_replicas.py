"""Replicas that are killed: streams end with an error, what was not begun goes elsewhere, and nothing is left."""

import asyncio
import json
from typing import Any

import pytest

from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, dying, event, good, pieces, waiting
from tests.deployments.gateway.rig import ASK, STREAM, MakeRig, Rig, until
from tests.deployments.gateway.test_gateway_timeouts import last_events


async def test_death_in_a_stream_is_never_unresponsive_nor_inside_an_event(rig: Rig, subtests: pytest.Subtests) -> None:
    for number, tail in enumerate([b"", b"data: {", event("c")[:-1], event("c")[:-2], b"d"]):
        with subtests.test(tail=tail):
            rig.engines[0].behave = dying(event("a") + event("b"), *([tail] if tail else []), 0.05)
            status, payload = await rig.ask(STREAM)
            assert status == 200
            before, error = last_events(payload)
            assert before == event("a") + event("b")
            assert error["code"] == "replica_lost"
            ledger = await rig.last(number + 1)
            assert (ledger.outcome, ledger.error) == (RequestOutcome.FAILED, "replica_lost")
            assert rig.owner.snapshot().endings["failed"] == number + 1


async def test_death_in_a_response_stream_has_the_named_form(rig: Rig) -> None:
    rig.engines[0].behave = dying(
        b'event: response.created\ndata: {"type":"response.created"}\n\n', b"event: respon", 0.05
    )
    _, payload = await rig.ask({"model": "demo", "input": "x", "stream": True}, "/v1/responses")
    first, last = payload.split(b"\n\n", 1)
    assert first.startswith(b"event: response.created")
    name, data = last.split(b"\n", 1)
    assert name == b"event: error"
    error = json.loads(data.removeprefix(b"data: "))
    assert (error["type"], error["code"], error["param"]) == ("error", "replica_lost", None)


@pytest.mark.whole
@pytest.mark.parametrize("ask", [ASK, STREAM], ids=["whole", "stream"])
async def test_a_killed_replica(make_rig: MakeRig, ask: dict[str, Any]) -> None:
    """Those to whom it streamed are told at once, those who have no byte of their answer wait again; the others, and
    those who wait, are unharmed."""
    rig = await make_rig(engines=2)
    release = asyncio.Event()
    for engine in rig.engines:
        engine.behave = pieces(event("a"), release, event("b"), DONE) if "stream" in ask else waiting(release)
    running = [asyncio.create_task(rig.ask(ask)) for _ in range(8)]
    await until(lambda: rig.engines[0].open == rig.engines[1].open == 4)
    late = [asyncio.create_task(rig.ask()) for _ in range(6)]
    await until(lambda: rig.owner.snapshot().lanes[0].waiting == 6)
    victim, survivor = rig.engines
    await victim.kill()
    if "stream" in ask:
        await until(lambda: sum(task.done() for task in running) == 4, within_s=2)
        for task in [task for task in running if task.done()]:
            status, payload = task.result()
            before, error = last_events(payload)
            assert (status, before, error["code"]) == (200, event("a"), "replica_lost")
    else:
        await until(
            lambda: rig.owner.snapshot().aside == 6 + 4
        )  # all have one body: what runs on the survivor settles it for all
        assert not any(task.done() for task in running)
    survivor.behave = good
    release.set()
    assert [status for status, _ in await asyncio.gather(*running)] == [200] * 8
    assert [status for status, _ in await asyncio.gather(*late)] == [200] * 6
    await until(lambda: len(rig.gateway.feeds.by_replica) == 1)
    assert [replica.replica_id for replica in rig.owner.snapshot().replicas] == [survivor.facts.replica_id]


async def test_a_replica_lost_between_its_placement_and_the_task(rig: Rig) -> None:
    """The request did not see its lease: it waits anew instead of failing."""
    owner = rig.owner
    submit = owner.submit

    def submit_and_lose(*arguments: Any) -> None:
        submit(*arguments)
        owner.submit = submit  # type: ignore[method-assign]
        rig.dispatcher.replica_lost(rig.engines[0].facts.replica_id)

    owner.submit = submit_and_lose  # type: ignore[method-assign]
    waits = asyncio.create_task(rig.ask())
    await until(lambda: owner.snapshot().lanes[0].waiting == 1)
    rig.dispatcher.replica_up(rig.engines[0].facts)
    assert (await waits)[0] == 200
    assert owner.snapshot().endings["failed"] == 1
