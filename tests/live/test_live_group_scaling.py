"""Two groups of a model on a real Ray: each scales by what it is to carry, the next one serves when the first is gone,
and a schedule raises one of them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.autoscaling.setups import entries_of, replayed
from tests.live.clients import ask, clients
from tests.live.cluster import LiveCluster, eventually, eventually_async, held, shipped_spec
from tests.live.scaling import load
from tests.smoke.simulated.conftest import SEQUENCES, small_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NAME = "grouped-simulated"
SHORT: dict[str, Any] = {"model": NAME, "prompt": "1, 2, 3,", "max_tokens": 60}
CONTEXTS, MAXIMA = {"small": 1_024, "large": 4_096}, {"small": 1, "large": 3}


def spec_in(folder: Path) -> dict[str, Any]:
    spec = shipped_spec("simulated-h100")
    groups = [
        {"name": name, "settings": {"max_model_len": context}, "replicas": {"count": 1, "min": 1, "max": MAXIMA[name]}}
        for name, context in CONTEXTS.items()
    ]
    model = {**small_in(folder), "name": NAME, "groups": groups, "lanes": {"short": ["small", "large"]}}
    model["autoscaling"].pop("shadow")
    spec["regions"][0]["pools"].append({"name": "cpu"})
    spec["classes"] = [{"name": "interactive", "ttft_ms": 2_000, "patience_s": 120}]
    del spec["lanes"]
    return spec | {"models": [model]}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    folder = tmp_path_factory.mktemp("grouped")
    with held(folder, "grouped", spec_in(folder)) as cluster:
        yield cluster.of(NAME)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with clients() as session:
        yield session


def group(cell: LiveCluster, name: str) -> dict[str, Any]:
    """What the status page says of it."""
    return dict(next(one for one in cell.model()["groups"] if one["name"] == name))


def requested(cell: LiveCluster, name: str) -> int:
    return int((group(cell, name)["scaling"] or {"requested": 0})["requested"])


async def test_the_next_group_grows_by_what_the_first_may_not_carry(
    cell: LiveCluster, session: aiohttp.ClientSession, tell: list[str]
) -> None:
    async with load(cell, session, 3 * SEQUENCES, **SHORT) as answers:
        await eventually_async(lambda: requested(cell, "large") > 1, 60, every_s=0.5)
        small = group(cell, "small")["scaling"]
        tell.append(f"small: {small['reason']}, overflow {small['overflow']}; large: {requested(cell, 'large')}")
        assert (small["requested"], small["reason"]) == (1, "max_replicas")
        assert 0.0 < small["overflow"] < 1.0
        await eventually_async(lambda: group(cell, "large")["ready"] > 1, 120, every_s=0.5)
    assert all(answer.status == 200 for answer in answers)
    await eventually_async(lambda: requested(cell, "large") == 1, 120, every_s=0.5)
    shown = cell.done("status", "--once", "--url", cell.url)
    assert "group small: 1/1 replicas" in shown


async def test_the_next_group_serves_when_the_first_is_gone(cell: LiveCluster, session: aiohttp.ClientSession) -> None:
    before = group(cell, "large")["finished"]
    cell.done("pin", f"{NAME}@small", "0", "--for", "10m", "--url", cell.url)
    await eventually_async(lambda: group(cell, "small")["ready"] == 0, 60, every_s=0.2)
    answers = [await ask(session, cell.url, **SHORT) for _ in range(5)]
    assert all(answer.status == 200 for answer in answers)
    eventually(lambda: group(cell, "large")["finished"] == before + 5)
    cell.done("release", f"{NAME}@small", "--url", cell.url)
    await eventually_async(lambda: group(cell, "small")["ready"] == 1, 120, every_s=0.2)


def test_a_schedule_raises_one_group(cell: LiveCluster) -> None:
    spec = cell.ask("/raylane/spec").json()
    always = {"time_zone": "Europe/Berlin", "entries": [{"name": "always", "min": 2}]}
    spec["models"][0]["groups"][1]["replicas"]["schedule"] = always
    file = cell.folder / "scheduled.yaml"
    file.write_text(yaml.safe_dump(spec))
    cell.done("apply", str(file), "--url", cell.url)
    eventually(lambda: group(cell, "large")["ready"] == 2, 120)
    assert "2 requested (scheduled_min: always)" in cell.done("status", "--once", "--url", cell.url)
    assert requested(cell, "small") == 1


def test_the_log_of_each_group_replays(cell: LiveCluster) -> None:
    for name in CONTEXTS:
        found = replayed(entries_of(cell.run_dir / "logs", f"{NAME}@{name}"))
        assert found.difference is None
        assert found.inputs > 10
