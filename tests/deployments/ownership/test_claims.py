"""A claim and its answers, over real HTTP: what runs, a later epoch, and whatever else a replica may say."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from deployments.ownership import owner_tracker
from deployments.ownership.owner_tracker import ClaimFailed, Overtaken, claim, overtaken_by
from deployments.ownership.takeover import Booking, Running
from deployments.protocol import CLAIM_PATH, STALE_EPOCH_CODE
from tests.deployments.ownership.lane_owner_rig import facts
from tests.http_server import answering

BOOKING = Booking("g1", "q", 4, "b", 70, 30, 2, 140, 300, 31, 1)
Claim = Callable[[web.Response], Awaitable[list[Running]]]


@pytest.fixture
def asked() -> list[object]:
    """What the replica was asked."""
    return []


@pytest.fixture
async def claimed(asked: list[object]) -> AsyncIterator[Claim]:
    """Claims epoch 7 of a replica that answers as it is told."""
    answers: list[web.Response] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return answers.pop()

    async with answering(CLAIM_PATH, answer) as url, aiohttp.ClientSession() as session:

        async def ask(response: web.Response) -> list[Running]:
            answers.append(response)
            return await claim(session, facts(url=url), 7, 100.0)

        yield ask


def runs(booking: str, started: object) -> dict[str, object]:
    return {"request_id": "q-4", "booking": booking, "started": started}


async def test_what_runs_is_told_with_its_booking(claimed: Claim, asked: list[object]) -> None:
    reported = [runs(BOOKING.encode(), True), runs("", False), runs(BOOKING.encode(), False)]
    found = await claimed(web.json_response({"epoch": 7, "running": reported}))
    lease = BOOKING.lease("r1", 100.0)
    assert found == [Running(lease, True), Running(lease, False)]
    assert asked == [{"epoch": 7}]


async def test_a_later_epoch_is_named(claimed: Claim) -> None:
    refusal = {"error": {"code": STALE_EPOCH_CODE, "highest": 9}}
    with pytest.raises(Overtaken) as overtaken:
        await claimed(web.json_response(refusal, status=409))
    assert overtaken.value.highest == 9
    assert overtaken.value.args == (9,)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (500, "{}", r"^500: b'\{\}'$"),
        (409, '{"error":{"code":"other"}}', r"^409: b'"),
        (409, "{}", r"^409: b'\{\}'$"),
        (500, '"' + "x" * 500 + '"', r"""^500: b'"x{199}'$"""),
        (200, "x" * 500, r"^not an answer to a claim: b'x{200}': "),
        (200, "{}", r"^not an answer to a claim: .*`running`"),
        (200, '{"running":[{"booking":"x"}]}', r"^not an answer to a claim: .*`started`.*`\$\.running\[0\]`"),
        (200, '{"running":[{"booking":"x","started":true}]}', r"^not an answer to a claim: .*base64"),
    ],
)
async def test_any_other_answer_is_a_failed_claim(claimed: Claim, status: int, body: str, says: str) -> None:
    with pytest.raises(ClaimFailed, match=says):
        await claimed(web.Response(status=status, text=body))


async def test_a_replica_that_cannot_be_reached_or_says_nothing_is_a_failed_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner_tracker, "_ANSWER_S", 0.05)

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    there = facts(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ClaimFailed, match=r"^TimeoutError\(\)$"):
            await claim(session, there, 7, 100.0)
        server.close()
        monkeypatch.setattr(owner_tracker, "_ANSWER_S", 5.0)  # on a busy machine connecting takes longer than 50 ms
        with pytest.raises(ClaimFailed, match=r"Connect"):
            await claim(session, there, 7, 100.0)


@pytest.mark.parametrize(
    ("status", "answer", "highest"),
    [
        (409, {"error": {"code": STALE_EPOCH_CODE, "highest": 9}}, 9),
        (409, {"error": {"code": "other", "highest": 9}}, None),
        (200, {"error": {"code": STALE_EPOCH_CODE, "highest": 9}}, None),
        (409, {"error": {"code": STALE_EPOCH_CODE}}, None),
        (409, {"error": {"code": STALE_EPOCH_CODE, "highest": "x"}}, None),
        (409, {}, None),
        (409, [], None),
    ],
)
def test_an_engines_refusal_names_the_highest_epoch(status: int, answer: object, highest: int | None) -> None:
    assert overtaken_by(status, json.dumps(answer).encode()) == highest
    assert overtaken_by(409, b"nonsense") is None
