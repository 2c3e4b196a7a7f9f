"""The replica's front door and the owners of its model: epochs, request ids, claims."""

import asyncio
import json

import aiohttp
import pytest

from deployments.protocol import (
    BOOKING_HEADER,
    CLAIM_PATH,
    DUPLICATE_CODE,
    EPOCH_HEADER,
    REQUEST_ID_HEADER,
    STALE_EPOCH_CODE,
)
from tests.deployments.engine.guarded_engine import Behind


async def code_of(response: aiohttp.ClientResponse) -> tuple[int, str | None]:
    body = json.loads(await response.read())
    return response.status, body["error"]["code"] if isinstance(body, dict) and "error" in body else None


async def test_an_overtaken_epoch_gets_no_work_done(behind: Behind, session: aiohttp.ClientSession) -> None:
    for epoch, status in ((1, 200), (3, 200), (2, 409), (3, 200), (0, 409), (4, 200)):
        async with session.post("/v1/completions", headers={EPOCH_HEADER: str(epoch)}) as response:
            await response.read()
            assert response.status == status, epoch
    async with session.post("/v1/completions", headers={EPOCH_HEADER: "3"}) as response:
        assert await code_of(response) == (409, STALE_EPOCH_CODE)
    async with session.post("/v1/completions") as response:
        assert await code_of(response) == (409, STALE_EPOCH_CODE)
    async with session.post("/tokenize") as response:
        assert response.status == 200
        await response.read()
    async with asyncio.timeout(20):
        for _ in range(5):  # what was not refused: four completions and the tokens
            await behind.reports.get()


async def test_a_live_request_id_is_refused_and_a_dead_one_is_not(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.go.clear()
    named = {REQUEST_ID_HEADER: "one"}
    async with session.post("/v1/completions", headers=named) as first:
        await first.content.readany()
        async with session.post("/v1/completions", headers=named) as second:
            assert await code_of(second) == (409, DUPLICATE_CODE)
        assert len(behind.books) == 1
        behind.go.set()
        await first.read()
    await behind.reports.get()
    async with session.post("/v1/completions", headers=named) as third:
        assert third.status == 200


async def test_a_claim_tells_what_runs_and_shuts_out_the_owner_before(
    behind: Behind, session: aiohttp.ClientSession
) -> None:
    behind.go.clear()
    async with session.post(
        "/v1/completions", headers={REQUEST_ID_HEADER: "one", EPOCH_HEADER: "5", BOOKING_HEADER: "10,20,1"}
    ) as running:
        await running.content.readany()
        async with session.post(CLAIM_PATH, json={"epoch": 6}) as claim:
            assert await claim.json() == {
                "epoch": 6,
                "running": [{"request_id": "one", "booking": "10,20,1", "started": True}],
            }
        async with session.post(CLAIM_PATH, json={"epoch": 5}) as claim:
            assert await code_of(claim) == (409, STALE_EPOCH_CODE)
        async with session.post("/v1/completions", headers={EPOCH_HEADER: "5"}) as late:
            assert await code_of(late) == (409, STALE_EPOCH_CODE)
        behind.go.set()
        assert (await running.read()).endswith(b"!"), "what ran before goes on"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"epoch": 0}', b'{"epoch": "7"}', b'{"epoch": true}', b'{"epoch": 7}' + b" " * 10_000]
)
async def test_a_claim_that_is_none(session: aiohttp.ClientSession, body: bytes) -> None:
    async with session.post(CLAIM_PATH, data=body) as response:
        assert response.status == 400
    async with session.get(CLAIM_PATH) as response:
        assert response.status == 405
