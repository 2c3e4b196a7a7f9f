"""Queries of death on real vLLM: one that nobody knows costs two replicas, one that this project's patch of vLLM puts
right costs none."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.cell.departure import DepartureCause
from tests.live.clients import Answer, ask, clients
from tests.live.cluster import LiveCluster, eventually, held, local_spec
from tests.live.deadly import MARKER, Deadly

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
TRIES = 10
OTHERS = 12


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Two replicas whose engines die of a marker in a prompt."""
    spec = local_spec(max_num_seqs=32, kv_cache_memory_bytes=128 << 20)
    spec["models"][0]["settings"]["extra"] |= {"logits_processors": [f"{Deadly.__module__}:{Deadly.__name__}"]}
    spec["models"][0]["health"] = {"stall_s": 8, "period_s": 1, "timeout_s": 8}
    folder: Path = tmp_path_factory.mktemp("deadly")
    with held(folder, "deadly", spec) as cluster:
        yield cluster


async def send_again_and_again(cluster: LiveCluster, stream: bool) -> list[Answer]:
    """A client that retries whatever it is told, with the same bytes each time."""
    async with clients() as session:
        return [
            await ask(
                session, cluster.url, prompt=[5, 6, 7, *MARKER, 8], stream=stream, max_tokens=20, user=str(stream)
            )
            for _ in range(TRIES)
        ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_query_of_death_costs_two_replicas_and_nobody_else_an_answer(
    deadly: LiveCluster, tell: list[str], stream: bool
) -> None:
    eventually(deadly.is_whole, 180)
    before = {replica["pid"] for replica in deadly.replicas()}
    lost_before = losses(deadly)
    prompt = [9, int(stream)]
    async with clients() as session:
        others = [
            asyncio.create_task(ask(session, deadly.url, stream=False, max_tokens=150, prompt=[*prompt, number]))
            for number in range(OTHERS)
        ]
        await asyncio.to_thread(eventually, lambda: all(replica["leases"] > 2 for replica in deadly.replicas()))
        tries = await send_again_and_again(deadly, stream)
        answers = await asyncio.gather(*others)
        later = await ask(session, deadly.url)
    assert [(answer.status, answer.end) for answer in answers] == [(200, "done")] * OTHERS
    assert later.end == "done"
    assert {answer.code for answer in tries} == {"query_of_death"}
    assert [answer.status for answer in tries[1:]] == [422] * (TRIES - 1)
    await asyncio.to_thread(eventually, deadly.is_whole, 180)
    after = {replica["pid"] for replica in deadly.replicas()}
    assert len(before - after) <= 2
    lost = losses(deadly)[len(lost_before) :]
    assert len(lost) <= 2
    assert {one["cause"] for one in lost} == {"engine_died"}
    culprits = [one["digest"] for one in deadly.model()["suspects"] if one["banned"]]
    (culprit,) = [digest for digest in culprits if all(digest in one["lost"]["digests"] for one in lost)]
    assert f"query of death {culprit}" in deadly.cli("status", "--once").stdout
    took_s = max(answer.ended_s for answer in answers) - min(answer.started_s for answer in answers)
    tell.append(
        f"{TRIES} sends of a query of death: {len(lost)} replicas lost, {OTHERS} others answered, the last after "
        f"{took_s:.0f} s"
    )


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3] * 1_000, [[100 + number, 1, 2, 3] * 300 for number in range(6)]],
    ids=["longer than a step", "split by others"],
)
async def test_a_seed_with_a_prompt_of_several_steps_costs_no_replica(deadly: LiveCluster, prompt: list[Any]) -> None:
    """It ends vLLM 0.32's core on a CPU without our patch: a prompt that is longer than a step (2,048 tokens), and
    prompts of 1,200 tokens that the engine splits because those of the same request fill the step."""
    eventually(deadly.is_whole, 180)
    before = {replica["pid"] for replica in deadly.replicas()}
    async with clients() as session:
        answer = await ask(session, deadly.url, prompt=prompt, seed=7, temperature=1.0, max_tokens=4, stream=False)
    assert (answer.status, answer.end) == (200, "done")
    assert {replica["pid"] for replica in deadly.replicas()} == before


def losses(cluster: LiveCluster) -> list[dict[str, Any]]:
    """The unplanned ends of replicas so far, as the directory tells."""
    return [
        one
        for one in cluster.status()["departures"]
        if one["kind"] == "replica" and not DepartureCause(one["cause"]).planned
    ]
