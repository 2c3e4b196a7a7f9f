"""Replicas that follow the load, on the real stack: Serve's controller, the owner's books, simulated engines that eight requests fill."""

import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import requests

from autoscaling.log.files import lines_of
from autoscaling.log.replay import replay
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import Limits
from tests.live.cluster import LiveCluster, eventually, held
from tests.live.scaling import apply, burst, logs, metric, names, ramp, read_header, ready, records, scaling, zero_and_back

pytestmark = pytest.mark.live

MODEL = "small-simulated"
MOST = 4
SEQUENCES = 8
PERIOD_S = 0.5
LONG: dict[str, Any] = {"model": MODEL, "prompt": "one two three", "max_tokens": 60}


def spec_in(folder: Path) -> dict[str, Any]:
    """A replica answers about five such requests a second; it comes and goes in seconds."""
    limits = Limits(SEQUENCES, 512, 60_000)
    cost = CostModel(line(0.025, 5e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
    write_cost_file(folder / "costs.json", cost_file(MODEL, "nothing", "roofline", limits, cost))
    model = {
        "name": MODEL,
        "source": "nothing",
        "engine": "simulated",
        "simulated": {"costs": str(folder / "costs.json"), "tokens_per_chunk": 16},
        "settings": {"max_model_len": 4096, "max_num_seqs": SEQUENCES, "max_num_batched_tokens": 512},
        "health": {"period_s": 5, "timeout_s": 60, "stall_s": 60},
        "replicas": {"count": 1, "min": 1, "max": MOST},
    }
    quick = {"down_after_s": 8, "down_starts": 0, "zero_after_s": 10, "level_s": 20, "short_cost": 1, "burn": 1e6}
    return {
        "version": 1,
        "name": "scaling",
        "regions": [{"name": "here", "pools": [{"name": "cpu"}]}],
        "models": [model],
        "classes": [{"name": "interactive", "ttft_ms": 2_000}],
        "autoscaling": {"policy": "backlog", "period_s": PERIOD_S, "backlog": quick, "shadow": {"policy": "fixed"}},
        "gateway": {"host": "127.0.0.1"},
    }


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    folder = tmp_path_factory.mktemp("scaling")
    with held(folder, "scaling", spec_in(folder)) as cluster:
        yield cluster


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)) as session:
        yield session


async def test_a_burst_is_decided_on_within_two_readings(cell: LiveCluster, session: aiohttp.ClientSession) -> None:
    told: list[str] = []
    await burst(cell, session, 60, told, **LONG)
    print(*told)


async def test_a_ramp_up_and_down_loses_no_request(cell: LiveCluster, session: aiohttp.ClientSession) -> None:
    await ramp(cell, session, MOST, MOST * SEQUENCES, [], **LONG)


def test_decisions_are_on_metrics_and_in_the_log_with_their_reasons(cell: LiveCluster) -> None:
    counted = metric(cell, "raylane_scaling_decisions_total")
    reasons = {one.decision.reason for one in records(cell) if one.decision.limit is None}
    told = {labels.split('reason="')[1].split('"')[0] for labels in counted}
    assert {"consolidate", "backlog"} & reasons <= told
    assert sum(counted.values()) > 20
    states = metric(cell, "raylane_replicas")
    assert {state: states[f'{{model="{MODEL}",state="{state}"}}'] for state in ("requested", "applied", "ready")} == dict.fromkeys(
        ("requested", "applied", "ready"), 1.0
    )


def test_operators_and_a_changed_spec_are_followed_live(cell: LiveCluster) -> None:
    assert cell.cli("pin", MODEL, "2", "--for", "10m", "--why", "a test", "--url", cell.url).returncode == 0
    eventually(lambda: scaling(cell)["reason"] == "pinned" and ready(cell) == 2)
    both = names(cell)
    apply(cell, replicas={"min": 2, "count": 2})
    eventually(lambda: read_header(cell).bounds["least"] == 2)
    assert cell.cli("release", MODEL, "--url", cell.url).returncode == 0
    eventually(lambda: scaling(cell)["reason"] == "min_replicas")
    assert names(cell) == both, "no engine restarts for a changed setting"
    apply(cell, replicas={"min": 1, "count": 1})
    eventually(lambda: scaling(cell)["requested"] == 1 and ready(cell) == 1)
    assert names(cell) < both, "nor for another one; which of them goes is Serve's choice"


def test_a_shadow_is_reported_promoted_and_taken_back(cell: LiveCluster) -> None:
    eventually(lambda: bool(scaling(cell).get("shadow")))
    report = cell.cli("shadow", "report", MODEL, "--url", cell.url)
    assert "replica-hours" in report.stdout, report.stderr
    for command, active in (("promote", "fixed"), ("rollback", "backlog")):
        done = cell.cli("shadow", command, MODEL, "--why", "a test", "--url", cell.url)
        assert f"now scales by law {active}" in done.stdout, done.stderr
        eventually(lambda active=active: read_header(cell).law["name"] == active)  # type: ignore[misc]
    audit = [json.loads(one)["kind"] for one in (cell.run_dir / "controls.jsonl").read_text().splitlines()]
    assert audit[-2:] == ["promote", "rollback"]


def test_to_zero_and_back_the_first_request_is_answered(cell: LiveCluster) -> None:
    zero_and_back(cell, **LONG)


def test_a_restarted_controller_goes_on(cell: LiveCluster) -> None:
    apply(cell, replicas={"min": 1, "count": 1})
    eventually(lambda: ready(cell) == 1)
    (controller,) = [process for process in cell.family() if "ServeController" in " ".join(process.cmdline())]
    controller.send_signal(signal.SIGKILL)
    psutil.wait_procs([controller], timeout=30)
    eventually(lambda: len(logs(cell)) == 2)
    eventually(lambda: scaling(cell)["requested"] == 1 and not scaling(cell)["alarms"])
    learned = read_header(cell).pair().scaler.law
    assert learned._capacity.per_s is not None  # type: ignore[attr-defined]
    assert requests.post(cell.url + "/v1/completions", json={**LONG, "max_tokens": 5}, timeout=120).status_code == 200


def test_the_log_replays_exactly_and_is_explained(cell: LiveCluster) -> None:
    files = logs(cell)
    found = replay(lines_of(files))
    assert found.difference is None
    assert found.changes >= 4
    done = cell.cli("explain", MODEL, "--last", "20", "--log", str(files[0]), "--log", str(files[1]))
    assert "why: " in done.stdout, done.stderr
    assert "otherwise: with " in done.stdout
    told = json.loads(cell.cli("explain", MODEL, "--last", "3", "--json").stdout)
    assert len(told) == 3
    assert "every decision is the recorded one" in cell.cli("replay", *(str(file) for file in files[:1])).stdout
