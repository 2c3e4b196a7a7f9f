"""The pure parts of the lanes benchmark: what it counts, and by what it judges."""

import json
import math

import numpy as np
import pytest
import yaml

from benchmarks.lanes.core import _SIDES, SteadyScheduler
from benchmarks.lanes.mix import LANES, SIDES, LaneTraffic, lane_index
from benchmarks.lanes.results import (
    EngineQueue,
    LaneResult,
    SideResult,
    by_lane,
    conserved_long_mean_s,
    engine_queue,
    judge,
    overall,
    times_to_first_token,
)
from benchmarks.lanes.simulated import Rehearsal, result_of, side_spec
from benchmarks.lanes.wait_coverage import LaneCoverage, coverage, read_wait_estimates
from cli.bench.answer import Failure, FailureKind, Sample, TokenUsage
from cli.bench.load import LoadResult
from cluster.files import shipped
from cluster.spec import parse_spec
from deployments.engine_model.cost_file import read_cost_file
from planning.workload.trace import Trace


def sample(ttft_s: float | None) -> Sample:
    """A request that got its first token then; None: it was refused."""
    failure = Failure(FailureKind.HTTP, "503") if ttft_s is None else None
    return Sample(0.0, 1.0, ttft_s, 0.1, np.empty(0), 1, TokenUsage(1, None, 3), failure)


def test_every_side_is_a_usable_spec() -> None:
    base = yaml.safe_load(shipped("specs/local.yaml").read_text())
    for name, sections in SIDES.items():
        assert parse_spec(yaml.safe_dump(json.loads(json.dumps({**base, **sections})))).lanes, name
    caps = {name: sum(lane["cap_s"] for lane in sections["lanes"]) for name, sections in SIDES.items()}
    assert len(set(caps.values())) == 1, "the same caps on all sides"


def test_lanes_are_told_apart_by_length() -> None:
    bounds = [lane["up_to_tokens"] for lane in LANES[:-1]]
    assert [lane_index(bound, 0) for bound in bounds] == [0, 1]
    assert [lane_index(bound, 1) for bound in bounds] == [1, 2]


def test_a_refused_request_is_infinitely_late() -> None:
    mix = Trace(np.zeros(4), np.array([10, 10, 10, 5_000]), np.array([1, 1, 1, 1]))
    outcome = LoadResult(tuple(map(sample, (1.0, 3.0, None, 2.0))), 10.0, 0.0)
    short, medium, long = by_lane(mix, times_to_first_token(outcome))
    assert (short.requests, short.missed, short.ttft_p50_s, short.ttft_mean_s) == (3, 1, 3.0, 2.0)
    assert math.isinf(short.ttft_p99_s)
    assert (medium.requests, long.requests, long.ttft_mean_s) == (0, 1, 2.0)
    assert overall(times_to_first_token(outcome)) == (2.0, 0.75)
    assert outcome.failures == {"HTTP 503": 1}


def test_what_the_short_gain_the_long_must_lose() -> None:
    def lanes(*means: float) -> list[LaneResult]:
        return [
            LaneResult(name, 1, 0, 0.0, 0.0, mean, work)
            for name, mean, work in zip("abc", means, (10.0, 20.0, 30.0), strict=True)
        ]

    bound = conserved_long_mean_s(lanes(6.0, 6.0, 6.0), lanes(0.0, 3.0, 99.0))
    assert bound * 30 + 3 * 20 == pytest.approx(6 * 60)


def test_promises_are_read_and_judged() -> None:
    reported = [
        {"arrived_s": 100.0 + n, "eta_s": [1.0, 4.0], "lane": "a", "replica": "r", "stages_s": {"lane": float(n)}}
        for n in range(10)
    ]
    reported.append({"arrived_s": 120.0, "eta_s": [1.0, 4.0], "lane": "a", "replica": None, "stages_s": {"lane": 2.0}})
    reported.append({"arrived_s": 121.0, "eta_s": [1.0, 4.0], "lane": "a", "replica": None, "stages_s": {"lane": 9.0}})
    reported.append({"arrived_s": 50.0, "eta_s": [1.0, 4.0], "lane": "a", "replica": "r", "stages_s": {"lane": 9.0}})
    reported.append({"arrived_s": 122.0, "eta_s": None, "lane": "a", "replica": "r", "stages_s": {}})
    wait_estimates = read_wait_estimates(map(json.dumps, reported), since_unix_s=60.0)
    (lane,) = coverage(wait_estimates)
    assert (lane.reported, lane.censored) == (12, 1)
    assert lane.within_p95 == pytest.approx(5 / 11)
    assert lane.within_p50 == pytest.approx(2 / 11)


def test_the_core_holds_its_steady_state() -> None:
    for policy in _SIDES.values():
        cell = SteadyScheduler(policy, replicas=4, waiting=200, seed=1)
        assert cell.run(300) > 0
        assert cell.state[0] == 200
        assert cell.state[1] == 4 * 40


def test_the_engines_queue_is_read_in_steps() -> None:
    served = [{"arrived_s": 100.0, "tpot_s": 0.02, "stages_s": {"engine_queue": 0.001 * n}} for n in range(101)]
    others = [
        {"arrived_s": 1.0, "tpot_s": 9.0, "stages_s": {"engine_queue": 9.0}},
        {"arrived_s": 100.0, "tpot_s": None, "stages_s": {"lane": 9.0}},
    ]
    found = engine_queue([json.dumps(record) for record in served + others], 50.0)
    assert (found.requests, found.queued_p99_s, found.step_p50_s) == (101, pytest.approx(0.099), 0.02)
    assert found.steps == pytest.approx(4.95)
    assert engine_queue([], 0.0).requests == 0


def side(throughput: float, elapsed_s: float, *means: float) -> SideResult:
    """A side that run arrivals of 100 s, whose lanes' mean waits (and p99) are `means`."""
    lanes = [
        LaneResult(name, 1, 0, mean, mean, mean, work)
        for name, mean, work in zip("abc", means, (10.0, 20.0, 30.0), strict=True)
    ]
    reported = [LaneCoverage(lane.lane, 10, 0.5, 0.95, 0) for lane in lanes]
    return SideResult(lanes, (1.0, 1.0), reported, EngineQueue(10, 0.1, 0.05), throughput, elapsed_s, 0.0, {}, 100.0)


def test_a_side_is_judged_by_what_it_gains_and_costs() -> None:
    verdict = judge(side(9.6, 124.0, 1.0, 3.0, 12.0), side(10.0, 120.0, 6.0, 6.0, 6.0))
    bound = (6 * 60 - 10 * 1 - 20 * 3) / 30
    assert (verdict.short_gain, verdict.throughput, verdict.queue_steps) == (6.0, pytest.approx(0.96), 2.0)
    assert verdict.long_cost == pytest.approx(12 / bound)
    assert verdict.long_cost_alike == pytest.approx(12 / (bound + 0.2 * 6 * 60 / 30)), (
        "a fifth more was left when the last request had come"
    )
    assert verdict.coverage == {"a": 0.95, "b": 0.95, "c": 0.95}


def uniform_traffic() -> LaneTraffic:
    """Short and long requests, without a trace."""
    draw = np.random.default_rng(1)
    gaps_s = draw.exponential(size=5_000)
    prompts = ((20, 300), (100, 1_500), (3_000, 7_000))
    return LaneTraffic(gaps_s, [(draw.integers(*prompt, 500), draw.integers(2, 200, 500)) for prompt in prompts])


@pytest.mark.whole
def test_lanes_played_in_virtual_time_keep_what_is_promised() -> None:
    traffic = uniform_traffic()
    rehearsal = Rehearsal(read_cost_file(shipped("specs/simulated-h100.costs.json")), traffic)
    (arrivals,) = rehearsal.cases(1.2, 60.0, 0, tenants=False).values()
    fifo, lanes, loose = (
        result_of(arrivals.mix, rehearsal.run(arrivals, name), [lane.name for lane in side_spec(name).lanes])
        for name in ("fifo", "lanes", "loose")
    )
    verdict = judge(lanes, fifo)
    assert not lanes.failures
    assert verdict.short_gain > 10
    assert verdict.throughput > 0.98
    assert lanes.engine_queue.queued_p99_s < loose.engine_queue.queued_p99_s / 2, "what waits, waits in the lanes"
