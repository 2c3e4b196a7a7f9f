"""An owner's claims on replicas, over real HTTP, and a channel that breaks. Which owner a dispatcher follows, whatever
happens: `test_shaky_cell.py`."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from cluster.spec import EngineSettings, Model
from deployments.cell.owners import Ownership
from deployments.decision_log import KEPT, path_parts
from deployments.ownership import owner_tracker as module
from deployments.ownership.channel import NotOwner
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.owner_tracker import OwnerTracker
from deployments.ownership.takeover import Booking
from deployments.protocol import CLAIM_PATH, STALE_EPOCH_CODE, ReplicaFacts
from deployments.scheduling import Binding, SchedulingPolicy
from tests.deployments.gateway.rig import until
from tests.deployments.ownership.lane_owner_rig import facts
from tests.deployments.ownership.virtual_time import VirtualLoop, virtual_time
from tests.http_server import answering

MODEL = Model(name="org/demo", source="/nowhere", settings=EngineSettings(max_model_len=1_024))
NOBODY = "http://127.0.0.1:9"
BOOKING = Booking("g", "q", 1, "", 10, 20, 1, 10, 30, 20, 0).encode()
RUNS: list[dict[str, object]] = [{"request_id": "q-1", "booking": BOOKING, "started": False}]


class Registrar:
    """The directory, as far as it is told of anything."""

    def __init__(self) -> None:
        self.reported: list[tuple[object, ...]] = []

    def overtaken(self, model: str, highest: int) -> None:
        self.reported.append(("overtaken", model, highest))

    def doubt(self, gateway_id: str) -> None: ...


class Replica:
    """Answers claims. `epochs` are those that it was shown."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.highest = 0
        self.failures = 0
        self.runs: list[dict[str, object]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.epochs.append((await request.json())["epoch"])
        if self.failures:
            self.failures -= 1
            return web.Response(status=500)
        if self.epochs[-1] < self.highest:
            return web.json_response({"error": {"code": STALE_EPOCH_CODE, "highest": self.highest}}, status=409)
        return web.json_response({"epoch": self.epochs[-1], "running": self.runs})


class World:
    """A dispatcher, its owner tracker, a replica, a directory."""

    def __init__(self, session: aiohttp.ClientSession, facts: ReplicaFacts, replica: Replica) -> None:
        self.dispatcher = Dispatcher(MODEL, "me")
        self.registrar, self.facts, self.replica = Registrar(), facts, replica
        self.owner_tracker = OwnerTracker(
            self.dispatcher, "me", session, self.registrar, lambda: (SchedulingPolicy(), Binding())
        )

    def reported(self, epoch: int, gateway: str = "me") -> None:
        self.owner_tracker.reported(Ownership(MODEL.name, epoch, gateway, NOBODY))

    async def claimed(self) -> None:
        """Waits until the replica is in use."""
        await until(lambda: self.dispatcher.own is not None and "r1" in self.dispatcher.own.scheduler.fleet.by_id)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    monkeypatch.setattr(module, "MAX_RETRY_S", 0.002)
    replica = Replica()
    async with answering(CLAIM_PATH, replica.answer) as url, aiohttp.ClientSession() as session:
        made = World(session, facts(url=url), replica)
        yield made
        made.owner_tracker.close()


async def test_a_replica_is_used_once_it_knows_the_epoch(world: World) -> None:
    world.replica.runs = RUNS
    world.dispatcher.replica_up(world.facts)
    world.reported(3)
    assert world.dispatcher.own is not None
    assert world.dispatcher.own.scheduler.fleet.by_id == {}
    await world.claimed()
    assert (world.replica.epochs, world.dispatcher.own.snapshot().adopted) == ([3], 1)


async def test_a_claim_that_failed_is_made_again_while_the_replica_is_ready(world: World) -> None:
    world.replica.failures = 2
    world.dispatcher.replica_up(world.facts)
    world.reported(3)
    await world.claimed()
    assert world.replica.epochs == [3, 3, 3]


async def test_who_is_overtaken_owns_nothing_any_more_and_says_so(world: World) -> None:
    assert world.owner_tracker.owner_url is None
    world.replica.highest = 8
    world.dispatcher.replica_up(world.facts)
    world.reported(3)
    await until(lambda: bool(world.registrar.reported))
    assert world.registrar.reported == [("overtaken", "org/demo", 8)]
    assert (world.dispatcher.owner, world.owner_tracker.epoch, world.owner_tracker.highest) == (None, None, 8)
    assert (world.owner_tracker.taken_over, world.owner_tracker.owner_url) == (1, NOBODY)
    world.owner_tracker.overtaken(5)
    assert world.owner_tracker.highest == 8


def logs_in(folder: Path) -> set[str]:
    return {path_parts(path)[0] for path in folder.iterdir()}


async def test_the_decision_logs_of_a_model_have_one_limit_whoever_owns_it(world: World, tmp_path: Path) -> None:
    other = "org+demo-epoch-1-me-epoch-1-me"  # another model's
    (tmp_path / f"{other}.000001.log").touch()
    world.owner_tracker.log_folder = tmp_path
    for epoch in range(1, KEPT + 5):
        world.reported(epoch)
        assert world.dispatcher.own is not None
        world.dispatcher.own.scheduler.step(time.monotonic())
    world.owner_tracker.close()
    assert logs_in(tmp_path) == {other, *(f"org+demo-epoch-{epoch}-me" for epoch in range(4, KEPT + 5))}


async def test_replicas_of_orphans_are_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_ORPHANS_S", 0.005)
    world.replica.runs = RUNS
    world.dispatcher.replica_up(world.facts)
    world.reported(3)
    await world.claimed()
    world.replica.runs = []
    owner = world.dispatcher.own
    assert owner is not None
    await until(lambda: owner.snapshot().endings["failed"] == 1)
    asked = len(world.replica.epochs)
    await asyncio.sleep(0.03)
    assert len(world.replica.epochs) <= asked + 1, "nobody is asked where there are none"


def test_a_channel_that_breaks_at_once_is_opened_ever_more_seldom_and_one_that_stood_a_second_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stood = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.5, 0.0]
    opened: list[float] = []
    loop = VirtualLoop()
    all_broke = asyncio.Event()

    class Breaks:
        def __init__(self, *_: object) -> None:
            pass

        async def run(self, *_: object) -> None:
            opened.append(loop.now)
            if len(opened) > len(stood):
                all_broke.set()
                return
            await asyncio.sleep(stood[len(opened) - 1])
            raise NotOwner

    async def follow() -> None:
        world = World(None, None, Replica())  # type: ignore[arg-type]
        world.reported(3, "other")
        await all_broke.wait()
        world.owner_tracker.close()

    monkeypatch.setattr(module, "RemoteOwner", Breaks)
    with virtual_time(loop, module):
        loop.run_until_complete(follow())
    loop.close()
    waits = [after - before - for_s for before, after, for_s in zip(opened, opened[1:], stood, strict=False)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.05, 0.1])
