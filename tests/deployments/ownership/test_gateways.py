"""Two gateways and one model: whoever holds the client, and whatever happens to the owner, a request is answered
once."""

import asyncio
import io

import aiohttp
import pytest

from deployments.cell.owners import Ownership
from deployments.ownership import messages
from tests.deployments.gateway.fake_engine import DONE, event, pieces, waiting
from tests.deployments.gateway.rig import ASK, CREDENTIALS, SECRET, Rig, until
from tests.deployments.ownership.conftest import MakeCell

STREAM = {**ASK, "stream": True}


async def test_every_gateway_answers_and_one_decides(make_cell: MakeCell) -> None:
    cell = await make_cell(gateways=3, engines=2)
    go = asyncio.Event()
    for engine in cell.engines:
        engine.behave = pieces(event(), go, DONE)
    asks = [asyncio.create_task(rig.ask(STREAM)) for rig in cell.rigs for _ in range(4)]
    await until(lambda: sum(len(engine.seen) for engine in cell.engines) >= 8)
    assert [len(engine.seen) for engine in cell.engines] == [4, 4], "one scheduler balances for all"
    go.set()
    assert {status for status, _ in await asyncio.gather(*asks)} == {200}
    snapshot = cell.owner.owner.snapshot()
    assert (snapshot.placed, snapshot.endings["finished"]) == (12, 12)
    assert {seen.headers["x-raylane-epoch"] for engine in cell.engines for seen in engine.seen} == {"1"}


async def test_what_waits_at_another_gateway_waits_in_the_one_lane(make_cell: MakeCell) -> None:
    cell = await make_cell()
    go = asyncio.Event()
    cell.engines[0].behave = waiting(go)
    asks = [asyncio.create_task(rig.ask()) for rig in cell.rigs for _ in range(6)]
    await until(lambda: sum(lane.waiting for lane in cell.owner.owner.snapshot().lanes) == 12 - 4)
    leaver = asks.pop()
    leaver.cancel()
    await until(lambda: sum(lane.waiting for lane in cell.owner.owner.snapshot().lanes) <= 7)
    go.set()
    assert {status for status, _ in await asyncio.gather(*asks)} == {200}


async def test_a_limit_is_the_cells(make_cell: MakeCell) -> None:
    """What the owner turns away, it turns away everywhere, with the same words."""
    cell = await make_cell()
    for rig in cell.rigs:
        status, error = await rig.error({**ASK, "prompt": ["x"] * 3_000})
        assert (status, error["param"]) == (400, "prompt")
    go = asyncio.Event()
    cell.engines[0].behave = waiting(go)
    policy = cell.owner.owner.scheduler.lanes.policy
    cell.owner.owner.scheduler.lanes.policy = type(policy)(lanes=policy.lanes, max_waiting=1)
    asks = [asyncio.create_task(cell.other.ask()) for _ in range(5)]
    await until(lambda: sum(lane.waiting for lane in cell.owner.owner.snapshot().lanes) == 1)
    status, error = await cell.other.error()
    assert (status, error["code"]) == (503, "overloaded")
    go.set()
    assert {status for status, _ in await asyncio.gather(*asks)} == {200}


@pytest.mark.whole
async def test_a_planned_stop_costs_nothing(make_cell: MakeCell) -> None:
    """The owner stops while its own and the other's requests run and wait, on connections that are kept."""
    cell = await make_cell(engines=2)
    stopping, staying = cell.owner, cell.other
    for engine in cell.engines:
        engine.behave = pieces(event(), 0.05, event(), 0.05, DONE)
    statuses: list[int] = []
    stop = asyncio.Event()

    async def client(rig: Rig) -> None:
        """Asks again and again on one connection; goes to the other gateway when its own tells it to, as behind one
        port."""
        async with aiohttp.ClientSession() as session:
            while not stop.is_set():
                async with session.post(rig.url + "/v1/completions", json=STREAM) as response:
                    assert b"[DONE]" in await response.read()
                    statuses.append(response.status)
                    if response.headers.get("connection") == "close":
                        rig = staying

    clients = [asyncio.create_task(client(rig)) for rig in cell.rigs for _ in range(12)]
    await until(lambda: len(statuses) > 40)
    cell.rigs.remove(stopping)
    await stopping.gateway.stop()
    assert staying.owner.epoch == 2
    seen = len(statuses)
    await until(lambda: len(statuses) > seen + 40)
    stop.set()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    assert staying.owner.snapshot().adopted > 0
    assert staying.dispatcher.losses.requests == 0


async def test_the_owner_dies(make_cell: MakeCell) -> None:
    cell = await make_cell(engines=2)
    dying, staying = cell.owner, cell.other
    go = asyncio.Event()
    for engine in cell.engines:
        engine.behave = pieces(event("a"), go, event("b"), DONE)
    lost = [asyncio.create_task(dying.ask(STREAM)) for _ in range(8)]
    await until(lambda: sum(engine.open for engine in cell.engines) == 8)
    kept = [asyncio.create_task(staying.ask(STREAM)) for _ in range(12)]
    await until(lambda: sum(lane.waiting for lane in dying.owner.snapshot().lanes) == 20 - 2 * 4)
    await cell.crash(dying)
    assert all(
        isinstance(result, aiohttp.ClientError) for result in await asyncio.gather(*lost, return_exceptions=True)
    )
    await until(lambda: staying.dispatcher.own is not None)
    assert staying.owner.epoch == 2
    await until(lambda: staying.dispatcher.losses.requests == 8)
    assert staying.dispatcher.losses.tokens > 0
    go.set()
    answers = await asyncio.gather(*kept)
    assert {status for status, _ in answers} == {200}
    assert {body for _, body in answers} == {event("a") + event("b") + DONE}
    assert (
        1 <= staying.dispatcher.handed_on <= 12
    )  # what the dying one's own end made room for may have been placed before it was gone


async def test_streams_outlive_the_owner(make_cell: MakeCell) -> None:
    cell = await make_cell()
    dying, staying = cell.owner, cell.other
    go = asyncio.Event()
    cell.engines[0].behave = pieces(event("a"), go, event("b"), DONE)
    kept = [asyncio.create_task(staying.ask(STREAM)) for _ in range(4)]
    await until(lambda: cell.engines[0].open == 4)
    await cell.crash(dying)
    await until(lambda: staying.dispatcher.own is not None and staying.owner.snapshot().adopted == 4)
    assert staying.owner.snapshot().replicas[0].leases == 4
    go.set()
    assert {body for _, body in await asyncio.gather(*kept)} == {event("a") + event("b") + DONE}
    assert staying.owner.snapshot().endings["finished"] == 4


@pytest.mark.whole
async def test_a_holder_dies(make_cell: MakeCell) -> None:
    """What waits for it leaves the lanes, what ran for it ends when the engine says so."""
    cell = await make_cell()
    staying, dying = cell.owner, cell.other
    cell.engines[0].behave = waiting(asyncio.Event())
    lost = [asyncio.create_task(dying.ask()) for _ in range(9)]
    await until(lambda: sum(lane.waiting for lane in staying.owner.snapshot().lanes) == 5)
    await cell.crash(dying)
    await asyncio.gather(*lost, return_exceptions=True)
    await until(lambda: not [*staying.owner.records])
    assert staying.owner.epoch == 1


async def test_one_that_was_given_up_wrongly_places_nothing_more(make_cell: MakeCell) -> None:
    """The old owner did not hear of it, as if it had been stopped: the engines refuse its leases, its clients are
    served under the new owner, and its late report does not depose that one."""
    cell = await make_cell()
    old, new = cell.owner, cell.other
    owner_tracker = old.gateway._owner_trackers["demo"]
    missed: list[Ownership | None] = []
    reported = owner_tracker.reported
    owner_tracker.reported = missed.append  # type: ignore[method-assign]
    await cell.directory.give_up(old.gateway.gateway_id)
    await until(lambda: new.dispatcher.own is not None and cell.engines[0].claimed == [1, 2])
    assert old.owner.epoch == 1
    ask = asyncio.create_task(old.ask())
    await until(lambda: old.dispatcher.own is None)
    owner_tracker.reported = reported  # type: ignore[method-assign]
    for word in missed:
        owner_tracker.reported(word)
    assert (await ask)[0] == 200
    assert [seen.headers["x-raylane-epoch"] for seen in cell.engines[0].seen] == ["2"]
    await until(lambda: not any(task for task in old.gateway._membership._reported.values() if not task.done()))  # type: ignore[union-attr]
    assert cell.owner is new
    assert new.owner.epoch == 2


async def test_requests_wait_while_nobody_owns(make_cell: MakeCell) -> None:
    cell = await make_cell()
    staying = cell.other
    give_up = cell.directory.give_up

    async def deaf(gateway_id: str) -> None:
        raise OSError("no head")

    cell.directory.give_up = deaf  # type: ignore[method-assign]
    await cell.crash(cell.owner)
    await until(lambda: staying.dispatcher.owner is None)
    asks = [asyncio.create_task(staying.ask()) for _ in range(5)]
    await until(lambda: len(staying.dispatcher) == 5)
    assert (await ready(staying)) == 503
    cell.directory.give_up = give_up  # type: ignore[method-assign]
    assert {status for status, _ in await asyncio.gather(*asks)} == {200}
    assert (await ready(staying)) == 200


async def ready(rig: Rig) -> int:
    async with aiohttp.ClientSession() as session, session.get(rig.url + "/ready") as response:
        return response.status


async def test_an_owner_goes_on_without_a_directory(make_cell: MakeCell, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = await make_cell()

    async def gone(*arguments: object) -> None:
        raise OSError("no head")

    for name in ("join", "watch", "give_up", "overtaken"):
        monkeypatch.setattr(cell.directory, name, gone)
    for _ in range(3):
        for rig in cell.rigs:
            assert (await rig.ask())[0] == 200
    monkeypatch.undo()


async def test_a_replica_that_comes_later_is_claimed(make_cell: MakeCell) -> None:
    cell = await make_cell(engines=0)
    waits = asyncio.create_task(cell.other.ask())
    engine = await cell.add()
    assert (await waits)[0] == 200
    assert engine.claimed == [1]


async def test_status_is_the_cells_whoever_is_asked(make_cell: MakeCell) -> None:
    cell = await make_cell()
    for rig in cell.rigs:
        assert (await rig.ask(headers={"x-request-id": f"at-{rig.port}"}))[0] == 200
        await rig.last()
    async with aiohttp.ClientSession() as session:
        for rig in cell.rigs:
            async with session.get(rig.url + "/raylane/status", headers=CREDENTIALS) as response:
                report = await response.json()
            model = report["models"][0]
            assert (model["placed"], model["endings"]["finished"], model["owner"]) == (
                2,
                2,
                cell.owner.gateway.gateway_id,
            )
            assert model["ttft_ms"]["requests"] == 2
            assert {line["id"] for line in report["gateways"]} == {rig.gateway.gateway_id for rig in cell.rigs}
            for asked in cell.rigs:
                async with session.get(f"{rig.url}/raylane/requests/at-{asked.port}", headers=CREDENTIALS) as response:
                    assert (await response.json())["request_id"] == f"at-{asked.port}"
            async with session.get(f"{rig.url}/raylane/requests/nobody", headers=CREDENTIALS) as response:
                assert response.status == 404
            async with session.get(rig.url + "/raylane/http_sd", headers=CREDENTIALS) as response:
                roles = [group["labels"]["raylane_role"] for group in await response.json()]
            assert sorted(roles) == ["engine", "gateway", "gateway"]


async def test_the_channel_is_closed_to_strangers(make_cell: MakeCell) -> None:
    cell = await make_cell()
    url = cell.owner.gateway.others.own_url + messages.LANES_PATH
    good = {"model": "demo", "gateway": "x", "epoch": "1"}
    cases = [
        ({}, good, 401),
        ({"authorization": "Bearer wrong"}, good, 401),
        ({"authorization": f"Bearer {SECRET}"}, {**good, "epoch": "2"}, 409),
        ({"authorization": f"Bearer {SECRET}"}, {**good, "model": "nobody"}, 409),
        ({"authorization": f"Bearer {SECRET}"}, {}, 409),
    ]
    async with aiohttp.ClientSession() as session:
        for headers, query, status in cases:
            async with session.post(url, params=query, headers=headers) as response:
                assert response.status == status
        async with session.post(
            cell.other.gateway.others.own_url + messages.LANES_PATH, params=good, headers=cases[2][0]
        ) as response:
            assert response.status == 409
        async with session.post(cell.owner.url + messages.LANES_PATH, params=good, headers=cases[2][0]) as response:
            assert response.status == 404, "it is not served on the clients' port"
        for nonsense in (b"nonsense\n", b'{"type":"submit"}\n', b"[]\n", b"\xff\n", b"x" * (2 << 20)):
            async with session.post(url, params=good, headers=cases[2][0], data=io.BytesIO(nonsense)) as response:
                await response.read()
    assert (await cell.other.ask())[0] == 200
