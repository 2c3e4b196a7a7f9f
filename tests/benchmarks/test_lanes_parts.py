"""The pure parts of the lanes benchmark: what it counts, and by what it judges."""

import json
import math

import numpy as np
import pytest
import yaml

from benchmarks.lanes.core import _SIDES, SteadyScheduler
from benchmarks.lanes.mix import SIDES, LaneTraffic
from benchmarks.lanes.results import result_of
from benchmarks.lanes.simulated import Rehearsal, pooled, side_spec
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


def test_a_refused_request_is_infinitely_late() -> None:
    mix = Trace(np.zeros(4), np.array([10, 10, 10, 5_000]), np.array([1, 1, 1, 1]))
    outcome = LoadResult(tuple(map(sample, (1.0, 3.0, None, 2.0))), 10.0, 0.0)
    found = result_of(mix, outcome)
    short, medium, long = found.lanes
    assert (short.requests, short.missed, short.ttft_p50_s, short.ttft_mean_s) == (3, 1, 3.0, 2.0)
    assert math.isinf(short.ttft_p99_s)
    assert (medium.requests, long.requests, long.ttft_mean_s) == (0, 1, 2.0)
    assert (found.mean_s, found.in_time) == (2.0, 0.75)
    assert found.failures == {"HTTP 503": 1}


def test_the_core_holds_its_steady_state() -> None:
    for policy in _SIDES.values():
        cell = SteadyScheduler(policy, replicas=4, waiting=200, seed=1)
        assert cell.run(300) > 0
        assert cell.state[0] == 200
        assert cell.state[1] == 4 * 40


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
        pooled([(arrivals, rehearsal.run(arrivals, name))], [lane.name for lane in side_spec(name).lanes])
        for name in ("fifo", "lanes", "loose")
    )
    assert lanes["failed"] == 0
    assert fifo["short_p99"] > 10 * lanes["short_p99"]
    assert lanes["tokens_per_s"] > 0.98 * fifo["tokens_per_s"]
    assert lanes["queue_steps"] < loose["queue_steps"] / 2, "what waits, waits in the lanes"
    assert all(share > 0.8 for share in lanes["within_p95"].values())
