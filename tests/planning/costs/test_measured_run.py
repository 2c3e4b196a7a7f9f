"""A measured vLLM run of Llama-3.1-8B on one RTX PRO 6000, against the simulated engine with costs from the profile of
its layers alone."""

import csv
import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.profile import from_profile
from planning.simulator.workload import plain_workload
from tests.planning.simulator.bare_engine import run_engine

RUNS = Path(__file__).resolve().parents[4] / "shared" / "data" / "vllm_runs"
NAME = "RTXPRO6000__meta-llama__Llama-3.1-8B__bf16__tp1"

pytestmark = pytest.mark.skipif(
    not RUNS.is_dir(), reason="the measured runs (../shared/data/vllm_runs) are not on this machine"
)


def rows(kind: str) -> list[dict[str, str]]:
    with gzip.open(RUNS / f"{NAME}__{kind}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


def by_layer(kind: str, size: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows(kind):
        found[row["layer"]].append((int(row[size]), float(row["time_us"])))
    return found


@pytest.fixture(scope="module")
def cost() -> CostModel:
    attention = [
        (int(r["prefill_chunk"]), int(r["kv_prefill"]), int(r["n_decode"]), int(r["kv_decode"]), float(r["time_us"]))
        for r in rows("attention")
    ]
    return from_profile(by_layer("dense", "tokens"), by_layer("per_sequence", "sequences"), attention, blocks=32)


def test_ttft_and_tpot_of_the_measured_run(cost: CostModel, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(RUNS / "RTXPRO6000__Llama-3.1-8B__requests.jsonl.gz", "rt") as file:
        run = [json.loads(line) for line in file]
    run.sort(key=lambda one: one["arrival_time"])
    arrived, queued, scheduled, first, last = (
        np.array([one[name] for one in run])
        for name in ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    )
    arrived += (queued - arrived).min()  # to the engine's clock: the fastest took no time to the engine's queue
    unqueued = scheduled - queued < 1e-3
    prompt, output = (np.array([one[name] for one in run], dtype=np.int64) for name in ("input_toks", "output_toks"))
    simulated = run_engine(
        EngineModelLimits(128, 2_048, 500_000, async_scheduling=True),
        cost,
        plain_workload(arrived - arrived[0], prompt, output),
    )
    several = output > 1
    ttft, tpot = first - arrived, ((last - first)[several] / (output[several] - 1))
    ours, ours_tpot = simulated.ttft_s, simulated.tpot_s[several]
    errors = {
        "TTFT mean": ours.mean() / ttft.mean() - 1,
        **{f"TTFT p{level}": np.percentile(ours, level) / np.percentile(ttft, level) - 1 for level in (50, 90, 99)},
        **{
            f"unqueued TTFT p{level}": np.percentile(ours[unqueued], level) / np.percentile(ttft[unqueued], level) - 1
            for level in (50, 90)
        },
        "TPOT mean": ours_tpot.mean() / tpot.mean() - 1,
        "TPOT p50": np.median(ours_tpot) / np.median(tpot) - 1,
        "TPOT p90": np.percentile(ours_tpot, 90) / np.percentile(tpot, 90) - 1,
    }
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {error:+.1%}" for name, error in errors.items()))
    assert sum(unqueued) > 100
    assert all(abs(error) <= 0.1 for name, error in errors.items() if name.startswith("unqueued")), errors
    assert all(
        abs(error) <= 0.09 for name, error in errors.items() if name != "TTFT p99" and not name.startswith("unqueued")
    ), errors
