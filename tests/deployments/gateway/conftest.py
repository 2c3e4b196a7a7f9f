"""Fixtures of the gateway's tests. The loop is uvloop, as it is in a Serve replica: how it writes and closes is a part
of what is tested."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from deployments.cell.directory import Directory
from deployments.gateway.gateway import Gateway
from tests.deployments.gateway.fake_engine import FakeEngine
from tests.deployments.gateway.rig import EXTERNAL_KEY, SECRET, Handle, MakeRig, Rig, free_port, make_spec


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def make_rig(tmp_path: Path) -> AsyncIterator[MakeRig]:
    """Starts a gateway with that many engines; other arguments go into the spec. At the end the books of each must
    balance."""
    rigs: list[Rig] = []

    async def make(
        engines: int = 1, timeouts: dict[str, float] | None = None, limits: dict[str, int] | None = None, **spec: Any
    ) -> Rig:
        port = free_port()
        cluster = make_spec(port, timeouts or {}, limits or {}, **spec)
        gateway = Gateway(cluster, cluster.regions[0], SECRET, tmp_path, external_key=EXTERNAL_KEY)
        directory = Directory(SECRET)
        await gateway.start(Handle(directory))
        rig = Rig(gateway, directory, port, tmp_path)
        rigs.append(rig)
        for _ in range(engines):
            await rig.add(FakeEngine())
        return rig

    try:
        yield make
        for rig in rigs:
            await rig.settled()
    finally:
        for rig in rigs:
            await rig.stop()


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """A gateway with one engine."""
    return await make_rig()
