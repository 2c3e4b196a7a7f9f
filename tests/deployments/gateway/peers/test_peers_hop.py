"""A request that a peer serves: what its client, both ledgers and the metrics see, and what happens when either end
goes away."""

import asyncio
import json
import time
from typing import Any

import pytest

from deployments.gateway.entrance import digest_of
from deployments.peering.reception import Reception
from deployments.telemetry.ledger import RequestOutcome, Stage
from tests.deployments.gateway.fake_engine import DONE, FakeEngine, dying, event, pieces, waiting, whole
from tests.deployments.gateway.peers.cells import Cells, MakeCells, metrics_of, peering_of, stop_asking
from tests.deployments.gateway.rig import ASK, CHAT, PATIENCE_S, STREAM, Rig, free_port, until
from tests.live.cells import Link
from tests.otlp import attributes, collecting, seconds


def decided(rig: Rig) -> list[tuple[str, str]]:
    return [(one.verdict.value, one.reason) for one in rig.closed[-1].decisions]


async def test_both_ledgers_say_where_and_why(cells: Cells) -> None:
    home, peer = cells["eu"], cells["us"]
    await home.ask(STREAM, headers={"x-request-id": "mine"})
    at_home, there = await home.last(), await peer.last()
    assert (at_home.request_id, at_home.region, at_home.home, at_home.outcome) == ("mine", "us", "", RequestOutcome.OK)
    assert (there.request_id, there.region, there.home, there.outcome) == ("mine", "us", "eu", RequestOutcome.OK)
    assert ("handed_over", "no_replica") in decided(home)
    assert ("guest", "no_replica") in decided(peer)
    assert list(at_home.stages())[:3] == [Stage.GATEWAY, Stage.LANE, Stage.HOP]
    assert Stage.HOP not in there.stages()
    assert at_home.finished is not None
    assert at_home.finished.usage.output_tokens == 3, "the peer's engine has counted them"
    assert at_home.stages()[Stage.HOP] >= 0
    record = at_home.record()
    assert (record["region"], record["home"], record["replica"]) == ("us", None, None)
    answered = {(verdict, reason) for verdict, reason in decided(home)}
    assert {("offered", "no_replica"), ("handed_over", "no_replica")} <= answered


async def test_an_answer_that_is_not_streamed_comes_whole(cells: Cells) -> None:
    status, payload, headers = await cells["eu"].answered(CHAT, "/v1/chat/completions")
    assert (status, json.loads(payload)["choices"][0]["text"]) == (200, "abc")
    assert int(headers["content-length"]) == len(payload)
    assert headers["x-raylane-region"] == "us"
    assert cells["us"].engines[0].seen[0].path == "/v1/chat/completions"


async def test_the_body_arrives_as_it_was_sent(cells: Cells) -> None:
    body = b' {"model": "demo",\n "prompt": "one two", "max_tokens": 3, "unknown": [1, 2.50]} '
    assert (await cells["eu"].ask(body))[0] == 200
    assert cells["us"].engines[0].seen[0].body == body


@pytest.mark.whole
async def test_a_long_body_crosses_a_slow_link_and_bars_the_peer_for_nobody(make_cells: MakeCells) -> None:
    """8 MB at 20 Mbit/s take longer than a peer has to answer a short offer. Other requests share the link."""
    cells, port = make_cells(), free_port()
    with Link(cells.spec_of("us").gateway.port, port, bytes_per_s=20e6 / 8):
        home, peer = await cells.start("eu", engines=0), await cells.start("us", gateway={"port": port})
        await cells.met()
        async with asyncio.timeout(30):
            long, statuses = asyncio.create_task(home.ask({**STREAM, "user": "x" * 8_000_000})), set()
            while not long.done():
                statuses.add((await home.ask(STREAM))[0])
            statuses.add((await long)[0])
    assert statuses == {200}
    await until(lambda: len(home.closed) == len(peer.engines[0].seen))
    for ledger in home.closed:
        verdicts = [one.verdict.value for one in ledger.decisions]
        assert [one for one in verdicts if one != "queued"] == ["offered", "handed_over"]


async def test_trace_context_crosses_and_other_headers_do_not(cells: Cells) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": trace, "tracestate": "a=1", "authorization": "Bearer secret-key", "x-other": "1"}
    assert (await cells["eu"].ask(STREAM, headers=headers))[0] == 200
    seen = cells["us"].engines[0].seen[0].headers
    assert (seen["traceparent"], seen["tracestate"]) == (trace, "a=1")
    assert "secret-key" not in str(seen)
    assert "x-other" not in seen


async def test_the_peers_spans_are_in_the_trace_and_follow_what_home_has_decided(make_cells: MakeCells) -> None:
    with collecting() as collector:
        cells = make_cells(tracing={"endpoint": collector.endpoint, "ratio": 0.5})
        home, peer = await cells.pair()
        for low_bits in ("0" * 16, "f" * 16):
            given = f"00-{'a' * 16}{low_bits}-b7ad6b7169203331-00"
            assert (await home.ask(STREAM, headers={"traceparent": given}))[0] == 200
        await home.last(2)
        await peer.last(2)
        await asyncio.gather(home.gateway.stop(), peer.gateway.stop())
    at_home, there = sorted(collector.named("text_completion"), key=lambda span: len(attributes(span)))
    assert there.parent_span_id == at_home.span_id
    sampled, other = (one.headers["traceparent"] for one in peer.engines[0].seen)
    assert sampled == f"00-{'a' * 16}{'0' * 16}-{there.span_id.hex()}-01"
    assert other.endswith("-00")
    for span, ledgers in ((at_home, home.closed), (there, peer.closed)):
        stages = [one for one in collector.spans if one.parent_span_id == span.span_id and one is not span]
        found = sum(seconds(one) for one in stages if one.name in list(Stage))
        assert found + ledgers[0].unaccounted_s == pytest.approx(seconds(span), abs=1e-6)
    assert [(one.name in list(Stage)) for one in collector.spans].count(False) == 2


async def test_an_engines_error_is_the_clients(cells: Cells) -> None:
    error = {"error": {"message": "too hot", "type": "BadRequestError", "param": "temperature", "code": 400}}
    cells["us"].engines[0].behave = whole(json.dumps(error).encode(), status=400)
    for body in (ASK, STREAM):
        status, found = await cells["eu"].error(body)
        assert (status, found["code"], found["param"]) == (400, "invalid_value", "temperature")
    assert (await cells["eu"].last(2)).outcome is RequestOutcome.REFUSED


async def test_a_client_that_leaves_frees_the_peers_engine(cells: Cells) -> None:
    engine = cells["us"].engines[0]
    engine.behave = pieces(event("a"), asyncio.Event())
    client = await cells["eu"].connect(STREAM)
    await client.answer_head()
    client.leave()
    await until(lambda: engine.aborted == 1, within_s=2)
    assert (await cells["us"].last()).outcome is RequestOutcome.CANCELLED
    assert (await cells["eu"].last()).outcome is RequestOutcome.CANCELLED


@pytest.mark.whole
async def test_a_client_that_leaves_while_its_request_waits_there_frees_its_place(
    make_cells: MakeCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reception, "_late_or_loaded", lambda self, hop, here: None)  # no wait is known to it yet
    cells = make_cells(peering={"secret": {"kind": "file"}, "digest_period_s": 0.1, "half_life_s": 10, "max_age_s": 20})
    _, peer = await cells.pair()
    await asyncio.sleep(0.3)
    stop_asking(cells["eu"])  # it believes from now on that the peer has room
    engine = peer.engines[0]
    engine.behave = waiting(asyncio.Event())
    running = [await peer.connect(ASK) for _ in range(4)]
    await until(lambda: engine.open == 4)
    client = await cells["eu"].connect(STREAM)
    await until(lambda: sum(lane.waiting for lane in peer.owner.snapshot().lanes) == 1)
    client.leave()
    await until(lambda: sum(lane.waiting for lane in peer.owner.snapshot().lanes) == 0, within_s=2)
    for one in running:
        one.leave()
    assert engine.open <= 4


@pytest.mark.whole
async def test_a_waiting_client_gets_heartbeats_from_home(make_cells: MakeCells) -> None:
    cells = make_cells(gateway={"heartbeat_s": 0.3})
    await cells.pair()
    go = asyncio.Event()
    cells["us"].engines[0].behave = waiting(go, pieces(event("a"), DONE))
    client = await cells["eu"].connect(STREAM)
    status, headers = await client.answer_head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    go.set()
    text = await client.reader.readuntil(b"[DONE]\n\n")
    assert b": handed over to region us, waiting for the first token" in text
    assert event("a") in text


async def test_the_peers_gateway_dies_mid_stream(cells: Cells) -> None:
    cells["us"].engines[0].behave = pieces(event("a"), asyncio.Event())
    client = await cells["eu"].connect(STREAM)
    await client.answer_head()
    assert event("a") in await client.reader.readuntil(b"\n\n")
    for connection in list(cells["us"].gateway._server._server.server_state.connections):
        connection.transport.abort()
    rest = await asyncio.wait_for(client.reader.readuntil(b"[DONE]\n\n"), 5)
    assert b'"code": "peer_lost"' in rest
    ledger = await cells["eu"].last()
    assert (ledger.error, ledger.outcome) == ("peer_lost", RequestOutcome.FAILED)
    assert metrics_of(cells["eu"])["raylane_hops_broken_total", "demo", "us", "answering"] == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_the_peers_replica_dies_mid_stream(cells: Cells, path: str) -> None:
    cells["us"].engines[0].behave = dying(event("a"))
    status, body = await cells["eu"].ask({**CHAT, "input": "one two three", "stream": True}, path)
    assert status == 200
    assert body.startswith(event("a"))
    assert b'"replica_lost' in body
    assert body.endswith(DONE) is (path == "/v1/chat/completions")
    assert (await cells["eu"].last()).error == "replica_lost"
    (suspect,) = cells["eu"].owner.scheduler.suspects.all(time.monotonic())
    assert (suspect.deaths, suspect.answered) == (1, True), "it counts at home"


async def test_digests_may_be_far_apart(make_cells: MakeCells) -> None:
    """Linux asks at most 127 times whether a silent connection is there."""
    cells = make_cells(peering={"secret": {"kind": "file"}, "digest_period_s": 0.1, "max_age_s": 200.0})
    await cells.pair()
    async with asyncio.timeout(PATIENCE_S):
        assert (await cells["eu"].ask(STREAM))[0] == 200


async def test_a_turn_that_fails_does_not_end_the_exchange(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    peering, failures = peering_of(cells["eu"]), [AssertionError("a fault")]
    ask = peering.ask

    def flaky() -> object:
        if failures:
            raise failures.pop()
        return ask()

    monkeypatch.setattr(peering, "ask", flaky)
    await until(lambda: not failures)
    heard_s = peering.core.peers.by_cell["us"].heard_s
    await until(lambda: peering.core.peers.by_cell["us"].heard_s != heard_s)


async def test_a_peer_lost_before_the_first_byte_costs_only_time(cells: Cells) -> None:
    """The request waits at home again, and is served when home has a replica."""
    home, peer = cells["eu"], cells["us"]
    peer.engines[0].behave = waiting(asyncio.Event())
    asked = asyncio.create_task(home.ask(STREAM))
    await until(lambda: peer.engines[0].open == 1)
    await until(lambda: "handed_over" in [decision.verdict.value for decision in _open(home)])
    for connection in list(peer.gateway._server._server.server_state.connections):
        connection.transport.abort()
    await until(lambda: ("hop_broke", "taken") in [(d.verdict.value, d.reason) for d in _open(home)])
    await home.add(FakeEngine())
    status, body = await asked
    assert (status, body.endswith(DONE)) == (200, True)
    ledger = await home.last()
    assert (ledger.region, ledger.outcome) == ("eu", RequestOutcome.OK)
    assert ledger.stages()[Stage.HOP] > 0
    await until(lambda: peer.engines[0].aborted == 1)


def _open(rig: Rig) -> list[Any]:
    return [decision for flow in rig.service.flows._flows for decision in flow.ledger.decisions]


async def test_a_peer_that_is_not_there_leaves_the_request_at_home(make_cells: MakeCells) -> None:
    cells = make_cells(peering={"secret": {"kind": "file"}, "digest_period_s": 0.1, "half_life_s": 10, "max_age_s": 20})
    home, peer = await cells.pair()
    await peer.gateway._server.stop(0.1)
    asked = asyncio.create_task(home.ask(ASK))
    await until(lambda: "raylane_hops_broken_total" in {key[0] for key in metrics_of(home)})
    await home.add(FakeEngine())
    assert (await asked)[0] == 200
    assert (await home.last()).region == "eu"


async def test_home_stays_home_while_it_is_in_time(make_cells: MakeCells) -> None:
    cells = make_cells()
    home, peer = await cells.start("eu"), await cells.start("us")
    await cells.met()
    async with home.post("/v1/completions", STREAM) as response:
        assert (response.status, response.headers["x-raylane-region"]) == (200, "eu")
    assert not peer.engines[0].seen
    assert not peering_of(home).core.away
    status, error = await home.error({**ASK, "model": "other"})
    assert (status, error["code"]) == (404, "model_not_found")
    assert (await home.answered({**ASK, "model": "other"}))[2]["x-raylane-region"] == "eu", "errors carry it, too"


@pytest.mark.whole
async def test_a_gateway_that_does_not_own_the_model_makes_the_hop(make_cells: MakeCells) -> None:
    """Home's client is at another gateway than the owner, and so is the peer's guest."""
    cells = make_cells(
        gateway={"replicas": 2, "lame_duck_s": 0.1},
        peering={"secret": {"kind": "file"}, "digest_period_s": 0.1, "max_age_s": 10},
    )
    home = await cells.start("eu", engines=0)
    await cells.start("us")
    second = await cells.add_gateway("eu")
    await cells.met()
    asks = [asyncio.create_task(second.ask(STREAM)) for _ in range(4)]
    assert {status for status, _ in await asyncio.gather(*asks)} == {200}
    await second.last(4)
    assert {ledger.region for ledger in second.closed} == {"us"}
    assert metrics_of(second)["raylane_hand_overs_total", "demo", "us", "no_replica"] == 4
    assert metrics_of(cells["us"])["raylane_guests_total", "demo", "eu"] == 4
    assert all(ledger.finished is not None for ledger in second.closed), "what the peer counted finds its gateway"
    await until(lambda: home.owner.snapshot().counted == 4)
    assert metrics_of(home)["raylane_digest_age_seconds", "demo", "us"] < 1


async def test_what_is_counted(cells: Cells) -> None:
    for body in (ASK, STREAM):
        assert (await cells["eu"].ask(body))[0] == 200
    await cells["eu"].last(2)
    await cells["us"].last(2)
    found = metrics_of(cells["eu"])
    assert found["raylane_hand_overs_total", "demo", "us", "no_replica"] == 2
    assert 0 < found["raylane_peer_rtt_seconds", "demo", "us"] < 1
    assert metrics_of(cells["us"])["raylane_guests_total", "demo", "eu"] == 2
    assert not [key for key in found if key[0] in ("raylane_hops_broken_total", "raylane_hops_in_flight")]
    assert not [key for key in found if key[0] == "raylane_stays_total"], "none of them stayed"
    at_home = cells["eu"].owner.snapshot()
    assert (at_home.counted, at_home.output_tokens) == (2, 6), "what the peer's engine counted is learned at home"


async def test_two_cells_count_a_tenants_limit_together(make_cells: MakeCells) -> None:
    limited = {"name": "limited", "keys": [digest_of("key")], "requests_per_minute": 4}
    cells = make_cells(tenants=[limited])
    eu, us = await cells.start("eu"), await cells.start("us")
    await cells.met()

    def heard() -> float:
        digest = peering_of(us).core.peers.by_cell["eu"].digest
        return sum(use.requests for one in digest.models for use in one.tenants) if digest else 0.0

    key = {"authorization": "Bearer key"}
    assert [(await eu.ask(headers=key))[0] for _ in range(5)] == [200] * 4 + [429]
    await until(lambda: heard() >= 4)
    assert (await us.ask(headers=key))[0] == 429, "all of the minute's share is used elsewhere"
