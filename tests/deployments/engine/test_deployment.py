"""Registration: the directory hears again and again that a replica is there, and which epoch it has seen."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deployments.engine import deployment as registration
from deployments.engine.replica import ReplicaServer
from tests.deployments.gateway.rig import Handle, until


class Listens:
    """A directory that notes what it is told."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, ...]] = []

    async def register(self, facts: Any, epoch: int, where: str) -> None:
        self.reported.append(("register", facts.replica_id, str(epoch)))

    async def deregister(self, replica_id: str) -> None:
        self.reported.append(("deregister", replica_id))


async def test_each_registration_tells_the_highest_epoch_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "REGISTER_EVERY_S", 0.01)
    replica = SimpleNamespace(facts=SimpleNamespace(replica_id="r1"), epoch=0, left_ready=asyncio.Event())
    directory = Listens()
    registered = asyncio.create_task(
        registration.keep_registered(cast(ReplicaServer, replica), Handle(cast(Any, directory)))
    )
    await until(lambda: ("register", "r1", "0") in directory.reported)
    replica.epoch = 7
    await until(lambda: ("register", "r1", "7") in directory.reported)
    replica.left_ready.set()
    await registered
    assert directory.reported[-1] == ("deregister", "r1")
