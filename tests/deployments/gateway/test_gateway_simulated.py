"""The gateway before a simulated engine: the scheduler is given the same facts as in the simulator, whether answers are
streamed or not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from cluster.spec import Model
from deployments.engine.replica import Identity, ReplicaServer
from deployments.engine.simulated.backend import start_simulated
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.gateway.entrance import digest_of
from deployments.scheduling import Scheduler, SchedulingPolicy
from deployments.telemetry.table import GPU_BUSY, GPU_MEMORY, METRICS, Exporter
from deployments.telemetry.verdicts import RequestVerdict
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import plain_workload
from tests.deployments.gateway.rig import CREDENTIALS, SECRET, MakeRig, Rig, until
from tests.simulated import simulated_model

LIMITS = EngineModelLimits(sequences=64, step_tokens=2_048, kv_tokens=400_000)
COST = CostModel(line(0.004, 1e-5), line(0.0, 0.0), plain_attention(0.0, 0.0))
PROMPT_TOKENS = 900
SPEED = 2.0


@asynccontextmanager
async def simulated(make_rig: MakeRig, folder: Path, speed: float, **gateway: Any) -> AsyncIterator[Rig]:
    """A gateway with one simulated engine of 64 seats."""
    own = {"simulated": {"speed": speed}, "settings": {"stream_interval": 64}}
    model = simulated_model("m-simulated", folder / "costs.json", LIMITS, COST, **own)
    rig = await make_rig(engines=0, models=[model], **gateway)
    replica = ReplicaServer(Model.model_validate(model), Identity("r", "node", "127.0.0.1"), SECRET, start_simulated)
    await replica.start()
    await rig.directory.register(replica.facts)
    await until(lambda: "r" in rig.owner.scheduler.fleet.by_id)
    try:
        yield rig
    finally:
        await replica.stop()


@pytest.fixture
async def rig(make_rig: MakeRig, tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway with one simulated engine of 64 seats, twice as fast as its costs say."""
    async with simulated(make_rig, tmp_path, SPEED) as rig:
        yield rig


async def ask(rig: Rig, stream: bool, output_tokens: int, number: int = 0) -> None:
    """Asks with a prompt that shares its beginning with no other number's."""
    body = {
        "model": "m-simulated",
        "prompt": list(range(number, number + PROMPT_TOKENS)),
        "max_tokens": output_tokens,
        "stream": stream,
    }
    status, _ = await rig.ask(body)
    assert status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_the_scheduler_is_given_the_same_facts_as_in_the_simulator(rig: Rig, stream: bool) -> None:
    output_tokens = 200
    cell = CellSimulator(
        CellSettings(1, LIMITS, SchedulingPolicy()),
        COST,
        plain_workload(np.array([0.0]), np.array([PROMPT_TOKENS]), np.array([output_tokens])),
    )
    simulated = facts_of(cell.scheduler)
    cell.run()
    live = facts_of(rig.owner.scheduler)
    await ask(rig, stream, output_tokens)
    await until(lambda: len(live) == 4)
    assert [name for name, _ in simulated] == ["submit", "first_token", "release", "learn"]
    assert [name for name, _ in live[:2]] == ["submit", "first_token"]
    assert {name for name, _ in live[2:]} == {
        "release",
        "learn",
    }  # the answer and the engine's account of it come by two connections
    assert first_token_at(simulated) < 0.1
    assert first_token_at(live) < 0.5  # a busy machine is late; at the answer's end it would be 1


async def test_a_stream_that_waits_at_a_simulated_engine_says_so(make_rig: MakeRig, tmp_path: Path) -> None:
    async with simulated(
        make_rig, tmp_path, speed=0.05, heartbeat_s=0.1
    ) as rig:  # a step of prefill takes half a second
        body = {"model": "m-simulated", "prompt": list(range(PROMPT_TOKENS)), "max_tokens": 2, "stream": True}
        async with rig.post("/v1/completions", body) as response:
            assert response.headers["x-raylane-simulated"] == "true"
            first, *_, done = (await response.read()).removesuffix(b"\n\n").split(b"\n\n")
    assert first == b": placed, waiting for the first token"
    assert done == b"data: [DONE]"


@pytest.mark.whole
@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_s_seats_fill_whether_answers_are_streamed_or_not(rig: Rig, stream: bool) -> None:
    asked = [asyncio.create_task(ask(rig, stream, 3_000, number)) for number in range(128)]
    try:
        await until(lambda: len(rig.owner.scheduler.leases) >= LIMITS.sequences or any(one.done() for one in asked))
        assert not any(one.done() for one in asked)
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def facts_of(scheduler: Scheduler) -> list[tuple[str, float]]:
    """The facts that the scheduler is given from now on, and when."""
    facts: list[tuple[str, float]] = []

    def noting(name: str) -> None:
        call = getattr(scheduler, name)

        def note(*arguments: Any) -> Any:
            facts.append((name, next(one for one in reversed(arguments) if isinstance(one, float))))
            return call(*arguments)

        setattr(scheduler, name, note)

    for name in ("submit", "first_token", "release", "learn"):
        noting(name)
    return facts


def first_token_at(facts: list[tuple[str, float]]) -> float:
    """Which share of a request's time had passed when its first token was there."""
    times = dict(facts)
    return (times["first_token"] - times["submit"]) / (times["release"] - times["submit"])


@pytest.mark.parametrize(("sharing", "others"), [("tenant", 0), ("cluster", PROMPT_TOKENS // 64 * 64)])
async def test_what_a_tenant_finds_cached(make_rig: MakeRig, tmp_path: Path, sharing: str, others: int) -> None:
    """By the engine's own count, and by the scheduler's credit."""
    tenants = [{"name": name, "keys": [digest_of(f"key-{name}")]} for name in ("a", "b")]
    async with simulated(make_rig, tmp_path, SPEED, tenants=tenants, prefix_sharing=sharing) as rig:
        body = {"model": "m-simulated", "prompt": list(range(PROMPT_TOKENS)), "max_tokens": 2}
        cached = []
        for number, key in enumerate(("key-a", "key-a", "key-b", "key-b"), start=1):
            status, payload = await rig.ask(body, headers={"authorization": f"Bearer {key}"})
            assert status == 200
            cached.append(json.loads(payload)["usage"]["prompt_tokens_details"]["cached_tokens"])
            await until(lambda number=number: sum(ledger.finished is not None for ledger in rig.closed) == number)
        mine = PROMPT_TOKENS // 64 * 64
        assert cached == [0, mine, others, mine]
        assert [ledger.finished.usage.cached_tokens for ledger in rig.closed if ledger.finished] == cached
        placed = [
            next(one for one in ledger.decisions if one.verdict is RequestVerdict.PLACED) for ledger in rig.closed
        ]
        assert [one.facts["booked_prefill_tokens"] for one in placed] == [PROMPT_TOKENS - tokens for tokens in cached]


async def test_the_slos_on_metrics_are_those_of_the_tally(make_rig: MakeRig, tmp_path: Path) -> None:
    """Sequential requests, some of whose prompts take longer than the SLO allows; half of the clients stream."""
    slow = [{"name": "interactive", "ttft_ms": 150, "itl_ms": 50}]
    async with simulated(make_rig, tmp_path, speed=0.1, classes=slow) as rig:
        for number in range(12):
            body = {"prompt": list(range(number, number + 50 + 1_800 * (number % 3 == 0))), "max_tokens": 3}
            await rig.ask({"model": "m-simulated", "stream": number % 2 == 0, **body})
        record = (await rig.last(12)).record()
        flows = rig.owner.snapshot().flows
        samples = await rig.samples("raylane_slo_requests_total")

    def counted(slo: str, result: str) -> float:
        return sum(count for name, count in samples.items() if f'result="{result}",slo="{slo}"' in name)

    met, missed = sum(flow.met for flow in flows), sum(flow.missed for flow in flows)
    assert met > 0
    assert missed > 0
    assert (counted("ttft", "met"), counted("ttft", "missed")) == (met, missed)
    assert counted("itl", "met") + counted("itl", "missed") == 12
    assert 0 < record["client_rtt_s"] < 1


async def test_a_replica_exports_its_part_of_the_table_of_metrics(rig: Rig) -> None:
    """But for GPUs, which a simulated engine has none of."""
    await ask(rig, True, 2)
    await rig.last()
    drain = {"by": "me", "why": "", "replica": "r"}
    assert (await rig.ask(drain, "/raylane/drain", headers=CREDENTIALS))[0] == 200
    found = {family.name: family.type for family in REGISTRY.collect() if family.samples}
    known = {one.name: one.kind for one in METRICS if one.exporter is Exporter.ENGINE}
    assert known.keys() - found.keys() == {GPU_BUSY.name, GPU_MEMORY.name}
    assert {name for name in found if name.startswith("raylane_")} <= {one.name for one in METRICS}
    assert all(found.get(name, kind) == kind for name, kind in known.items())
