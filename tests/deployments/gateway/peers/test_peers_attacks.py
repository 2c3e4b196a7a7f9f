"""Who may ask a peer's pages, and what a peer that has the secret can do to a cell: each attack is refused or ended."""

import asyncio
import dataclasses
import io
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from deployments.gateway.entrance import ACCESS
from deployments.gateway.peers.auth import CLOCK_SKEW_S, Call, CallRefusal, Signer
from deployments.gateway.peers.client import HOP_PATH
from deployments.gateway.peers.digests import DIGEST_PATH
from deployments.gateway.peers.envelope import HopEnvelope
from deployments.gateway.peers.frames import FrameKind
from deployments.gateway.peers.view import VIEW_PATH
from deployments.peering import HandOverReason, HopFacts
from tests.deployments.gateway.fake_engine import FakeEngine, event, waiting
from tests.deployments.gateway.peers.cells import PEERS_SECRET, Cells, known_to, metrics_of, peering_of
from tests.deployments.gateway.peers.fake_peer import HEAD, FakePeer, Taken
from tests.deployments.gateway.rig import ASK, RawClient, Rig, until
from tests.deployments.gateway.test_gateway_access import paths, servers

STREAM = {**ASK, "stream": True}
BODY = json.dumps(STREAM).encode()
MakeCells = Callable[..., Cells]


def facts_of(cells: Cells, number: int = 1, **changes: Any) -> HopFacts:
    """Of a hop from `eu` that `us` would take."""
    marks = peering_of(cells["us"]).core.rules.marks_of("demo", "interactive", "")
    reason, regions = HandOverReason.NO_REPLICA, frozenset(cells.names)
    times = 0.0, 0.5, 20.0, 0.5
    epoch = peering_of(cells["us"]).core.epoch
    given = HopFacts("r", "eu", 7, number, 1, reason, "demo", "interactive", "", regions, marks, *times, epoch)
    return dataclasses.replace(given, **changes)


async def call(
    rig: Rig, path: str, body: bytes, signer: Signer | None = None, to: str = "us", hop: str = "", **changed: str
) -> tuple[int, dict[str, Any] | bytes]:
    """A call of `rig`, signed by `signer` (None: not at all), with other headers."""
    headers = {} if signer is None else dict(signer.call("POST", path, to, body, hop)[0])
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(rig.url + path, data=io.BytesIO(body), headers=headers) as response,
    ):
        payload = await response.read()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(payload) if is_json else payload


EU = Signer("eu", PEERS_SECRET)


async def test_nobody_without_the_secret_is_answered(cells: Cells) -> None:
    peer = cells["us"]
    before = dict(peering_of(peer).core.peers.by_cell["eu"].received_s)
    for path in (DIGEST_PATH, HOP_PATH):
        assert (await call(peer, path, BODY))[0] == 401
        assert (await call(peer, path, BODY, authorization="Bearer the cluster's secret of us"))[0] == 401
        assert (await call(peer, path, BODY, Signer("eu", "another secret of 32 letters....")))[0] == 401
        assert (await call(peer, path, BODY, Signer("mars", PEERS_SECRET)))[0] == 403
        assert (await call(peer, path, BODY, EU, to="ap"))[0] == 403
    assert not peer.engines[0].seen
    assert peering_of(peer).core.peers.by_cell["eu"].received_s == before
    found = metrics_of(peer)
    assert found["raylane_peer_calls_refused_total", "eu", CallRefusal.WRONG_SIGNATURE.value] == 2
    assert found["raylane_peer_calls_refused_total", "eu", CallRefusal.WRONG_RECEIVER.value] == 2


async def test_every_path_of_the_table_is_served_between_cells(cells: Cells) -> None:
    for rig in cells.rigs.values():
        assert {path for server in servers(rig).values() for path in paths(server)} == set(ACCESS)


async def test_no_byte_of_a_body_is_read_without_a_signature(cells: Cells) -> None:
    client = await RawClient.connect(cells["us"].port)
    head = f"POST {HOP_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n"
    client.writer.write(head.encode())
    status, headers, _ = await asyncio.wait_for(client.answer(), 2)
    assert (status, headers["connection"]) == (401, "close")
    client.leave()


async def test_a_body_that_was_not_signed_reaches_nobody(cells: Cells) -> None:
    envelope = HopEnvelope(facts_of(cells), "/v1/completions", "id", {})
    headers = dict(EU.call("POST", HOP_PATH, "us", BODY, envelope.header())[0])
    async with aiohttp.ClientSession() as session:
        url = cells["us"].url + HOP_PATH
        async with session.post(url, data=BODY.replace(b"one", b"two"), headers=headers) as response:
            assert response.status == 401
    question = json.dumps({"questions": {"demo": [1, 1]}}).encode()
    headers = dict(EU.call("POST", DIGEST_PATH, "us", question)[0])
    async with aiohttp.ClientSession() as session:
        url = cells["us"].url + DIGEST_PATH
        async with session.post(url, data=question.replace(b"1, 1", b"1, 2"), headers=headers) as response:
            assert response.status == 401
    assert not cells["us"].engines[0].seen
    assert metrics_of(cells["us"])["raylane_peer_calls_refused_total", "eu", "wrong_content"] == 2


async def test_a_recorded_question_is_answered_once(cells: Cells) -> None:
    question = json.dumps({"questions": {"demo": [1, 1]}}).encode()
    early = Signer("eu", PEERS_SECRET, lambda: time.time() - CLOCK_SKEW_S - 5)
    for path, body in ((DIGEST_PATH, question), (VIEW_PATH, b'{"view": "status"}')):
        recorded = dict(EU.call("POST", path, "us", body)[0])
        async with aiohttp.ClientSession() as session:
            for status in (200, 401, 401):
                async with session.post(cells["us"].url + path, data=body, headers=recorded) as response:
                    assert response.status == status, path
        assert (await call(cells["us"], path, body, early))[0] == 401, path
    found = metrics_of(cells["us"])
    assert found["raylane_peer_calls_refused_total", "eu", "replayed"] == 4
    assert found["raylane_peer_calls_refused_total", "eu", "stale"] == 2


async def test_a_recorded_hop_is_taken_once(cells: Cells) -> None:
    """The books balance afterwards, as the fixture checks: the first keeps its lease until its answer has ended."""
    go, engine = asyncio.Event(), cells["us"].engines[0]
    engine.behave = waiting(go)
    envelope = HopEnvelope(facts_of(cells), "/v1/completions", "id", {}).header()
    headers = dict(EU.call("POST", HOP_PATH, "us", BODY, envelope)[0])
    url = cells["us"].url + HOP_PATH
    async with aiohttp.ClientSession() as session, session.post(url, data=BODY, headers=headers) as first:
        assert (first.status, first.headers["x-raylane-hop"]) == (200, "taken")
        await until(lambda: engine.open == 1)
        for _ in range(3):
            async with session.post(url, data=BODY, headers=headers) as response:
                assert (response.status, await response.json()) == (409, {"refusal": "replayed"})
        go.set()
        assert event("c") in await first.read()
        async with session.post(url, data=BODY, headers=headers) as response:
            assert (response.status, await response.json()) == (409, {"refusal": "replayed"}), "nor after it"
    assert (len(engine.seen), engine.aborted) == (1, 0)


@pytest.mark.whole
async def test_a_recorded_hop_is_not_taken_after_the_owner_changed(make_cells: MakeCells) -> None:
    """The next owner knows no number of a hop, and takes none that was meant for the one before."""
    cells = make_cells(gateway={"replicas": 2, "lame_duck_s": 0.1})
    await cells.start("eu", engines=0)
    first = await cells.start("us")
    second = await cells.add_gateway("us")
    await cells.met()
    envelope = HopEnvelope(facts_of(cells), "/v1/completions", "id", {}).header()
    headers = dict(EU.call("POST", HOP_PATH, "us", BODY, envelope)[0])

    async def post(rig: Rig) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(rig.url + HOP_PATH, data=BODY, headers=headers) as response,
        ):
            body = await response.read()
            return response.status, json.loads(body) if response.status == 409 else None

    assert await post(second) == (200, None)
    for rig in (first, second):
        assert await post(rig) == (409, {"refusal": "replayed"})
    await first.directory.give_up(first.service.gateway_id)
    await until(lambda: second.dispatcher.own is not None and second.uses(first.engines[0]), within_s=5)
    assert second.owner.epoch == 2
    assert await post(second) == (409, {"refusal": "old_epoch"})
    await until(lambda: first.dispatcher.owner is not None and first.dispatcher.own is None, within_s=5)
    assert await post(first) == (409, {"refusal": "old_epoch"})
    assert len(first.engines[0].seen) == 1


@pytest.mark.whole
async def test_one_hop_at_two_gateways_at_once_is_taken_once(make_cells: MakeCells) -> None:
    """Whoever leaves the second one leaves the first one alone."""
    cells = make_cells(gateway={"replicas": 2, "lame_duck_s": 0.1})
    await cells.start("eu", engines=0)
    first = await cells.start("us")
    second = await cells.add_gateway("us")
    await cells.met()
    engine, go = first.engines[0], asyncio.Event()
    engine.behave = waiting(go)

    async def sent(rig: Rig, headers: dict[str, str]) -> RawClient:
        client = await rig.connect()
        await client.request(HOP_PATH, BODY, **headers)
        return client

    for number in range(1, 9):
        hop = HopEnvelope(facts_of(cells, number), "/v1/completions", "id", {}).header()
        headers = dict(EU.call("POST", HOP_PATH, "us", BODY, hop)[0])
        rigs = (first, second) if number % 2 else (second, first)
        clients = await asyncio.gather(*(sent(rig, headers) for rig in (*rigs, *rigs)))
        if number > 4:  # the last two leave at once
            for client in clients[2:]:
                client.leave()
            clients = clients[:2]
        statuses = [(await client.answer_head())[0] for client in clients]
        assert sorted(statuses) == [200] + [409] * (len(clients) - 1)
        await until(lambda number=number: len(engine.seen) == number)  # type: ignore[misc]
        assert (engine.open, engine.aborted) == (1, number - 1)
        for client in clients:
            client.leave()
        await until(lambda number=number: engine.aborted == number)  # type: ignore[misc]


HOPS: dict[str, tuple[dict[str, Any], int, Any]] = {
    "that has crossed one before": ({"hops": 2}, 409, {"refusal": "loop"}),
    "of another home than its sender": ({"home": "us"}, 400, None),
    "meant for another owner": ({"peer_epoch": 0}, 409, {"refusal": "old_epoch"}),
    "that this cell may not serve": ({"residency": frozenset({"eu"})}, 409, {"refusal": "residency"}),
    "by rules that this cell does not have": ({"marks": frozenset({"other"})}, 409, {"refusal": "spec"}),
    "of another model": ({"model": "other"}, 409, {"refusal": "spec"}),
    "of a class that is not known": ({"traffic_class": "other"}, 409, {"refusal": "spec"}),
    "of a tenant that is not known": ({"tenant": "other"}, 409, {"refusal": "spec"}),
}


async def test_a_hop_is_refused(cells: Cells, subtests: pytest.Subtests) -> None:
    for number, (name, (changes, status, answer)) in enumerate(HOPS.items(), 1):
        with subtests.test(hop=name):
            hop = HopEnvelope(facts_of(cells, number, **changes), "/v1/completions", "id", {}).header()
            found = await call(cells["us"], HOP_PATH, BODY, EU, hop=hop)
            assert found[0] == status
            if answer is not None:
                assert found[1] == answer
    assert not cells["us"].engines[0].seen


async def test_only_requests_of_clients_are_handed_over(cells: Cells) -> None:
    for path in ("/tokenize", "/v1/models", "/raylane/drain", "/metrics", "", "x"):
        hop = HopEnvelope(facts_of(cells), path, "id", {}).header()
        assert (await call(cells["us"], HOP_PATH, BODY, EU, hop=hop))[0] == 400, path


async def test_questions_that_are_none(cells: Cells) -> None:
    for body in (b"", b"{", b"[]", b'{"questions": {"demo": [1]}}', b'{"questions": 1}', b"\xff"):
        assert (await call(cells["us"], DIGEST_PATH, body, EU))[0] == 400, body


async def test_bodies_over_the_limits_are_refused(make_cells: MakeCells) -> None:
    cells = make_cells(gateway={"limits": {"max_body_bytes": 4_096}})
    await cells.start("eu", engines=0)
    await cells.start("us")
    await cells.met()
    assert (await call(cells["us"], DIGEST_PATH, b" " * (1 << 20) + b"{}", EU))[0] == 413
    body = json.dumps({**ASK, "prompt": "x" * 10_000}).encode()
    hop = HopEnvelope(facts_of(cells), "/v1/completions", "id", {}).header()
    assert await call(cells["us"], HOP_PATH, body, EU, hop=hop) == (409, {"refusal": "spec"})
    assert not cells["us"].engines[0].seen


@pytest.mark.whole
async def test_a_body_that_trickles_is_ended(make_cells: MakeCells) -> None:
    cells = make_cells(gateway={"timeouts": {"client_stall_s": 0.5}})
    await cells.start("eu", engines=0)
    await cells.start("us")
    await cells.met()
    hop = HopEnvelope(facts_of(cells), "/v1/completions", "id", {}).header()
    for path, signed in ((HOP_PATH, hop), (DIGEST_PATH, "")):
        client = await RawClient.connect(cells["us"].port)
        headers, _ = EU.call("POST", path, "us", BODY, signed)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        client.writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n{lines}\r\n{{".encode())
        began = time.monotonic()
        status, _ = await client.answer_head()
        assert status in (408, 409)
        assert time.monotonic() - began < 8
        client.leave()


class Unread:
    """The server's end of an exchange whose client reads nothing."""

    def __init__(self) -> None:
        self.transport = self
        self.disconnected = False
        self.sent: list[str] = []
        self.aborted = 0

    async def send(self, message: Any) -> None:
        self.sent.append(message["type"])
        while not self.disconnected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self.aborted += 1


@pytest.mark.whole
async def test_who_does_not_read_is_cut_off(make_cells: MakeCells, subtests: pytest.Subtests) -> None:
    """Whatever the answer: a refusal, which anybody gets, a digest, or that a hop is taken."""
    cells = make_cells(gateway={"timeouts": {"client_stall_s": 0.3}})
    await cells.start("eu", engines=0)
    await cells.start("us")
    await cells.met()
    pages = {route.path: route.app for route in cells["us"].gateway.cell_peers.routes()}
    question = json.dumps({"questions": {"demo": [1, 1]}}).encode()
    hop = HopEnvelope(facts_of(cells), "/v1/completions", "id", {}).header()
    reads = asyncio.Event()
    for name, path, body, signer, signed in (
        ("a refusal", DIGEST_PATH, question, Signer("eu", "guessed" * 6), ""),
        ("a digest", DIGEST_PATH, question, EU, ""),
        ("no hop", HOP_PATH, BODY, EU, "x"),
        ("taken", HOP_PATH, BODY, EU, hop),
    ):
        with subtests.test(answer=name):
            exchange = Unread()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive(messages: list[Any] = messages) -> Any:
                return messages.pop() if messages else await reads.wait()

            headers = [
                (key.encode(), value.encode())
                for key, value in signer.call("POST", path, "us", body, signed)[0].items()
            ]
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
            async with asyncio.timeout(5):
                await pages[path](scope, receive, exchange.send)
            assert (exchange.sent, exchange.aborted) == (["http.response.start"], 1)


# A peer that has the secret.
@pytest.mark.whole
async def test_a_stream_that_never_ends_is_ended_by_its_time(make_cells: MakeCells) -> None:
    times = {"total_s": 1.0, "between_bytes_s": 0.6, "client_stall_s": 0.9, "connect_s": 0.5}
    cells = make_cells(gateway={"timeouts": times, "heartbeat_s": 0.0})
    home = await cells.start("eu", engines=0)
    peer = await FakePeer(cells.spec_of("us"), "us", cells.spec_of("us").gateway.port).start()
    await until(lambda: all(known_to(home).values()))

    async def endless(taken: Taken) -> None:
        await taken.json(FrameKind.HEAD, HEAD)
        while True:
            await taken.put(FrameKind.DATA, event("a"))
            await asyncio.sleep(0.05)

    async def stalled(taken: Taken) -> None:
        await taken.json(FrameKind.HEAD, HEAD)
        await taken.put(FrameKind.DATA, event("a"))
        await asyncio.sleep(60)

    for script, code in ((endless, b"total_timeout"), (stalled, b"between_bytes_timeout")):
        peer.script = script
        status, body = await home.ask(STREAM)
        assert status == 200
        assert b'"code": "' + code in body
    await until(lambda: peer.left == 2)
    await peer.stop()


@pytest.mark.whole
async def test_an_answer_without_end_is_bounded(fake: tuple[Rig, FakePeer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.gateway.peers.answer.MAX_WHOLE", 1 << 20)
    home, peer = fake

    async def endless(taken: Taken) -> None:
        await taken.json(FrameKind.HEAD, {"status": 200, "headers": [["content-type", "application/json"]]})
        while True:
            await taken.put(FrameKind.DATA, b"x" * 65_536)

    peer.script = endless
    asked = asyncio.create_task(home.ask(ASK))
    await until(lambda: metrics_of(home).get(("raylane_hops_broken_total", "demo", "us", "taken")) == 1)
    await home.add(FakeEngine())
    assert (await asked)[0] == 200


@pytest.mark.whole
async def test_answers_without_the_peers_signature_count_for_nothing(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    forger = Signer("us", "another secret of 32 letters....")

    async def forged(request: web.Request, call: Call) -> web.StreamResponse:
        body = json.dumps({"refusal": "loaded"}).encode()
        headers = {"x-raylane-cell": "us", "x-raylane-signature": forger.answer(call, 409, body)}
        return web.Response(status=409, body=body, headers=headers)

    async def unsigned(request: web.Request, call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-raylane-cell": "us", "x-raylane-hop": "taken"})
        await response.prepare(request)
        await asyncio.sleep(60)
        return response

    async def stranger(request: web.Request, call: Call) -> web.StreamResponse:
        return web.Response(status=200, text="<html>a captive portal</html>")

    broken = ("raylane_hops_broken_total", "demo", "us", "offered")
    for number, answer in enumerate((forged, unsigned, stranger), 1):
        peer.answer_hop = answer
        await until(lambda: peering_of(home).core.peers.by_cell["us"].asked_s > 0)
        asked = asyncio.create_task(home.ask(STREAM))
        await until(lambda number=number: metrics_of(home).get(broken) == number)  # type: ignore[misc]
        asked.cancel()
    assert "raylane_hops_rejected_total" not in {key[0] for key in metrics_of(home)}


@pytest.mark.whole
async def test_recorded_and_forged_digests_are_not_taken_over(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    recorded: list[web.Response] = []

    async def replay(request: web.Request, call: Call) -> web.StreamResponse:
        asked = (await request.json())["questions"]
        if not recorded:
            recorded.append(await _digest_answer(peer, call, asked))
        return web.Response(body=recorded[0].body, headers={**recorded[0].headers})

    async def no_question(request: web.Request, call: Call) -> web.StreamResponse:
        """A peer with the secret that answers what nobody has asked."""
        asked = (await request.json())["questions"]
        unasked = {name: [epoch, number + 1_000] for name, (epoch, number) in asked.items()}
        return await _digest_answer(peer, call, unasked)

    async def old_sequence(request: web.Request, call: Call) -> web.StreamResponse:
        """...and one that says what it said before."""
        asked = (await request.json())["questions"]
        peer._sequence = 0
        return await _digest_answer(peer, call, asked)

    async def other_cell(request: web.Request, call: Call) -> web.StreamResponse:
        asked = (await request.json())["questions"]
        answer = json.loads((await _digest_answer(peer, call, asked)).body or b"")
        answer["digests"]["demo"]["cell"] = "eu"
        return peer.signed(call, answer)

    async def garbage(request: web.Request, call: Call) -> web.StreamResponse:
        return peer.signed(call, {"digests": {"demo": {"cell": "us", "epoch": "x"}}})

    async def huge(request: web.Request, call: Call) -> web.StreamResponse:
        return peer.signed(call, {"digests": {}, "padding": "x" * (5 << 20)})

    known = peering_of(home).core.peers.by_cell["us"]
    for answer in (replay, no_question, old_sequence, other_cell, garbage, huge):
        peer.answer_digest = answer
        await asyncio.sleep(0.25)
        at_s = known.asked_s
        await asyncio.sleep(0.35)
        assert known.asked_s == at_s, answer.__name__
    found = metrics_of(home)
    assert found["raylane_digest_refusals_total", "us", "no_answer"] >= 1
    assert found["raylane_digest_refusals_total", "us", "old_sequence"] >= 1
    assert found["raylane_digests_unanswered_total", "us"] >= 3


async def _digest_answer(peer: FakePeer, call: Call, asked: dict[str, Any]) -> web.Response:
    from deployments.gateway.peers.digests import digest_to_json
    from deployments.peering import Question

    digests = {name: digest_to_json(peer.digest(name, Question(*question))) for name, question in asked.items()}
    return peer.signed(call, {"digests": digests})


@pytest.mark.whole
async def test_a_peer_that_hangs_holds_up_nobody(fake: tuple[Rig, FakePeer]) -> None:
    """Neither the digests' loop nor the requests, which stay or go without it."""
    home, peer = fake

    async def hang(request: web.Request, call: Call) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    peer.answer_digest = peer.answer_hop = hang
    asked = asyncio.create_task(home.ask(STREAM))
    await until(lambda: peer.hops)
    await until(lambda: peer.left >= 1, within_s=5)
    exchange = home.gateway.cell_peers._exchange
    assert exchange is not None
    await asyncio.sleep(1.5)
    assert len(exchange._asking) <= 12, "those that are too old were given up"
    await home.add(FakeEngine())
    assert (await asked)[0] == 200


async def test_secrets_and_prompts_are_in_no_log(cells: Cells, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "raylane"):
        body = {**STREAM, "prompt": "a very private prompt"}
        assert (await cells["eu"].ask(body))[0] == 200
        await call(cells["us"], HOP_PATH, b"a very private prompt", Signer("eu", "guessed" * 6))
        cells["us"].engines[0].behave = None  # type: ignore[assignment]  # it fails inside
        await cells["us"].gateway._server.stop(0.1)
        asked = asyncio.create_task(cells["eu"].ask(body))
        await until(lambda: "raylane_hops_broken_total" in {key[0] for key in metrics_of(cells["eu"])})
        asked.cancel()
    assert PEERS_SECRET not in caplog.text
    assert "private" not in caplog.text
    assert "guessed" not in caplog.text
