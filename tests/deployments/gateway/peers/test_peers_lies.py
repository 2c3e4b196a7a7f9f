"""A peer that has the secret and answers otherwise than was agreed, or breaks off: each request ends once, the gateway
goes on, and nothing is left."""

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from deployments.gateway.peers.digests import digest_to_json
from deployments.gateway.peers.pages import USAGE_PATH
from deployments.gateway.peers.view import REGIONS_PATH
from deployments.peering import Question
from deployments.telemetry.ledger import Ledger, RequestOutcome
from tests.deployments.gateway.fake_engine import DONE, event
from tests.deployments.gateway.peers.cells import MakeCells, metrics_of, peering_of
from tests.deployments.gateway.peers.fake_peer import FakePeer, Script, Taken, beside_fake, good, hangs
from tests.deployments.gateway.peers.test_peers_attacks import shown
from tests.deployments.gateway.rig import ASK, STREAM, Rig, openai_error, until

pytestmark = pytest.mark.whole
DEEP = b"[" * 100_000
USAGE: dict[str, Any] = {
    "prompt_tokens": 900,
    "cached_tokens": 0,
    "output_tokens": 2,
    "preemptions": 0,
    "sequences": 1,
    "queued_s": 0.0,
    "prefill_s": 0.01,
    "decode_s": 0.01,
}
COUNTED: dict[str, Any] = {"request_id": "", "status": 200, "usage": USAGE, "first_byte_s": 0.01, "wall_s": 0.02}


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
        await until(lambda: len(peer.hops) > offered and not peering_of(home).core.away, within_s=10)
        assert sum(lane.waiting for lane in home.owner.snapshot().lanes) == 1
    finally:
        client.leave()
    assert (await closed(home, before)).outcome is RequestOutcome.CANCELLED


def answer(*pieces: bytes, status: int = 200, kind: str = "text/event-stream", then: Script | None = None) -> Script:
    """A head, these pieces, and an end."""

    async def script(taken: Taken) -> None:
        await taken.head(status, kind)
        for piece in pieces:
            await taken.write(piece)
        if then is not None:
            await asyncio.sleep(0.1)
            await then(taken)

    return script


def raw(*pieces: bytes) -> Script:
    """Bytes instead of an answer; then the connection breaks."""

    async def script(taken: Taken) -> None:
        for piece in pieces:
            taken.raw(piece)
            await asyncio.sleep(0.01)
        taken.reset()

    return script


async def reset(taken: Taken) -> None:
    taken.reset()


async def end(taken: Taken) -> None:
    """The answer is over."""


def error(body: bytes, status: int, **headers: str) -> Script:
    async def script(taken: Taken) -> None:
        await taken.whole(body, status, **headers)

    return script


NO_ANSWERS: dict[str, Script] = {
    "nothing": raw(),
    "half a head": raw(b"HTTP/1.1 200 OK\r\nx-raylane-ce"),
    "no HTTP": raw(b"\x00\x01garbage\r\n\r\n"),
    "a head without end": raw(b"HTTP/1.1 200 OK\r\n", *[b"x-%d: 1\r\n" % number * 1_000 for number in range(50)]),
    "a stream without a byte": answer(),
    "a head alone": answer(then=reset),
    "overload": error(b'{"error": {"code": "overloaded", "message": "full", "param": null}}', 503),
    "an error without its fields": error(b'{"error": {"code": "overloaded"}}', 503),
    "an error without end": error(DEEP, 400),
    "an error that is a list": error(b"[]", 400),
    "an error of 5 MiB": error(b" " * (5 << 20), 400),
    "a status that has no body": answer(status=204),
    "a redirect": error(b"", 307, location="http://127.0.0.1:1/"),
    "a refusal of no name": error(b"", 503, x_raylane_refusal="because"),
    "an answer that breaks off": answer(b"{", kind="application/json", then=reset),
}


@pytest.mark.parametrize("script", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_what_is_no_answer_sends_the_request_home(fake: tuple[Rig, FakePeer], script: Script) -> None:
    home, peer = fake
    peer.script = script
    await goes_home(home, peer)
    assert (len(peer.hops), broken(home, "taken")) == (1, 1)


async def test_a_refusal_sends_the_request_home_and_elsewhere_once_it_is_old(fake: tuple[Rig, FakePeer]) -> None:
    """Before its body was sent, or after; of a name that there is, or of none."""
    home, peer = fake
    for why in ("loaded", "because"):
        peer.refuses = why
        await goes_home(home, peer)
    assert metrics_of(home)["raylane_hops_rejected_total", "demo", "us", "loaded"] >= 1
    assert broken(home, "offered") == 1
    peer.refuses, peer.script = None, error(b"", 503, x_raylane_refusal="late")
    await goes_home(home, peer)
    peer.script = good
    assert (await asyncio.wait_for(home.ask(STREAM), 10))[0] == 200


WRONG_COUNTS: dict[str, Any] = {
    "negative": COUNTED | {"usage": USAGE | {"prompt_tokens": -1}},
    "negative output": COUNTED | {"usage": USAGE | {"output_tokens": -1, "cached_tokens": -5}},
    "a text": COUNTED | {"usage": USAGE | {"prompt_tokens": "3"}},
    "half a sequence": COUNTED | {"usage": USAGE | {"sequences": 0.5}},
    "a huge number": COUNTED | {"usage": USAGE | {"prompt_tokens": 1 << 50}},
    "before it began": COUNTED | {"usage": USAGE | {"prefill_s": -5.0}},
    "a field less": {key: value for key, value in COUNTED.items() if key != "wall_s"},
    "a list": [1],
}


async def tell(home: Rig, peer: FakePeer, counted: Any) -> int:
    """The peer says what it has counted of the last hop."""
    if isinstance(counted, dict):
        counted = counted | {"request_id": peer.hops[-1].attempt_id}
    content = {"gateway": peer.hops[-1].gateway, "finished": counted}
    return (await home.ask(content, USAGE_PATH, headers=shown("us", "eu")))[0]


async def test_a_count_that_cannot_be_counts_for_nothing(fake: tuple[Rig, FakePeer]) -> None:
    """And the gateway goes on to close its ledgers."""
    home, peer = fake
    for counted in WRONG_COUNTS.values():
        assert (await home.ask(STREAM))[0] == 200
        assert await tell(home, peer, counted) == 400
    await home.last(len(WRONG_COUNTS))
    assert {(ledger.finished, ledger.outcome) for ledger in home.closed} == {(None, RequestOutcome.OK)}
    assert {ledger.decisions[-1].verdict.value for ledger in home.closed} == {"estimated"}
    assert home.owner.snapshot().counted == 0


async def test_a_count_that_can_be_is_the_ledgers(fake: tuple[Rig, FakePeer]) -> None:
    """But what its own engines have not counted teaches this cell nothing of its prompts."""
    home, peer = fake
    before = home.dispatcher.ratio.chars_per_token
    assert (await home.ask({**STREAM, "prompt": "x" * 100}))[0] == 200
    assert await tell(home, peer, COUNTED | {"weather": "of a later version"}) == 200
    ledger = await closed(home, 0)
    assert ledger.finished is not None
    assert (ledger.finished.usage.prompt_tokens, ledger.finished.usage.output_tokens) == (900, 2)
    assert home.dispatcher.ratio.chars_per_token == before
    assert await tell(home, peer, COUNTED) == 200, "said twice, it is nothing"


async def test_an_answer_that_is_not_streamed_says_when_its_first_token_came(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    for number, after_s in enumerate(("0.01", "-5", "1e9", "nan"), 1):
        peer.script = error(b"{}", 200, x_raylane_first_token_s=after_s)
        assert (await home.ask(ASK))[0] == 200
        ledger = await home.last(number)
        assert ledger.ttft_s is not None
        assert 0 <= ledger.ttft_s <= ledger.wall_s
    peer.script = error(b"{}", 200, x_raylane_first_token_s="soon")
    await goes_home(home, peer, ASK)


async def test_an_error_brings_no_headers_and_no_words_of_its_own(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    body = b'{"error": {"code": "invalid_value", "message": "too hot", "param": "temperature"}}'
    peer.script = error(body, 400, set_cookie="a=b", retry_after="7")
    status, payload, headers = await home.answered(STREAM)
    found = openai_error(payload)
    assert (status, found["code"], found["param"]) == (400, "invalid_value", "temperature")
    assert headers["retry-after"] == "7"
    assert "set-cookie" not in headers
    peer.script = answer(event("a"), b'data: {"error": {"code": "a label of my own"}}\n\n', DONE)
    assert (await home.ask(STREAM))[0] == 200
    assert (await closed(home, 1)).error == "engine_error"


async def test_what_has_killed_a_peers_replicas_runs_at_home_no_more(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    died = b'{"error": {"code": "query_of_death", "message": "two replicas died", "param": null}}'
    peer.script = error(died, 422)
    for asked in range(2):
        assert (await home.error(STREAM))[:1] == (422,)
        assert len(peer.hops) == 1, asked
    (suspect,) = home.owner.scheduler.suspects.all(time.monotonic())
    assert (suspect.deaths, suspect.answered) == (2, False)


async def test_a_view_that_is_none_spoils_no_other_cells(fake: tuple[Rig, FakePeer]) -> None:
    home, peer = fake
    views = (DEEP, b'{"x": 1e999}', b'{"x": NaN}', b'{"x": "\\ud800"}', b"\xff", b"", b'{"x": 1}')
    for view in views:
        peer.view = view
        shown_by = {"authorization": "Bearer the cluster's secret of eu"}
        status, answer = await home.get(f"{REGIONS_PATH}?view=status", **shown_by)
        assert status == 200, view
        found = {one["region"]: one for one in answer["regions"]}
        assert found["eu"]["reachable"]
        assert found["us"]["reachable"] is (view == views[-1])


async def test_what_nobody_has_asked_about_is_not_kept(fake: tuple[Rig, FakePeer]) -> None:
    """Models that a peer makes up, new ones in each digest."""
    home, peer = fake
    answered = 0

    async def talkative(request: web.Request) -> web.StreamResponse:
        nonlocal answered
        asked = (await request.json())["questions"]
        answered += 1
        digest = digest_to_json(peer.digest("demo", Question(*asked["demo"])))
        made_up = [digest["models"][0] | {"model": f"{answered}-{number}"} for number in range(20)]
        whole = {"demo": digest | {"models": [*made_up, *digest["models"]]}, "other": digest}
        return peer.says({"digests": whole})

    peer.answer_digest = talkative
    await until(lambda: answered >= 5)
    core = peering_of(home).core
    assert time.monotonic() - core.peers.by_cell["us"].asked_s < 1, "its word on what was asked is taken over"
    known = core.peers.by_cell["us"].digest
    assert known is not None
    assert [one.model for one in known.models] == ["demo"]
    assert {model for model, _ in core._tenants._heard} == {"demo"}


# Clients that leave.
LEFT_AT: dict[str, tuple[Any, Script]] = {
    "taken": (STREAM, hangs),
    "head": (STREAM, answer(then=hangs)),
    "streaming": (STREAM, answer(event("a"), then=hangs)),
    "half an event": (STREAM, answer(b"data: {", then=hangs)),
    "half of a whole answer": (ASK, answer(b"{", kind="application/json", then=hangs)),
}


async def test_a_client_of_another_gateway_than_the_owners_may_leave_at_any_time(
    make_cells: MakeCells, subtests: pytest.Subtests
) -> None:
    cells = make_cells(gateway={"heartbeat_s": 0.0, "replicas": 2, "lame_duck_s": 0.1})
    home, peer = await beside_fake(cells)
    second = await cells.add_gateway("eu", gateway={"heartbeat_s": 0.0, "lame_duck_s": 0.1})
    for number, (name, (body, script)) in enumerate(LEFT_AT.items(), 1):
        with subtests.test(left=name):
            peer.script = script
            client = await second.connect(body)
            await until(lambda number=number: len(peer.hops) == number)  # type: ignore[misc]
            await asyncio.sleep(0.1)
            client.leave()
            await until(lambda number=number: peer.left == number, within_s=5)  # type: ignore[misc]
            assert (await closed(second, number - 1)).outcome is RequestOutcome.CANCELLED
            await until(lambda: not [*home.owner.records])
    await peer.stop()
