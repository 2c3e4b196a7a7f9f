"""A replica dies, or its engine does, before a byte of the answer has reached the client: the request is placed again;
where two died, it is a query of death."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cli.status import query_of_death_lines
from deployments.gateway.connection import Digests
from deployments.gateway.flow import EndCause
from deployments.gateway.operators.report import SuspectReport
from deployments.protocol import ENGINE_DIED_HEADER, ReplicaState
from deployments.telemetry.ledger import RequestOutcome
from deployments.telemetry.verdicts import RequestVerdict
from deployments.wire import from_plain
from tests.deployments.gateway.fake_engine import DONE, Behaviour, FakeEngine, event, good, pieces, waiting, whole
from tests.deployments.gateway.rig import ASK, STREAM, MakeRig, Rig, openai_error, until

both = pytest.mark.parametrize("ask", [ASK, STREAM], ids=["whole", "stream"])


def with_dead_engine(ask: dict[str, Any], engine: FakeEngine | None = None) -> Behaviour:
    """What a replica's guard lets through of an engine that has died."""
    error = (
        b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}'
    )

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        mark = {ENGINE_DIED_HEADER: "true"}
        if engine is not None:
            engine.state = ReplicaState.UNHEALTHY
        if not ask.get("stream"):
            return web.Response(status=500, body=error, content_type="application/json", headers=mark)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **mark})
        await response.prepare(request)
        await response.write(b"data: " + error + b"\n\n" + DONE)
        return response

    return behave


def killed_by(prompt: str, engine: FakeEngine, *parts: bytes) -> Behaviour:
    """Of an engine whose process ends at that prompt, after those parts of the answer."""

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["prompt"] != prompt:
            return await good(request, body)
        if parts:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for part in parts:
                await response.write(part)
            await asyncio.sleep(0.05)
        ends.append(asyncio.create_task(engine.kill()))
        await asyncio.sleep(60)
        raise AssertionError("it lives")

    ends: list[asyncio.Task[None]] = []
    return behave


async def two(make_rig: MakeRig, **spec: Any) -> tuple[Rig, asyncio.Event]:
    """A gateway with two engines that answer nothing before the event."""
    rig = await make_rig(engines=2, **spec)
    hold = asyncio.Event()
    for engine in rig.engines:
        engine.behave = waiting(hold)
    return rig, hold


async def asked(rig: Rig, ask: dict[str, Any], **options: Any) -> tuple[asyncio.Task[Any], FakeEngine, FakeEngine]:
    """A request under way, the engine that has it, and the other one."""
    task = asyncio.create_task(rig.answered(ask, **options))
    await until(lambda: any(engine.open for engine in rig.engines))
    first, second = sorted(rig.engines, key=lambda engine: -engine.open)
    return task, first, second


@both
async def test_a_killed_replica_s_request_is_placed_again(make_rig: MakeRig, ask: dict[str, Any]) -> None:
    rig, hold = await two(make_rig)
    task, victim, survivor = await asked(rig, ask)
    await victim.kill()
    await until(lambda: survivor.open)
    hold.set()
    status, payload, headers = await task
    assert (status, headers["x-raylane-resubmitted"]) == (200, "replica_lost")
    assert headers["x-raylane-placement"].startswith(survivor.facts.replica_id)
    assert payload.count(b"data: ") == (4 if "stream" in ask else 0)
    ledger = await rig.last()
    assert (ledger.outcome, ledger.attempts, ledger.resubmitted) == (RequestOutcome.OK, 2, "replica_lost")
    again = [decision for decision in ledger.decisions if decision.verdict is RequestVerdict.RESUBMITTED]
    assert [(decision.reason, decision.facts["replica"]) for decision in again] == [
        ("replica_lost", victim.facts.replica_id)
    ]
    ids = [seen.headers["x-request-id"] for engine in (victim, survivor) for seen in engine.seen]
    assert [one.rpartition("-")[2] for one in ids] == ["1", "2"]
    assert await rig.samples("raylane_resubmitted_total") == {'{model="demo",reason="replica_lost"}': 1}


@both
async def test_the_feed_s_word_of_a_loss_is_enough(make_rig: MakeRig, ask: dict[str, Any]) -> None:
    rig, hold = await two(make_rig)
    task, victim, survivor = await asked(rig, ask)
    rig.dispatcher.replica_lost(victim.facts.replica_id)  # its machine is gone, and no connection broke
    await until(lambda: survivor.open)
    await until(lambda: victim.aborted)
    hold.set()
    assert (await task)[0] == 200


@both
async def test_a_query_of_death_and_its_retries_cost_two_replicas(make_rig: MakeRig, ask: dict[str, Any]) -> None:
    rig = await make_rig(engines=3)
    for engine in rig.engines:
        engine.behave = killed_by("deadly", engine)
    for _ in range(10):
        status, payload, headers = await rig.answered({**ask, "prompt": "deadly"})
        assert status == 422
        assert 595 <= int(headers["retry-after"]) <= 600
        error = openai_error(payload)
        assert (error["code"], error["type"]) == ("query_of_death", "invalid_request_error")
        assert "two replicas of model 'demo' died" in error["message"]
    assert sum(len(engine.seen) for engine in rig.engines) == 2
    assert (await rig.ask(ask))[0] == 200


async def test_a_retry_is_known_by_its_bytes_and_its_path(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=3)
    for engine in rig.engines:
        engine.behave = killed_by(str(ASK["prompt"]), engine)
    assert (await rig.error(ASK))[0] == 422
    for engine in rig.engines:
        engine.behave = good
    assert (await rig.error(ASK))[0] == 422
    assert (await rig.ask({**ASK, "user": "another"}))[0] == 200
    assert Digests("a").of("/p", b"x") != Digests("b").of("/p", b"x")
    assert Digests("a").of("/p", b"x") != Digests("a").of("/q", b"x")


async def test_a_client_that_had_a_part_of_its_answer_twice_is_told_at_its_third_try(make_rig: MakeRig) -> None:
    """...and the gateway's books, its log and its metrics name the body by its digest."""
    rig = await make_rig(engines=3)
    for engine in rig.engines:
        engine.behave = killed_by(str(ASK["prompt"]), engine, event("a"))
    for _ in range(2):
        assert b"replica_lost" in (await rig.ask(STREAM))[1]
    status, error = await rig.error(STREAM)
    assert (status, error["code"]) == (422, "query_of_death")
    digest = (await rig.last()).digest
    assert digest == rig.dispatcher.suspicions.all()[-1].key
    metrics, (model,) = await rig.page("/metrics"), (await rig.page("/raylane/status"))["models"]
    assert 'raylane_queries_of_death_total{model="demo"} 1.0' in metrics
    assert 'raylane_suspects{model="demo",standing="banned"} 1.0' in metrics
    assert 'raylane_rejections_total{cause="query_of_death",' in metrics
    (unresponsive,) = model["suspects"]
    assert (unresponsive["digest"], unresponsive["deaths"], unresponsive["banned"]) == (digest, 2, True)
    suspect = from_plain(unresponsive, SuspectReport)
    (line,) = query_of_death_lines([suspect])
    assert line.startswith(f"[red]query of death {digest}: refused for ")
    assert query_of_death_lines([suspect] * 8)[-1] == "[red]...and 3 more of them[/]"
    assert query_of_death_lines([replace(suspect, banned=False)]) == []


@both
async def test_a_dead_engine_in_a_living_replica(make_rig: MakeRig, ask: dict[str, Any]) -> None:
    rig = await make_rig(engines=2)
    dead = [with_dead_engine(ask)]
    for engine in rig.engines:
        engine.behave = lambda request, body: (dead.pop() if dead else good)(request, body)
    status, payload = await rig.ask(ask)
    assert (status, b"error" in payload) == (200, False)
    ledger = await rig.last()
    assert (ledger.outcome, ledger.attempts, ledger.resubmitted) == (RequestOutcome.OK, 2, "engine_died")
    assert {len(engine.seen) for engine in rig.engines} == {1}  # not there again


@both
async def test_two_dead_engines_are_a_query_of_death(make_rig: MakeRig, ask: dict[str, Any]) -> None:
    rig = await make_rig(engines=2)
    for engine in rig.engines:
        engine.behave = with_dead_engine(ask, engine)
    _, payload = await rig.ask(ask)
    assert b'"code": "query_of_death"' in payload
    assert b"EngineCore" not in payload
    assert sum(len(engine.seen) for engine in rig.engines) == 2
    assert (await rig.last()).resubmitted == "engine_died"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
async def test_an_engine_that_dies_within_a_stream_is_a_lost_replica(rig: Rig, path: str) -> None:
    died = b'data: {"error":{"message":"the engine died","type":"server_error","param":null,"code":"engine_died"}}\n\n'
    rig.engines[0].behave = pieces(event("a"), died, DONE)
    _, payload = await rig.ask({**STREAM, "input": "x"}, path)
    assert payload.startswith(event("a"))
    (error,) = [json.loads(line.removeprefix(b"data: ")) for line in payload.splitlines() if b"replica_lost" in line]
    assert error.get("error", error)["code"] == "replica_lost"
    assert b"engine_died" not in payload
    ledger = await rig.last()
    assert (ledger.outcome, ledger.error) == (RequestOutcome.FAILED, "replica_lost")


async def test_an_error_of_the_request_s_own_is_not_placed_again(make_rig: MakeRig) -> None:
    rig = await make_rig(engines=2)
    for engine in rig.engines:
        engine.behave = whole(b'{"error":{"message":"boom","code":500}}', status=500)
    assert (await rig.ask())[0] == 500
    assert sum(len(engine.seen) for engine in rig.engines) == 1


async def test_its_age_counts(make_rig: MakeRig) -> None:
    rig, _ = await two(make_rig, timeouts={"queue_wait_s": 0.2})
    task, victim, survivor = await asked(rig, ASK)
    request = next(iter(rig.owner.scheduler.leases.values()))[0].request
    await until(lambda: asyncio.get_running_loop().time() > request.expires_s)  # both clocks are the monotonic one
    await victim.kill()
    status, payload, _ = await task
    assert (status, b"replica_lost" in payload) == (502, True)
    assert not survivor.seen


async def test_a_client_that_left_in_the_same_moment_is_not_served(make_rig: MakeRig) -> None:
    rig, hold = await two(make_rig)
    task, victim, survivor = await asked(rig, ASK)
    rig.dispatcher.replica_lost(victim.facts.replica_id)
    (flow,) = rig.service.flows._flows
    flow.abort(EndCause.CLIENT_GONE)
    assert (await rig.last()).outcome is RequestOutcome.CANCELLED
    assert not survivor.seen
    hold.set()
    with pytest.raises(aiohttp.ClientError):
        await task
