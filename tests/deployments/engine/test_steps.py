"""Times of steps, beside what a cost file expects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from deployments.engine.step_log import StepLine
from deployments.engine.steps import StepTimes
from deployments.engine_model.cost_model import Chunk, CostModel, line, plain_attention
from deployments.telemetry.exposition import Exposition

COST = CostModel(line(0.01, 1e-4), line(0.0, 1e-4), plain_attention(1e-7, 1e-9))
STEPS = st.lists(st.tuples(st.floats(0.001, 2.0), st.booleans(), st.integers(0, 3), st.integers(0, 20)), min_size=1)


def value(times: StepTimes, name: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(Exposition(times.samples))
    return registry.get_sample_value(name)


@given(STEPS)
def test_steps_after_idle_time_are_not_timed_and_all_others_are(steps: list[tuple[float, bool, int, int]]) -> None:
    times, now, busy, took_s, expected_s, count = StepTimes(COST), 100.0, False, 0.0, 0.0, 0
    times.kv_tokens = 1_000
    for gap_s, idle, prompts, decodes in steps:
        now += gap_s
        times.ended(now, idle, StepLine(now, prompts, 64 * prompts, decodes, 0, 0, 0.5))
        if busy:
            count, took_s = count + 1, took_s + gap_s
            if prompts + decodes:
                expected_s += COST.step_s([Chunk(64, 0)] * prompts, decodes, 500, prompts)
        busy = not idle
    assert value(times, "raylane_engine_step_seconds_count") == count
    assert value(times, "raylane_engine_step_seconds_sum") == pytest.approx(took_s)
    assert value(times, "raylane_engine_expected_step_seconds_total") == pytest.approx(expected_s)


def test_nothing_is_expected_without_a_cost_file_and_nothing_timed_before_the_engine_is_up() -> None:
    times = StepTimes()
    times.ended(1.0, False, None)
    times.ended(2.0, False, None)
    assert value(times, "raylane_engine_step_seconds_count") == 0
    times.kv_tokens = 1_000
    times.ended(3.0, False, None)
    assert value(times, "raylane_engine_step_seconds_sum") == 1.0
    assert value(times, "raylane_engine_expected_step_seconds_total") is None
