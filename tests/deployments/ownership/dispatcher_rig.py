"""A dispatcher whose gateway owns the model, for the tests of both."""

import asyncio
import time

import pytest

from cluster.spec import EngineSettings, Model
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.protocol import ReplicaFacts
from deployments.scheduling import Placement, Request, SchedulingPolicy, Snapshot

MODEL = Model(name="demo", source="/nowhere", settings=EngineSettings(max_model_len=1_024))


def facts(name: str = "r1", max_num_seqs: int = 1) -> ReplicaFacts:
    return ReplicaFacts(name, "demo", f"http://{name}", 1, "n", "generate", 1_024, max_num_seqs, 2_048, 65_536)


def request(name: str, wait_s: float = 60.0) -> Request:
    now = time.monotonic()
    return Request(name, 10, 10, now, now + 1.0, now + wait_s)


def make_dispatcher(max_waiting: int = 100) -> Dispatcher:
    """A dispatcher whose gateway owns the model, and takes replicas at their word."""
    dispatcher = Dispatcher(MODEL, "here")
    owner = LaneOwner(
        SchedulingPolicy(max_waiting=max_waiting), replicas=dispatcher.replicas, records=dispatcher.records
    )
    dispatcher.on_ready = owner.replica_up
    dispatcher.follow(owner)
    return dispatcher


def books(dispatcher: Dispatcher) -> Snapshot:
    """The owner's books."""
    snapshot = dispatcher.snapshot()
    assert snapshot is not None
    return snapshot


async def wait(dispatcher: Dispatcher, one: Request) -> Placement:
    assert (await dispatcher.submit(one)).accepted
    return await dispatcher.placement(one)


async def waiting(dispatcher: Dispatcher, name: str) -> asyncio.Task[Placement]:
    task = asyncio.create_task(wait(dispatcher, request(name)))
    await asyncio.sleep(0)
    return task


async def cancelled(task: asyncio.Task[Placement]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task
