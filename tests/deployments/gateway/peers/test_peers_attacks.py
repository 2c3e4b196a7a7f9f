"""Who may ask a peer's pages, and what a peer that has the secret can do to a cell: each attack is refused or ended."""

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from deployments.gateway.entrance import ACCESS
from deployments.gateway.peers.auth import CallRefusal, Credentials
from deployments.gateway.peers.client import HOP_HEADER, HOP_PATH, REFUSAL_HEADER
from deployments.gateway.peers.digests import DIGEST_PATH
from deployments.gateway.peers.hop import header_of
from deployments.gateway.peers.pages import USAGE_PATH
from deployments.peering import HandOverReason
from tests.deployments.gateway.fake_engine import FakeEngine, event, waiting
from tests.deployments.gateway.peers.cells import PEERS_SECRET, Cells, MakeCells, metrics_of, peering_of
from tests.deployments.gateway.peers.fake_peer import FakePeer, Taken, beside_fake, hangs
from tests.deployments.gateway.rig import ASK, STREAM, RawClient, Rig, head, until
from tests.deployments.gateway.test_gateway_access import paths, servers
from tests.deployments.peering.setups import make_hop

BODY = json.dumps(STREAM).encode()


def shown(sender: str = "eu", to: str = "us", secret: str = PEERS_SECRET) -> dict[str, str]:
    return Credentials(sender, secret, (), False).shown_to(to)


def hop_of(cells: Cells, attempt: int = 1, **changes: Any) -> dict[str, str]:
    """The headers of a hop from `eu` that `us` would take."""
    own = {"attempt": attempt, "number": attempt, "epoch": 7, "model": "demo", "prompt_tokens": 3, "max_tokens": 3}
    own |= {"reason": HandOverReason.NO_REPLICA, "residency": frozenset(cells.names), "slo_s": 0.5, "patience_s": 20.0}
    own |= {"marks": peering_of(cells["us"]).core.rules.marks_of("demo", "interactive", "")}
    hop = make_hop(cells.spec_of("us"), **own | {"path": "/v1/completions"} | changes)
    return {**shown(), HOP_HEADER: header_of(hop)}


async def call(
    rig: Rig, path: str, body: bytes, headers: dict[str, str] | None = None, expect100: bool = False
) -> tuple[int, str | None]:
    """A call of `rig`: the status, and why a hop was refused."""
    status, _, answered = await rig.answered(body, path, headers=headers, expect100=expect100)
    return status, answered.get(REFUSAL_HEADER)


async def test_nobody_without_the_secret_is_answered(cells: Cells) -> None:
    peer = cells["us"]
    before = dict(peering_of(peer).core.peers.by_cell["eu"].received_s)
    for path in (DIGEST_PATH, HOP_PATH, USAGE_PATH):
        assert (await call(peer, path, BODY))[0] == 403
        assert (await call(peer, path, BODY, {"authorization": "Bearer the cluster's secret of us"}))[0] == 403
        assert (await call(peer, path, BODY, shown(secret="another secret of 32 letters....")))[0] == 401
        assert (await call(peer, path, BODY, shown("mars")))[0] == 403
        assert (await call(peer, path, BODY, shown(to="ap")))[0] == 401
    assert not peer.engines[0].seen
    assert peering_of(peer).core.peers.by_cell["eu"].received_s == before
    assert metrics_of(peer)["raylane_peer_calls_refused_total", "eu", CallRefusal.WRONG_TOKEN.value] == 6


async def test_every_path_of_the_table_is_served_between_cells(cells: Cells) -> None:
    for rig in cells.rigs.values():
        assert {path for server in servers(rig).values() for path in paths(server)} == set(ACCESS)


async def test_no_byte_of_a_body_is_read_of_who_is_no_peer(cells: Cells) -> None:
    client = await RawClient.connect(cells["us"].port)
    client.writer.write(head("POST", HOP_PATH, 1_000_000_000))
    status, headers, _ = await asyncio.wait_for(client.answer(), 2)
    assert (status, headers["connection"]) == (403, "close")
    client.leave()


async def test_no_byte_of_a_body_is_asked_for_that_is_not_taken(cells: Cells) -> None:
    """A refusal comes before 100 Continue, which is sent for what is taken."""
    for changes, first in (({"hops": 2}, "HTTP/1.1 503"), ({}, "HTTP/1.1 100")):
        client = await RawClient.connect(cells["us"].port)
        client.writer.write(head("POST", HOP_PATH, len(BODY), expect="100-continue", **hop_of(cells, **changes)))
        line = await asyncio.wait_for(client.reader.readline(), 2)
        assert line.decode().startswith(first)
        client.leave()
    assert not cells["us"].engines[0].seen


async def test_a_guests_patience_runs_while_its_body_comes(cells: Cells) -> None:
    peer, held = cells["us"], asyncio.Event()
    peer.engines[0].behave = waiting(held)
    client = await RawClient.connect(peer.port)
    client.writer.write(head("POST", HOP_PATH, len(BODY), expect="100-continue", **hop_of(cells)))
    await client.reader.readuntil(b"100 Continue\r\n\r\n")
    asked_s = time.monotonic()
    await asyncio.sleep(0.01)
    client.writer.write(BODY)
    await until(lambda: peer.engines[0].open)
    (record,) = peer.dispatcher.records.here
    assert record.request.expires_s <= asked_s + 20.0
    client.leave()


HOPS: dict[str, tuple[dict[str, Any], tuple[int, str | None]]] = {
    "that has crossed one before": ({"hops": 2}, (503, "loop")),
    "of another home than its sender": ({"home": "us"}, (400, None)),
    "that this cell may not serve": ({"residency": frozenset({"eu"})}, (503, "residency")),
    "by rules that this cell does not have": ({"marks": frozenset({"other"})}, (503, "spec")),
    "of another model": ({"model": "other"}, (503, "spec")),
    "of a class that is not known": ({"traffic_class": "other"}, (503, "residency")),
    "of a tenant that is not known": ({"tenant": "other"}, (503, "residency")),
    "of a path that is no client's": ({"path": "/raylane/drain"}, (400, None)),
    "of a path that is not handed over": ({"path": "/tokenize"}, (400, None)),
}


async def test_a_hop_is_refused(cells: Cells, subtests: pytest.Subtests) -> None:
    for expect100 in (True, False):
        for name, (changes, answer) in HOPS.items():
            with subtests.test(hop=name, expect100=expect100):
                assert await call(cells["us"], HOP_PATH, BODY, hop_of(cells, **changes), expect100) == answer
    assert (await call(cells["us"], HOP_PATH, BODY, {**shown(), HOP_HEADER: "x"}))[0] == 400
    assert not cells["us"].engines[0].seen


async def test_questions_that_are_none(cells: Cells) -> None:
    for path in (DIGEST_PATH, USAGE_PATH):
        for body in (b"", b"{", b"[]", b'{"questions": {"demo": [1]}}', b'{"questions": 1}', b"\xff", b"[" * 9_999):
            assert (await call(cells["us"], path, body, shown()))[0] == 400, body


async def test_bodies_over_the_limits_are_refused(make_cells: MakeCells) -> None:
    cells = make_cells(gateway={"limits": {"max_body_bytes": 4_096}})
    await cells.pair()
    assert (await call(cells["us"], DIGEST_PATH, b" " * (1 << 20) + b"{}", shown()))[0] == 413
    body = json.dumps({**ASK, "prompt": "x" * 10_000}).encode()
    assert await call(cells["us"], HOP_PATH, body, hop_of(cells)) == (503, "spec")
    assert not cells["us"].engines[0].seen


@pytest.mark.whole
async def test_a_body_that_trickles_is_ended(make_cells: MakeCells) -> None:
    cells = make_cells(gateway={"timeouts": {"client_stall_s": 0.5}})
    await cells.pair()
    for path, headers in ((HOP_PATH, hop_of(cells)), (DIGEST_PATH, shown())):
        client = await RawClient.connect(cells["us"].port)
        client.writer.write(head("POST", path, 100, **headers) + b"{")
        began = time.monotonic()
        status, _ = await client.answer_head()
        assert status in (408, 503)
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
    """Whatever the answer: a refusal, which anybody gets, or a digest. (A guest's is written as a client's.)"""
    cells = make_cells(gateway={"timeouts": {"client_stall_s": 0.3}})
    await cells.pair()
    pages = {route.path: route.app for route in cells["us"].gateway.cell_peers.routes()}
    question = json.dumps({"questions": {"demo": [1, 1]}}).encode()
    reads = asyncio.Event()
    for name, path, body, given in (
        ("a refusal", DIGEST_PATH, question, shown(secret="guessed" * 6)),
        ("a digest", DIGEST_PATH, question, shown()),
        ("no hop", HOP_PATH, BODY, {**shown(), HOP_HEADER: "x"}),
    ):
        with subtests.test(answer=name):
            exchange = Unread()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive(messages: list[Any] = messages) -> Any:
                return messages.pop() if messages else await reads.wait()

            headers = [(key.encode(), value.encode()) for key, value in given.items()]
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
            async with asyncio.timeout(5):
                await pages[path](scope, receive, exchange.send)
            assert (exchange.sent, exchange.aborted) == (["http.response.start"], 1)


# A peer that has the secret.
@pytest.mark.whole
async def test_a_stream_that_never_ends_is_ended_by_its_time(make_cells: MakeCells) -> None:
    times = {"total_s": 5.0, "between_bytes_s": 2.0, "client_stall_s": 4.0, "connect_s": 2.0}
    cells = make_cells(gateway={"timeouts": times, "heartbeat_s": 0.0})
    home, peer = await beside_fake(cells)

    async def endless(taken: Taken) -> None:
        await taken.head()
        while True:
            await taken.write(event("a"))
            await asyncio.sleep(0.05)

    async def stalled(taken: Taken) -> None:
        await taken.head()
        await taken.write(event("a"))
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
    monkeypatch.setattr("deployments.gateway.peers.hop.MAX_WHOLE", 1 << 20)
    home, peer = fake

    async def endless(taken: Taken) -> None:
        await taken.head(kind="application/json")
        while True:
            await taken.write(b"x" * 65_536)

    peer.script = endless
    asked = asyncio.create_task(home.ask(ASK))
    await until(lambda: metrics_of(home).get(("raylane_hops_broken_total", "demo", "us", "taken")) == 1)
    await home.add(FakeEngine())
    assert (await asked)[0] == 200


@pytest.mark.whole
async def test_an_answer_of_another_cell_counts_for_nothing(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake

    async def stranger(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200, text="<html>a captive portal</html>")

    async def third(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"x-raylane-cell": "ap", REFUSAL_HEADER: "loaded"})

    broken = ("raylane_hops_broken_total", "demo", "us", "offered")
    for number, answer in enumerate((stranger, third), 1):
        peer.judge = answer
        await until(lambda: peering_of(home).core.peers.by_cell["us"].asked_s > 0)
        asked = asyncio.create_task(home.ask(STREAM))
        await until(lambda number=number: metrics_of(home).get(broken) == number)  # type: ignore[misc]
        asked.cancel()
    assert "raylane_hops_rejected_total" not in {key[0] for key in metrics_of(home)}


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


@pytest.mark.whole
async def test_a_peer_that_hangs_holds_up_nobody(fake: tuple[Rig, FakePeer]) -> None:
    """Neither the digests' loop nor the requests, which stay or go without it."""
    home, peer = fake
    peer.answer_digest = peer.judge = hang
    asked = asyncio.create_task(home.ask(STREAM))
    await until(lambda: peer.hops)
    await until(lambda: peer.left >= 1, within_s=5)
    exchange = home.gateway.cell_peers._exchange
    assert exchange is not None
    await asyncio.sleep(1.5)
    assert len(exchange._asking) <= 12, "those that are too old were given up"
    await home.add(FakeEngine())
    assert (await asked)[0] == 200


@pytest.mark.whole
async def test_a_peer_that_takes_a_request_and_falls_silent_is_given_up(fake: tuple[Rig, FakePeer]) -> None:
    """A half-open connection: no reset, no end, and no digest any more."""
    home, peer = fake
    peer.script = hangs
    asked = asyncio.create_task(home.ask(STREAM))
    await until(lambda: metrics_of(home).get(("raylane_hand_overs_total", "demo", "us", "no_replica")) == 1)
    peer.answer_digest = hang
    await until(lambda: metrics_of(home).get(("raylane_hops_broken_total", "demo", "us", "taken")) == 1)
    await until(lambda: peer.left >= 1)
    await home.add(FakeEngine())
    assert (await asked)[0] == 200


async def test_secrets_and_prompts_are_in_no_log(cells: Cells, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "raylane"):
        body = {**STREAM, "prompt": "a very private prompt"}
        assert (await cells["eu"].ask(body))[0] == 200
        await call(cells["us"], HOP_PATH, b"a very private prompt", shown(secret="guessed" * 6))
        cells["us"].engines[0].behave = None  # type: ignore[assignment]  # it fails inside
        await cells["us"].gateway._server.stop(0.1)
        asked = asyncio.create_task(cells["eu"].ask(body))
        await until(lambda: "raylane_hops_broken_total" in {key[0] for key in metrics_of(cells["eu"])})
        asked.cancel()
    assert PEERS_SECRET not in caplog.text
    assert "private" not in caplog.text
    assert "guessed" not in caplog.text
