"""A simulated replica without Ray: the production shell around a simulated engine, on a loopback port."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cluster.spec import Model
from deployments.engine.replica import Identity, ReplicaServer
from deployments.engine.simulated.backend import start_simulated
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from tests.simulated import simulated_model

SECRET = "the-secret"
STEP_S = 0.004
LIMITS = EngineModelLimits(sequences=8, step_tokens=512, kv_tokens=16_384)
COST = CostModel(line(STEP_S, 1e-5), line(0.0, 0.0), plain_attention(0.0, 0.0))


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Model]:
    """A simulated model; arguments go into its `simulated` section, `step_log` into the model."""

    def make(step_log: str | None = None, **simulated: Any) -> Model:
        own = {"simulated": simulated, "settings": {"stream_interval": 8}, "step_log": step_log}
        return Model.model_validate(simulated_model("m-simulated", tmp_path / "costs.json", LIMITS, COST, **own))

    return make


@pytest.fixture
async def make_replica(make_model: Callable[..., Model]) -> AsyncIterator[Callable[..., Awaitable[ReplicaServer]]]:
    """Starts replicas, and ends them."""
    replicas: list[ReplicaServer] = []

    async def make(**simulated: Any) -> ReplicaServer:
        replica = ReplicaServer(
            make_model(**simulated), Identity(f"r{len(replicas)}", "node", "127.0.0.1"), SECRET, start_simulated
        )
        await replica.start()
        replicas.append(replica)
        return replica

    yield make
    for replica in replicas:
        await replica.stop()


@pytest.fixture
async def replica(make_replica: Callable[..., Awaitable[ReplicaServer]]) -> ReplicaServer:
    return await make_replica()


@pytest.fixture
async def session(replica: ReplicaServer) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession(
        replica.facts.url, headers=headers, timeout=aiohttp.ClientTimeout(total=20)
    ) as session:
        yield session
