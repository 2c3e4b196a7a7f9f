"""A peer that has the secret and answers otherwise than was agreed, or breaks off: each request ends once, the gateway
goes on, and nothing is left."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from deployments.gateway.peers.auth import CELL_HEADER, SIGNATURE_HEADER, Call
from deployments.gateway.peers.digests import digest_to_json
from deployments.gateway.peers.frames import FrameKind
from deployments.gateway.peers.view import REGIONS_PATH
from deployments.peering import Question
from deployments.telemetry.ledger import Ledger, RequestOutcome
from tests.deployments.gateway.fake_engine import event
from tests.deployments.gateway.peers.cells import Cells, known_to, metrics_of, peering_of
from tests.deployments.gateway.peers.fake_peer import HEAD, FakePeer, Script, Taken, good
from tests.deployments.gateway.rig import ASK, RawClient, Rig, openai_error, until

pytestmark = pytest.mark.whole
STREAM = {**ASK, "stream": True}
WHOLE = {"status": 200, "headers": [["content-type", "application/json"]]}
DEEP = b"[" * 100_000
COUNTED: dict[str, Any] = {
    "request_id": "",
    "status": 200,
    "sequences": 1,
    "prompt_tokens": 3,
    "cached_tokens": 0,
    "output_tokens": 2,
    "preemptions": 0,
    "queued_s": 0.0,
    "prefill_s": 0.01,
    "decode_s": 0.01,
    "first_byte_s": 0.01,
    "wall_s": 0.02,
    "booking": "",
}


def broken(home: Rig, stage: str) -> float:
    return metrics_of(home).get(("raylane_hops_broken_total", "demo", "us", stage), 0)


async def closed(home: Rig, before: int) -> Ledger:
    """The ledger of the one request that has ended since."""
    ledger = await home.last(before + 1)
    await asyncio.sleep(0)
    assert len(home.closed) == before + 1
    return ledger


async def goes_home(home: Rig, peer: FakePeer, body: Any = STREAM) -> None:
    """A request that was offered to the peer waits at home alone; then its client leaves."""
    await until(lambda: peering_of(home).core.peers.by_cell["us"].asked_s > 0)
    before, offered = len(home.closed), len(peer.hops)
    client = await home.connect(body)
    try:
        await until(lambda: len(peer.hops) > offered and not peering_of(home).core.hops.open(), within_s=10)
        assert sum(lane.waiting for lane in home.owner.snapshot().lanes) == 1
        assert not home.dispatcher.hops._hops
    finally:
        client.leave()
    assert (await closed(home, before)).outcome is RequestOutcome.CANCELLED


def frames(*given: tuple[FrameKind, Any], then: Script | None = None) -> Script:
    """An answer of these frames: bytes as they are, other content as JSON."""

    async def script(taken: Taken) -> None:
        for kind, content in given:
            await (taken.put(kind, content) if isinstance(content, bytes) else taken.json(kind, content))
        await (asyncio.sleep(60) if then is None else then(taken))

    return script


async def end(taken: Taken) -> None:
    """The answer is over."""


def headed(status: int, content_type: str) -> dict[str, Any]:
    return {"status": status, "headers": [["content-type", content_type]]}


def bytes_of(*pieces: bytes, pause_s: float = 0.0) -> Script:
    """These bytes, in no frame of ours."""

    async def script(taken: Taken) -> None:
        await asyncio.sleep(pause_s)
        for piece in pieces:
            await taken.raw(piece)
        await asyncio.sleep(60)

    return script


async def _cut_in_a_frame(taken: Taken) -> None:
    await asyncio.sleep(0.1)
    await taken.raw(bytes((FrameKind.DATA, 0, 0, 0, 200)) + b"m" * 16 + b'data: {"half')
    await asyncio.sleep(0.1)
    taken.reset()


OVERLOADED = {"code": "overloaded", "message": "full", "param": None, "headers": {"retry-after": "1"}}
NO_ANSWERS: dict[str, Script] = {
    "a wrong signature": frames(
        (FrameKind.HEAD, HEAD), then=bytes_of(bytes((FrameKind.DATA, 0, 0, 0, 1)) + b"m" * 16 + b"x")
    ),
    "no frames": bytes_of(b"HTTP/1.1 200 OK\r\n\r\nhello, this is no frame of ours, and it goes on for a while"),
    "a frame that is too long": bytes_of(bytes((FrameKind.DATA, 255, 255, 255, 255)) + b"m" * 16),
    "data before the head": frames((FrameKind.DATA, event("a"))),
    "a header in a header": frames((FrameKind.HEAD, headed(200, "a\r\nx-injected: 1"))),
    "an end without an answer": frames((FrameKind.HEAD, HEAD), (FrameKind.END, {"error": None})),
    "a head alone": frames((FrameKind.HEAD, HEAD), then=end),
    "overload": frames((FrameKind.ERROR, OVERLOADED), then=end),
    "an error without its fields": frames((FrameKind.ERROR, {"code": "overloaded"}), then=end),
    "a status that has no body": frames((FrameKind.HEAD, headed(204, "text/event-stream")), (FrameKind.DATA, event())),
    "a status that is none": frames((FrameKind.HEAD, headed(101, "text/event-stream"))),
    "a type that is no header": frames(
        (FrameKind.HEAD, headed(200, "text/event-stream; \u2603")), (FrameKind.DATA, event())
    ),
    "a type with a zero": frames((FrameKind.HEAD, headed(200, "text/event-stream\0")), (FrameKind.DATA, event())),
    "a head without end": frames((FrameKind.HEAD, DEEP)),
    "a head that is a list": frames((FrameKind.HEAD, [200, []])),
    "a head whose status is a text": frames((FrameKind.HEAD, {"status": "200", "headers": []})),
    "an error without end": frames((FrameKind.ERROR, DEEP)),
    "an error whose headers are no map": frames(
        (FrameKind.ERROR, {"code": "invalid_value", "message": "x", "param": None, "headers": 1})
    ),
    "an end before the head": frames((FrameKind.END, {"error": None})),
    "an end without end": frames((FrameKind.HEAD, WHOLE), (FrameKind.END, DEEP)),
    "an end that is no object": frames((FrameKind.HEAD, WHOLE), (FrameKind.END, [1])),
}


@pytest.mark.parametrize("script", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_what_is_no_answer_sends_the_request_home(fake: tuple[Rig, FakePeer], script: Script) -> None:
    home, peer = fake
    peer.script = script
    await goes_home(home, peer)
    assert (len(peer.hops), broken(home, "taken")) == (1, 1)


async def _unknown_frame(taken: Taken) -> None:
    await asyncio.sleep(0.1)
    await taken.put(99)  # type: ignore[arg-type]
    await asyncio.sleep(60)


BREAKS: dict[str, Script] = {
    "a second head": frames((FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")), (FrameKind.HEAD, WHOLE)),
    "an error without end": frames((FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")), (FrameKind.ERROR, DEEP)),
    "an end without end": frames((FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")), (FrameKind.END, DEEP)),
    "an unknown frame": frames(
        (FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")), then=lambda taken: _unknown_frame(taken)
    ),
    "the end of the connection": frames((FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")), then=end),
    "no frame": frames(
        (FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")), then=bytes_of(b"garbage" * 10, pause_s=0.1)
    ),
    "half a frame": frames((FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")), then=_cut_in_a_frame),
}


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS)
async def test_a_stream_that_breaks_ends_with_one_error_event(fake: tuple[Rig, FakePeer], script: Script) -> None:
    home, peer = fake
    peer.script = script
    status, body = await asyncio.wait_for(home.ask(STREAM), 5)
    assert (status, body.count(b'"code": "peer_lost"'), body.count(b"[DONE]")) == (200, 1, 1)
    assert body.startswith(event("a") + b'data: {"error"')
    assert (await closed(home, 0)).outcome is RequestOutcome.FAILED


WRONG_COUNTS: dict[str, Any] = {
    "negative": COUNTED | {"prompt_tokens": -1},
    "negative output": COUNTED | {"output_tokens": -1, "cached_tokens": -5},
    "a text": COUNTED | {"prompt_tokens": "3"},
    "half a sequence": COUNTED | {"sequences": 0.5},
    "a huge number": COUNTED | {"prompt_tokens": 10**400},
    "no number": COUNTED | {"decode_s": float("nan")},
    "for ever": COUNTED | {"first_byte_s": float("inf")},
    "before it began": COUNTED | {"prefill_s": -5.0},
    "a field less": {key: value for key, value in COUNTED.items() if key != "wall_s"},
    "a list": [1],
    "without end": DEEP,
    "empty": b"",
}


async def test_a_count_that_cannot_be_counts_for_nothing(fake: tuple[Rig, FakePeer]) -> None:
    """And the gateway goes on to close its ledgers."""
    home, peer = fake
    counts = list(WRONG_COUNTS.values())

    async def script(taken: Taken) -> None:
        await good(taken)
        await frames((FrameKind.USAGE, counts.pop()), then=end)(taken)

    peer.script = script
    answers = [await home.ask(STREAM) for _ in WRONG_COUNTS]
    assert {status for status, _ in answers} == {200}
    await home.last(len(answers))
    assert {(ledger.finished, ledger.outcome) for ledger in home.closed} == {(None, RequestOutcome.OK)}


async def test_a_count_that_can_be_is_the_ledgers(fake: tuple[Rig, FakePeer]) -> None:
    """But what its own engines have not counted teaches this cell nothing of its prompts."""
    home, peer = fake

    async def script(taken: Taken) -> None:
        await good(taken)
        await taken.json(FrameKind.USAGE, COUNTED | {"prompt_tokens": 900, "weather": "of a later version"})

    peer.script = script
    before = home.service._ratios["demo"].chars_per_token
    assert (await home.ask({**STREAM, "prompt": "x" * 100}))[0] == 200
    ledger = await closed(home, 0)
    assert ledger.finished is not None
    assert (ledger.finished.prompt_tokens, ledger.finished.output_tokens) == (900, 2)
    assert home.service._ratios["demo"].chars_per_token == before


async def test_an_error_brings_no_headers_and_no_words_of_its_own(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    headers = {"set-cookie": "a=b", "content-length": "3", "x-a\r\nx-b": "1", "connection": "close", "retry-after": "7"}
    content = {"code": "invalid_value", "message": "too hot", "param": "temperature", "headers": headers}
    peer.script = frames((FrameKind.ERROR, content), then=end)
    async with home.post("/v1/completions", STREAM) as response:
        error = openai_error(await response.read())
    assert (response.status, error["code"], error["param"]) == (400, "invalid_value", "temperature")
    assert response.headers["retry-after"] == "7"
    assert not {"set-cookie", "connection", "x-b"} & {name.lower() for name in response.headers}
    headers["retry-after"] = "7\r\nset-cookie: a=b"
    async with home.post("/v1/completions", STREAM) as response:
        openai_error(await response.read())
    assert (response.status, "retry-after" in response.headers) == (400, False)

    async def ends_with_a_word(taken: Taken) -> None:
        await taken.json(FrameKind.HEAD, HEAD)
        await taken.put(FrameKind.DATA, event("a"))
        await taken.json(FrameKind.END, {"error": "a label of my own"})

    peer.script = ends_with_a_word
    assert (await home.ask(STREAM))[0] == 200
    assert (await closed(home, 2)).error == "engine_error"


async def test_what_follows_the_end_is_no_part_of_the_answer(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake

    async def more(taken: Taken) -> None:
        await good(taken)
        for _ in range(50):
            await taken.put(FrameKind.DATA, event("more"))
        await taken.json(FrameKind.END, {"error": "engine_error"})

    peer.script = more
    status, body = await home.ask(STREAM)
    assert (status, b"more" in body) == (200, False)
    assert (await closed(home, 0)).outcome is RequestOutcome.OK


async def test_a_view_that_is_none_spoils_no_other_cells(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    headers = {"authorization": "Bearer the cluster's secret of eu"}
    views = (DEEP, b'{"x": 1e999}', b'{"x": NaN}', b'{"x": "\\ud800"}', b"\xff", b"", b'{"x": 1}')
    for view in views:
        peer.view = view
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(home.url + REGIONS_PATH, params={"view": "status"}) as response,
        ):
            assert response.status == 200, view
            found = {one["region"]: one for one in (await response.json())["regions"]}
        assert found["eu"]["reachable"]
        assert found["us"]["reachable"] is (view == views[-1])


async def test_what_nobody_has_asked_about_is_not_kept(fake: tuple[Rig, FakePeer]) -> None:
    """Models that a peer makes up, new ones in each digest."""
    home, peer = fake
    answered = 0

    async def talkative(request: web.Request, call: Call) -> web.StreamResponse:
        nonlocal answered
        asked = (await request.json())["questions"]
        answered += 1
        digest = digest_to_json(peer.digest("demo", Question(*asked["demo"])))
        made_up = [digest["models"][0] | {"model": f"{answered}-{number}"} for number in range(20)]
        whole = {"demo": digest | {"models": [*made_up, *digest["models"]]}, "other": digest}
        return peer.signed(call, {"digests": whole})

    peer.answer_digest = talkative
    await until(lambda: answered >= 5)
    core = peering_of(home).core
    assert time.monotonic() - core.peers.by_cell["us"].asked_s < 1, "its word on what was asked is taken over"
    known = core.peers.by_cell["us"].digest
    assert known is not None
    assert [one.model for one in known.models] == ["demo"]
    assert {model for model, _ in core._tenants._heard} == {"demo"}


# Answers to the offer itself.
Answer = Callable[[web.Request, Call], Awaitable[web.StreamResponse]]


def raw(*pieces: bytes) -> Answer:
    """Bytes instead of an answer; then the connection breaks."""

    async def answer(request: web.Request, call: Call) -> web.StreamResponse:
        assert request.transport is not None
        for piece in pieces:
            request.transport.write(piece)  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        request.transport.abort()
        return web.Response()

    return answer


def refuses(peer: FakePeer, body: bytes, status: int = 409) -> Answer:
    """A signed answer."""

    async def answer(request: web.Request, call: Call) -> web.StreamResponse:
        headers = {CELL_HEADER: "us", SIGNATURE_HEADER: peer.signer.answer(call, status, body)}
        return web.Response(status=status, body=body, headers=headers)

    return answer


async def trickles(request: web.Request, call: Call) -> web.StreamResponse:
    """A refusal that never ends."""
    response = web.StreamResponse(status=409, headers={CELL_HEADER: "us"})
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def test_an_offer_that_gets_no_answer_leaves_the_request_at_home(
    fake: tuple[Rig, FakePeer], subtests: pytest.Subtests
) -> None:
    home, peer = fake
    answers = {
        "nothing": raw(),
        "half a head": raw(b"HTTP/1.1 200 OK\r\nx-raylane-ce"),
        "no HTTP": raw(b"\x00\x01garbage\r\n\r\n"),
        "a head without end": raw(b"HTTP/1.1 200 OK\r\n", *[b"x-%d: 1\r\n" % number * 1_000 for number in range(50)]),
        "interim answers alone": raw(*[b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10] * 20),
        "a refusal without end": refuses(peer, DEEP),
        "a refusal of no name": refuses(peer, b'{"refusal": "because"}'),
        "a refusal that is a list": refuses(peer, b"[]"),
        "a refusal of 5 MiB": refuses(peer, b'{"refusal": "' + b"x" * (5 << 20) + b'"}'),
        "another status": refuses(peer, b'{"refusal": "loaded"}', 500),
        "a yes that is signed as a whole": refuses(peer, b"taken", 200),
    }
    for name, answer in answers.items():
        with subtests.test(answer=name):
            peer.answer_hop = answer
            await goes_home(home, peer)
    assert len(answers) <= len(peer.hops) <= 2 * len(answers), "one that broke off at once is tried once more"


async def test_an_answer_that_takes_too_long_is_given_up(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    peer.answer_hop = trickles
    client = await home.connect(STREAM)
    await until(lambda: peer.left == 1, within_s=10)
    assert sum(lane.waiting for lane in home.owner.snapshot().lanes) == 1
    client.leave()
    assert (await closed(home, 0)).outcome is RequestOutcome.CANCELLED


# Clients that leave.
async def hangs(request: web.Request, call: Call) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


LEFT_AT: dict[str, tuple[Any, Script]] = {
    "taken": (STREAM, frames()),
    "beats": (STREAM, frames((FrameKind.BEAT, b""))),
    "head": (STREAM, frames((FrameKind.HEAD, HEAD))),
    "streaming": (STREAM, frames((FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")))),
    "half a frame": (STREAM, frames(then=lambda taken: _half(taken))),
    "first token": (ASK, frames((FrameKind.HEAD, WHOLE), (FrameKind.FIRST_TOKEN, b""))),
    "half of a whole answer": (ASK, frames((FrameKind.HEAD, WHOLE), (FrameKind.DATA, b"{"))),
}


async def _half(taken: Taken) -> None:
    await taken.raw(bytes((FrameKind.DATA, 0, 0, 1, 0)) + b"m" * 16 + b"half")
    await asyncio.sleep(60)


@pytest.mark.parametrize(("body", "script"), LEFT_AT.values(), ids=LEFT_AT)
async def test_a_client_that_leaves_ends_the_hop(fake: tuple[Rig, FakePeer], body: Any, script: Script) -> None:
    home, peer = fake
    reached = asyncio.Event()

    async def noted(taken: Taken) -> None:
        asyncio.get_running_loop().call_later(0.1, reached.set)
        await script(taken)

    peer.script = noted
    client = await home.connect(body)
    await asyncio.wait_for(reached.wait(), 5)
    client.leave()
    await until(lambda: peer.left == 1, within_s=2)
    assert (await closed(home, 0)).outcome is RequestOutcome.CANCELLED
    await until(lambda: not home.owner.records.live)


async def test_a_client_of_another_gateway_than_the_owners_may_leave_at_any_time(
    make_cells: Callable[..., Cells], subtests: pytest.Subtests
) -> None:
    cells = make_cells(gateway={"heartbeat_s": 0.0, "replicas": 2, "lame_duck_s": 0.1})
    home = await cells.start("eu", engines=0)
    peer = await FakePeer(cells.spec_of("us"), "us", cells.spec_of("us").gateway.port).start()
    second = await cells.add_gateway("eu", gateway={"heartbeat_s": 0.0, "lame_duck_s": 0.1})
    await until(lambda: all(known_to(home).values()))
    for number, (name, (body, script)) in enumerate(LEFT_AT.items(), 1):
        with subtests.test(left=name):
            peer.script = script
            client = await second.connect(body)
            await until(lambda number=number: len(peer.hops) == number)  # type: ignore[misc]
            await asyncio.sleep(0.1)
            client.leave()
            await until(lambda number=number: peer.left == number, within_s=5)  # type: ignore[misc]
            assert (await closed(second, number - 1)).outcome is RequestOutcome.CANCELLED
            await until(lambda: not home.owner.records.live)
    await peer.stop()


async def test_a_hop_that_is_withdrawn_as_soon_as_it_is_confirmed_is_not_relayed(
    fake: tuple[Rig, FakePeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the beginning of its answer is here."""
    home, peer = fake
    peer.script = frames((FrameKind.HEAD, HEAD), (FrameKind.DATA, event("a")))
    confirmed = home.dispatcher.hop_confirmed

    def both(request_id: str, number: int) -> None:
        confirmed(request_id, number)
        home.dispatcher.hop_withdrawn(request_id, number)

    late = asyncio.get_running_loop().call_later
    monkeypatch.setattr(home.dispatcher, "hop_confirmed", lambda *given: late(0.1, both, *given))
    client = await home.connect(STREAM)
    await until(lambda: broken(home, "taken") == 1, within_s=5)
    await until(lambda: peer.left == 1)
    assert sum(lane.waiting for lane in home.owner.snapshot().lanes) == 1
    client.leave()
    ledger = await closed(home, 0)
    assert (ledger.outcome, ledger.first_byte_s, ledger.bytes_out) == (RequestOutcome.CANCELLED, None, 0)


async def test_a_client_that_leaves_before_the_peer_has_answered_ends_the_offer(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    peer.answer_hop = hangs
    client = await home.connect(STREAM)
    await until(lambda: peer.hops)
    client.leave()
    await until(lambda: peer.left == 1, within_s=2)
    assert (await closed(home, 0)).outcome is RequestOutcome.CANCELLED


async def test_a_client_that_leaves_after_the_end_costs_nothing(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake

    async def slow_count(taken: Taken) -> None:
        await good(taken)
        await asyncio.sleep(0.3)
        await taken.json(FrameKind.USAGE, COUNTED)

    peer.script = slow_count
    client: RawClient = await home.connect(STREAM)
    await client.reader.readuntil(b"[DONE]\n\n")
    client.leave()
    ledger = await closed(home, 0)
    assert ledger.outcome is RequestOutcome.OK
    assert ledger.finished is not None
