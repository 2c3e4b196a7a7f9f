"""The pure parts of the benchmark of the stack over simulated engines."""

import json

import numpy as np
import pytest

from benchmarks.simulated_stack.client import _body, traced
from benchmarks.simulated_stack.gauges import quantile
from benchmarks.simulated_stack.report import Measured, by_lane
from deployments.engine.simulated.ask import read_ask
from deployments.openai.endpoints import BodyKind
from planning.workload.traces import Trace


def test_a_trace_is_repeated_for_as_long_as_it_takes() -> None:
    trace = Trace(np.array([0.0, 1.0, 2.0, 3.0]), np.array([10, 20, 30, 40]), np.array([1, 2, 3, 4]))
    schedule = traced(trace, 5.0, 2.0, 1_000)
    assert schedule.arrived_s.tolist() == [0.5 * number for number in range(10)]
    assert schedule.prompt_tokens.tolist() == [10, 20, 30, 40, 10, 20, 30, 40, 10, 20]


@pytest.mark.parametrize("tokens", [7, 100, 3_333])
def test_prompts_have_the_tokens_that_were_wanted(tokens: int) -> None:
    ask = read_ask(BodyKind.CHAT, _body("m", 5, tokens, 9, "x" * 20_000), "m", "id")
    assert (ask.prompts, ask.min_tokens, ask.max_tokens) == ((tokens,), 9, None)


def test_quantiles_of_what_came_between_two_readings() -> None:
    before, after = {0.1: 5.0, 1.0: 5.0, float("inf"): 5.0}, {0.1: 5.0, 1.0: 104.0, float("inf"): 105.0}
    assert quantile(before, after, 0.5) == 1.0
    assert quantile(before, after, 0.999) == float("inf")
    assert quantile(after, after, 0.5) is None


def test_the_error_is_the_simulators() -> None:
    lines = by_lane(["a"], Measured(np.array([0.2, np.nan]), ["a", ""]), Measured(np.array([0.1, 0.1]), ["a", "a"]))
    assert [line["lane"] for line in lines] == ["a", "all"]
    assert lines[0]["error"]["p50"] == -0.5
    json.dumps(lines)
