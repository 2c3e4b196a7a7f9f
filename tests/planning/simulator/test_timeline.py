"""The time line of a simulated run: sums over the bins are those of the run, whatever the load."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.scheduling import LanePolicy, SchedulingPolicy
from planning.report.simulated_run import DecisionKind, decisions, slices_for, worst
from planning.simulator.bins import Bins
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import Life, SimulationOutcome
from planning.simulator.sampler import FEWEST, Sampler, Samples
from planning.simulator.timeline import Timeline, replicas_by_state, timeline
from planning.simulator.workload import Workload
from tests.planning.simulator.test_cell import COST, LIMITS, workload

LANES = (LanePolicy("short", 256, 8, 1, 5), LanePolicy("long", None, 1, 2, 10))
NAMES = ("short", "long")


def run(work: Workload, replicas: int = 2) -> tuple[SimulationOutcome, Samples]:
    sampler = Sampler()
    cell = CellSimulator(
        CellSettings(replicas, LIMITS, SchedulingPolicy(LANES), queue_wait_s=6), COST, work, sample=sampler.take
    )
    return cell.run(), sampler.samples()


def line_of(work: Workload, replicas: int = 2) -> tuple[SimulationOutcome, Samples, Timeline]:
    out, samples = run(work, replicas)
    return out, samples, timeline(out, work.ttft_slo_s, NAMES, samples)


@pytest.mark.whole
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 400), st.sampled_from([2.0, 40.0, 400.0]), st.integers(0, 50))
def test_sums_over_the_bins_are_those_of_the_run(count: int, rate: float, seed: int) -> None:
    work = workload(count, rate, seed)
    out, _, line = line_of(work)
    finished = ~np.isnan(out.finished_s)
    cell, lanes = line.cell, line.lanes
    assert sum(lane.arrived.sum() for lane in lanes) == count
    assert sum(lane.rejected.sum() for lane in lanes) == out.rejected.sum()
    assert sum(lane.expired.sum() for lane in lanes) == out.expired.sum()
    assert sum(lane.promoted.sum() for lane in lanes) == out.promoted.sum()
    assert (
        sum(lane.missed.sum() for lane in lanes)
        == count - (np.nan_to_num(out.ttft_s, nan=np.inf) <= work.ttft_slo_s).sum()
    )
    assert cell.finished.sum() == finished.sum()
    assert cell.prompt_tokens_offered.sum() == work.prompt_tokens.sum()
    assert cell.prompt_tokens.sum() == pytest.approx(work.prompt_tokens[finished].sum(), rel=1e-6, abs=1e-2)
    assert cell.output_tokens.sum() == pytest.approx(work.output_tokens[finished].sum(), rel=1e-6, abs=1e-2)
    assert cell.preemptions.sum() == out.preemptions
    for lane in lanes:
        assert (lane.waiting >= 0).all()
        assert (lane.waiting_max >= lane.waiting).all()
        assert lane.waiting[-1] == 0


@pytest.mark.whole
def test_the_samples_are_the_cells_own_and_change_nothing() -> None:
    work = workload(4_000, 80.0)
    out, samples, line = line_of(work)
    unseen = CellSimulator(CellSettings(2, LIMITS, SchedulingPolicy(LANES), queue_wait_s=6), COST, work).run()
    np.testing.assert_array_equal(out.finished_s, unseen.finished_s)
    assert (np.diff(samples.at_s) > 0).all()
    assert samples.kv_max.max() <= 1
    assert (samples.kv_max >= samples.kv_mean - 1e-9).all()
    ended_s = out.finished_s - COST.back_s  # the client sees the end a moment after the engine
    bound = np.array([((out.placed_s <= at) & ~(ended_s <= at)).sum() for at in samples.at_s])
    inside = samples.running + samples.inside
    assert (inside <= bound).all()  # the rest is on its way to its engine
    assert inside.mean() > 0.9 * bound.mean()
    assert {lane for lane, _ in line.waits} <= {*NAMES, "promoted"}
    assert all(0 <= share.min() <= share.max() <= 1 for share in line.waits.values())
    assert any(share.any() for share in line.waits.values())


def test_times_between_tokens_over_time_are_those_of_the_run() -> None:
    work = workload(600, 60.0)
    out, samples, line = line_of(work)
    cell = line.cell
    known = ~np.isnan(cell.itl_p50_s)
    assert known.sum() > 5
    assert (cell.itl_p50_s[known] <= cell.itl_p99_s[known]).all()
    assert cell.itl_p50_s[known].min() <= out.itl_s[0.5] <= cell.itl_p50_s[known].max()
    assert sum(samples.gaps[-1].values()) <= (work.output_tokens - 1).sum()
    whole = timeline(out, work.ttft_slo_s, NAMES, samples, Bins(1e6, 1))
    assert whole.cell.itl_p99_s[0] == pytest.approx(out.itl_s[0.99], rel=0.05)


def test_prefix_hits_and_met_times_between_tokens_are_means_by_bin() -> None:
    work = workload(200, 40.0)
    out, samples, _ = line_of(work)
    out.cached_tokens = out.prompt_tokens // 2
    met = np.where(np.isnan(out.tpot_s), np.nan, np.where(out.tpot_s <= np.nanmedian(out.tpot_s), 1.0, 0.0))
    line = timeline(out, work.ttft_slo_s, NAMES, samples, Bins(1e6, 1), {"batch": met, "none": met * np.nan})
    assert line.cell.prefix_hits[0] == pytest.approx(out.prefix_hits) == pytest.approx(0.5, abs=0.01)
    assert line.itl_in_time["batch"][0] == pytest.approx(np.nanmean(met))
    assert np.isnan(line.itl_in_time["none"][0])


@pytest.mark.whole
def test_every_decision_is_on_the_time_line() -> None:
    out, _, line = line_of(workload(3_000, 400.0))
    decided = decisions(out, NAMES, line.bins)
    count = {kind: sum(one.count for one in decided if one.kind is kind) for kind in DecisionKind}
    assert count[DecisionKind.REJECTED] == out.rejected.sum() > 0
    assert count[DecisionKind.EXPIRED] == out.expired.sum() > 0
    assert count[DecisionKind.PROMOTED] == out.promoted.sum() > 0
    assert [one.at_s for one in decided] == sorted(one.at_s for one in decided)


def test_replicas_over_time() -> None:
    lives = (Life(0, 0, 9), Life(0, 0, 9, drained_s=7), Life(1, 3.5, 9), Life(2, np.inf, 3))
    found = replicas_by_state(lives, Bins(1.0, 9))
    assert found["ready"].tolist() == pytest.approx([2, 2, 2, 2.5, 3, 3, 3, 2, 2])
    assert found["warming"].tolist() == pytest.approx([0, 1, 2, 0.5, 0, 0, 0, 0, 0])
    assert found["draining"].tolist() == pytest.approx([0] * 7 + [1, 1])


@pytest.mark.whole
def test_the_worst_slices_say_what_happened() -> None:
    work = workload(2_000, 120.0)
    out, samples = run(work)
    slices = slices_for(out.ended_s)
    assert slices.width_s in (1.0, 10.0)
    found = worst(timeline(out, work.ttft_slo_s, NAMES, samples, slices))
    assert found
    assert [one.missed for one in found] == sorted((one.missed for one in found), reverse=True)
    assert all(0 < one.missed <= one.arrived for one in found)
    assert any("waiting in the lane" in text for one in found for text in one.happened)


def test_a_long_run_has_no_more_samples_than_a_short_one_has_at_most() -> None:
    work = workload(300, 0.05)
    samples = run(work)[1]
    assert work.arrived_s[-1] > 4_000
    assert FEWEST <= len(samples.at_s) < 2 * FEWEST
    assert np.allclose(np.diff(samples.at_s), samples.at_s[1])
