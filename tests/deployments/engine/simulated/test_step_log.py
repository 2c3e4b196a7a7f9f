"""A simulated engine writes its steps as vLLM's engines do, with the times of its costs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from deployments.engine.replica import ReplicaServer
from planning.costs.steps import read_step_log, samples
from tests.deployments.engine.simulated.conftest import LIMITS, SECRET, STEP_S


async def test_steps_are_logged_with_the_times_of_the_costs(
    make_replica: Callable[..., Awaitable[ReplicaServer]], tmp_path: Path
) -> None:
    folder = tmp_path / "steps"
    replica = await make_replica(step_log=str(folder))
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask(prompt: int) -> None:
            body = {"model": "m-simulated", "prompt": [prompt] * prompt, "max_tokens": 40, "ignore_eos": True}
            async with session.post(replica.facts.url + "/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()

        await asyncio.gather(*(ask(prompt) for prompt in (30, 300, 1_200)))
    await replica.stop()
    (path,) = folder.glob("steps-*.jsonl")
    log = read_step_log(path)
    assert log.facts.max_num_seqs == LIMITS.sequences
    assert log.facts.kv_tokens == LIMITS.kv_tokens
    assert sum(line.prompt_tokens for line in log.lines) == 30 + 300 + 1_200
    assert sum(line.decodes for line in log.lines) == 3 * 39  # a prompt's last step gives the first token
    assert log.lines[-1].running == 0
    steps = list(samples(log))
    assert len(steps) >= 39
    for step in steps:
        assert step.seconds == pytest.approx(STEP_S + 1e-5 * (step.prompt_tokens + step.decodes), abs=3e-6)
