"""Replicas of real engines that follow the load: one to four of vLLM on this machine's cores, and down to none and
back."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
import yaml

from autoscaling.log.reader import lines_of, replay
from tests.live.clients import clients
from tests.live.cluster import ROOT, LiveCluster, held
from tests.live.scaling import burst, logs, ramp, zero_and_back

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]

MAX = 4
SEQUENCES = 4
REQUEST: dict[str, Any] = {
    "model": "demo",
    "prompt": "1, 2, 3,",
    "max_tokens": 200,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Four sequences fill an engine, so that a few dozen requests are more than one can take."""
    spec = yaml.safe_load((ROOT / "infra/specs/local.yaml").read_text())
    model = spec["models"][0]
    model["settings"] |= {
        "max_num_seqs": SEQUENCES,
        "max_num_batched_tokens": 512,
        "max_model_len": 2048,
        "kv_cache_memory_bytes": 64 << 20,
    }
    model["health"] = {"period_s": 10, "timeout_s": 60, "stall_s": 120}  # four engines start and serve on two cores
    model["replicas"] = {"count": 1, "min": 1, "max": MAX}
    # Starts take minutes here, so that being short costs several times what is said.
    quick = {"down_after_s": 15, "down_starts": 0, "zero_after_s": 20, "level_s": 20, "short_cost": 0.3, "burn": 1e6}
    spec |= {
        "classes": [{"name": "interactive", "ttft_ms": 2_000, "patience_s": 300}],
        "autoscaling": {"policy": "backlog", "period_s": 0.5, "backlog": quick},
    }
    with held(tmp_path_factory.mktemp("scaled"), "scaled", spec) as cluster:
        yield cluster


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with clients() as session:
        yield session


async def test_a_burst_is_decided_on_within_two_readings(
    cell: LiveCluster, session: aiohttp.ClientSession, tell: list[str]
) -> None:
    await burst(cell, session, 60, tell, **REQUEST)


async def test_a_ramp_up_and_down_loses_no_request(
    cell: LiveCluster, session: aiohttp.ClientSession, tell: list[str]
) -> None:
    await ramp(cell, session, MAX, 2 * MAX * SEQUENCES, tell, **REQUEST)


def test_to_zero_and_back_the_first_request_is_answered(cell: LiveCluster) -> None:
    zero_and_back(cell, **REQUEST)


def test_the_log_replays_exactly(cell: LiveCluster) -> None:
    found = replay(lines_of(logs(cell)))
    assert found.difference is None
    assert found.changes >= 4
