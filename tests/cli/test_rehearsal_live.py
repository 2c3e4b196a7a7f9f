"""Calibrate, rehearse, replay: on a real Ray and a real vLLM, in little time. The figures of so short a run are not
judged; that it tells them is.

The engine is a small one: a calibration fills the whole context and every place of it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from deployments.engine_model.cost_file import read_cost_file
from deployments.telemetry.published_error import read_published
from tests.live.cluster import ROOT

pytestmark = [pytest.mark.live, pytest.mark.long]

CONTEXT, PLACES = 512, 8


def raylane(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAYLANE_HOME": str(folder / "home"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a spec, a trace, and the costs that a short calibration found."""
    folder = tmp_path_factory.mktemp("rehearsal")
    spec = yaml.safe_load((ROOT / "infra/specs/local.yaml").read_text(encoding="utf-8"))
    spec["models"][0]["settings"] |= {"max_model_len": CONTEXT, "max_num_seqs": PLACES}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    rng = np.random.default_rng(0)
    sizes = ((int(rng.integers(8, 300)), int(rng.integers(4, 40))) for _ in range(4_000))
    rows = (
        {"timestamp": 50 * number, "input_length": prompt, "output_length": output, "hash_ids": []}
        for number, (prompt, output) in enumerate(sizes)
    )
    (folder / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    reported = raylane(
        folder,
        *("calibrate", str(folder / "spec.yaml"), "--trace", str(folder / "trace.jsonl")),
        *("--out", str(folder / "costs.json"), "--replicas", "1", "--seconds", "2", "--pin"),
    )
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert "steps; off by" in reported.stdout
    return folder


def test_the_costs_are_those_of_the_engine_that_ran(folder: Path) -> None:
    costs = read_cost_file(folder / "costs.json")
    assert costs.basis == "measured"
    assert costs.engine.max_num_seqs == PLACES
    assert costs.engine.kv_tokens > 10_000
    model = costs.cost_model()
    assert 1e-4 < model.run_s(1, 1, 100) < model.run_s(1, PLACES, PLACES * CONTEXT) < 5


def test_a_rehearsal_publishes_its_error_and_replays_its_decisions(folder: Path) -> None:
    spec, trace, costs = (str(folder / name) for name in ("spec.yaml", "trace.jsonl", "costs.json"))
    files = (spec, "--trace", trace, "--costs", costs)
    reported = raylane(
        folder,
        *("rehearse", *files),
        *("--out", str(folder / "error.json"), "--keep", str(folder / "kept")),
        *("--replicas", "1", "--runs", "1", "--seconds", "15", "--loads", "0.5,1.2", "--pin"),
    )
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert "every decision the same" in reported.stdout
    published = read_published(folder / "error.json")
    assert published.capacity_live > 1
    assert [at.load for at in published.loads] == [0.5, 1.2]
    assert all(at.failed == 0 for at in published.loads)
    assert {"ttft/all/p50", "stage/engine/mean", "itl/p50"} <= {figure.name for figure in published.loads[0].figures}
    logs = sorted(str(file) for file in (folder / "kept" / "decisions").glob("*.log"))
    assert raylane(folder, "replay", *logs).returncode == 0
    report = raylane(
        folder,
        *("simulate", *files),
        *("--limit", "500", "--report", str(folder / "report.html"), "--published-error", str(folder / "error.json")),
    )
    assert report.returncode == 0, report.stderr
    assert "x capacity" in (folder / "report.html").read_text(encoding="utf-8")
