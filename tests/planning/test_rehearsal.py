"""Live against simulated: figures, bounds, and the file that publishes them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deployments.engine_model.cost_model import CostModel, line, plain_attention, slowed
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, SchedulingPolicy
from deployments.telemetry.published_error import (
    AtLoad,
    Figure,
    Published,
    PublishedError,
    read_published,
    write_published,
)
from planning.rehearsal import (
    BOUNDS,
    RehearsalRun,
    at_rate,
    compare,
    rehearsed,
    simulated_capacity,
    simulated_run,
    throughput,
)
from planning.simulator.cell import CellSettings, CellSimulator
from planning.workload.changes import ChangeKind
from planning.workload.trace import Trace

COST = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10), line(0.003, 1e-4), 0.002)
SETTINGS = CellSettings(
    2,
    EngineModelLimits(16, 512, 30_000),
    SchedulingPolicy((LanePolicy("short", 256, 8, 10), LanePolicy("long", None, 1, 30))),
)


def trace(count: int = 2_000) -> Trace:
    rng = np.random.default_rng(0)
    prompt = np.minimum(rng.lognormal(5, 1.2, count).astype(np.int64) + 1, 4_000)
    return Trace(np.cumsum(rng.exponential(0.1, count)), prompt, rng.integers(1, 150, count))


@pytest.mark.whole
def test_a_simulated_run_has_all_figures() -> None:
    work = at_rate(rehearsed(trace(), 8_192, 1.0, 5.0), 20.0, 60.0)
    assert len(work) == 1_200
    assert work.arrived_s[-1] == pytest.approx(60.0)
    figures = simulated_run(SETTINGS, COST, work).figures(("short", "long"))
    some = {"ttft/all/p50", "ttft/short/p99", "ttft/long/p50", "stage/lane/mean", "stage/decode/mean"}
    assert some | {"itl/p50", "itl/mean"} <= set(figures)
    assert figures["ttft/all/p50"] <= figures["ttft/all/p90"] <= figures["ttft/all/p99"]
    assert figures == simulated_run(SETTINGS, COST, work).figures(("short", "long"))


def test_stages_add_up() -> None:
    run = simulated_run(SETTINGS, COST, at_rate(rehearsed(trace(), 8_192, 1.0, 5.0), 30.0, 30.0))
    np.testing.assert_allclose(run.stages_s["lane"] + run.stages_s["engine"], run.ttft_s)


def test_what_a_rehearsal_changes_in_a_trace_is_noted() -> None:
    plain = rehearsed(trace(100), 8_192, 1.0, 5.0)
    assert plain.changes == ()
    sessions = replace(trace(100), session=np.arange(100))
    small = rehearsed(sessions, 512, 1.0, 5.0)
    assert [(one.kind, one.count) for one in small.changes] == [
        (ChangeKind.SHRUNK, 100),
        (ChangeKind.ONLY_LENGTHS_USED, 100),
    ]
    assert (small.prompt_tokens + small.output_tokens).max() <= 512
    assert small.head(10).changes == small.changes
    assert rehearsed(trace(100), 8_192, 0.5, 5.0).changes[0].what.startswith("all lengths multiplied by 0.5 (asked for")


@pytest.mark.whole
def test_a_closed_loop_finds_the_capacity() -> None:
    work = rehearsed(trace(), 8_192, 1.0, 5.0)
    capacity = simulated_capacity(SETTINGS, COST, work, 64)
    more = simulated_capacity(CellSettings(4, SETTINGS.limits, SETTINGS.policy), COST, work, 128)
    assert more == pytest.approx(2 * capacity, rel=0.1)
    calm = CellSimulator(SETTINGS, COST, at_rate(work, 0.5 * capacity, 20.0)).run()
    flooded = CellSimulator(SETTINGS, COST, at_rate(work, 1.5 * capacity, 15.0)).run()
    assert np.nanmean(flooded.queued_s[-50:]) > 20 * np.nanmean(calm.queued_s[-50:])
    with pytest.raises(ValueError, match="to tell a capacity"):
        throughput(np.arange(5.0))


def test_errors_are_judged_by_bound_and_spread() -> None:
    live = [{"ttft/all/p50": value, "itl/p50": 0.010, "other": 1.0} for value in (0.09, 0.10, 0.11)]
    ours = {"ttft/all/p50": 0.12, "itl/p50": 0.012, "other": 2.0, "unseen": 1.0}
    compared = {one.name: one for one in compare(live, [ours] * 3, [{**ours, "itl/p50": 0.009}] * 3)}
    ttft, itl, other = (compared[name] for name in ("ttft/all/p50", "itl/p50", "other"))
    assert (ttft.error, ttft.spread) == (pytest.approx(0.2), pytest.approx(0.2))
    assert ttft.within is True  # no further from the live runs than these from each other
    assert itl.within is False
    assert other.within is None
    assert "unseen" not in compared
    assert itl.raw_error == pytest.approx(-0.1)


@pytest.mark.whole
def test_requests_that_queued_are_judged_apart() -> None:
    work = at_rate(rehearsed(trace(), 8_192, 1.0, 5.0), 45.0, 30.0)
    calm, slow = (simulated_run(SETTINGS, slowed(COST, factor), work) for factor in (1.0, 1.3))
    assert 0 < calm.queued.sum() < slow.queued.sum() < len(work)
    for run in (calm, slow):
        figures = run.figures(())
        assert figures["ttft/unqueued/p50"] == np.quantile(run.ttft_s[~run.queued], 0.5)
        assert figures["ttft/queued/p90"] == np.quantile(run.ttft_s[run.queued], 0.9)
        assert figures["ttft/unqueued/p50"] < figures["ttft/queued/p50"]
    assert {"ttft/unqueued/p50", "ttft/unqueued/p90"} <= set(BOUNDS)


def published(**changes: object) -> dict[str, object]:
    figure = {"name": "itl/p50", "live_s": 1.0, "simulated_s": 1.05, "error": 0.05, "raw_error": 0.1, "spread": 0.0}
    figure["bound"] = BOUNDS["itl/p50"]
    loads = [{"load": 0.9, "runs": 3, "slowness": [1.0, 1.1, 1.0], "requests": 100, "failed": 0, "figures": [figure]}]
    whole = {"model": "m", "replicas": 1, "costs": "measured", "measured_at": "2026-11-20T10:00:00+00:00"}
    return whole | {"loads": loads, "capacity_live": 10.0, "capacity_simulated": 9.0} | changes


def test_the_published_error_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    write_published(path, Published.model_validate(published()))
    read = read_published(path)
    assert read.capacity_error == pytest.approx(-0.1)
    assert read.worst == 0.05
    assert read.within
    worse = Figure(name="itl/p50", live_s=1.0, simulated_s=1.2, error=0.2, raw_error=0.2, spread=0.0, bound=0.07)
    beyond = AtLoad(load=1.2, runs=1, slowness=(1.0,), requests=1, failed=0, figures=(worse,))
    assert not read.model_copy(update={"loads": (beyond,)}).within
    assert worse.within is False


@pytest.mark.parametrize(
    ("key", "value"), [("version", 2), ("replicas", 0), ("capacity_live", "much"), ("more", 1), ("loads", 3)]
)
def test_a_bad_file_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(published(**{key: value})))
    with pytest.raises(PublishedError, match=key):
        read_published(path)
    with pytest.raises(PublishedError, match=r"none\.json"):
        read_published(tmp_path / "none.json")


def test_traffic_that_the_trace_does_not_have_is_refused() -> None:
    work = rehearsed(trace(100), 8_192, 1.0, 5.0)
    with pytest.raises(ValueError, match="the trace has 100"):
        at_rate(work, 10.0, 60.0)
    with pytest.raises(ValueError, match="at least 20"):
        at_rate(work, 0.1, 60.0)


def test_few_requests_have_no_tail() -> None:
    stages_s, none = {name: np.ones(50) for name in ("lane", "engine", "decode")}, np.zeros(50, dtype=np.int64)
    few = RehearsalRun(np.linspace(0.1, 1.0, 50), stages_s, none, {}, 0, np.zeros(50, dtype=np.bool_))
    figures = few.figures(("short",))
    assert math.isnan(figures["ttft/all/p99"])
    assert figures["ttft/all/p90"] == pytest.approx(0.91)
