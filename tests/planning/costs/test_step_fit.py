"""Costs fitted from steps: what was put in is found again, and logs are read as they were written."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from deployments.engine.step_log import EngineFacts, StepLine, StepLog
from deployments.engine_model.cost_model import Chunk, slowed
from deployments.telemetry.line_log import LogHealth
from planning.costs.front import (
    FRONT_SHARE,
    Around,
    LedgerError,
    ProbeWindow,
    front_and_back,
    mean_wait_s,
    read_arounds,
)
from planning.costs.nonnegative import least_deviance, least_relative_error
from planning.costs.probes import concurrencies, spread_lengths, traffic_lengths
from planning.costs.step_fit import fit_steps
from planning.costs.steps import EngineSteps, StepLogError, StepSample, read_step_log, samples, slowness

FACTS = EngineFacts(64, 2_048, 65_536, 128)


def true_s(tokens: int, sequences: int, kv_tokens: float) -> float:
    """Of a step, without the attention of its prompts."""
    return 0.003 + 3e-5 * tokens + 1e-4 * sequences + 4e-7 * kv_tokens


def made_samples(count: int, noise: float, seed: int = 0) -> list[StepSample]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        decodes, prompts = int(rng.integers(0, 64)), int(rng.integers(0, 3))
        prompt_tokens = int(rng.integers(1, 1_500)) * prompts
        kv = float(rng.uniform(1, 1_000)) * decodes
        if decodes + prompts == 0:
            continue
        chunk = prompt_tokens / prompts if prompts else 0.0
        seconds = true_s(prompt_tokens + decodes, decodes + prompts, kv) + 1e-8 * prompts * chunk**2 / 2
        found.append(StepSample(prompts, prompt_tokens, 0, decodes, kv, seconds * float(rng.lognormal(0, noise))))
    return found


def test_what_was_put_in_is_found_again() -> None:
    fitted = fit_steps(made_samples(2_000, 0.0))
    assert fitted.error < 0.005
    step = fitted.model.step_s([Chunk(500, 0)], 20, 5_000, 1)
    assert step == pytest.approx(true_s(520, 21, 5_000) + 1e-8 * 500**2 / 2, rel=0.02)
    assert fitted.model.run_s(1, 30, 9_000) == pytest.approx(true_s(30, 30, 9_000), rel=0.02)


def test_noise_leaves_the_total_as_it_was() -> None:
    fitted = fit_steps(made_samples(3_000, 0.3))
    assert abs(fitted.bias) < 1e-3
    assert fitted.samples == len(made_samples(3_000, 0.3))


@settings(max_examples=50)
@given(st.lists(st.floats(0, 10), min_size=2, max_size=4), st.integers(0, 1_000))
def test_fits_are_exact_without_noise(true: list[float], seed: int) -> None:
    rows = np.random.default_rng(seed).uniform(0.1, 1.0, (40, len(true)))
    times = rows @ np.array(true) + 1e-6
    for fit in (least_deviance, least_relative_error):
        found = fit(rows, times)
        assert (found >= 0).all()
        assert rows @ found == pytest.approx(times, rel=1e-3, abs=1e-5)


def line(
    t_s: float, prompts: int = 0, prompt_tokens: int = 0, decodes: int = 0, running: int = 1, kv_usage: float = 0.1
) -> StepLine:
    return StepLine(t_s, prompts, prompt_tokens, decodes, running, 0, kv_usage)


def test_steps_are_told_from_the_times_between_lines() -> None:
    lines = line(1.0, 1, 100), line(1.01, decodes=1, running=0), line(5.0, 1, 30), line(5.1, decodes=1)
    found = list(samples(EngineSteps(FACTS, (*lines, line(30.0, decodes=1)))))
    assert [round(one.seconds, 6) for one in found] == [0.01, 0.1]  # neither the idle time nor the gap of 25 s
    assert found[0].kv_read_tokens == pytest.approx(0.1 * 65_536 - 64)


def test_a_prompt_that_goes_on_brings_its_past() -> None:
    lines = [line(1.0, decodes=1)]
    lines += [line(t_s, 1, tokens, 1) for t_s, tokens in ((1.1, 2_047), (1.2, 2_047), (1.3, 500), (1.4, 80))]
    assert [one.past_tokens for one in samples(EngineSteps(FACTS, tuple(lines)))] == [0, 2_047, 4_094, 0]


def test_the_log_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path, LogHealth("steps"))
    log.begin(FACTS)
    log.write(StepLine(12.5, 1, 7, 2, 3, 4, 0.25))
    log.close()
    assert read_step_log(path) == EngineSteps(FACTS, (StepLine(12.5, 1, 7, 2, 3, 4, 0.25),))
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(StepLogError, match="line 3"):
        read_step_log(path)
    path.write_text("")
    with pytest.raises(StepLogError, match="line 1"):
        read_step_log(path)


def test_what_a_request_takes_around_its_steps() -> None:
    log = EngineSteps(FACTS, tuple(line(0.02 * number, decodes=1) for number in range(1, 101)))
    assert mean_wait_s([log], 0.0, 2.0) == pytest.approx(98 * 0.02**2 / 4)
    beside = ProbeWindow(0.0, 2.0, 5.0, (Around(0.1, 0.030, 1.0),) * 10)
    front, back_s = front_and_back(0.010, [beside], [log])
    assert back_s == pytest.approx((1 - FRONT_SHARE) * 0.010)
    assert front(0) == pytest.approx(FRONT_SHARE * 0.010)
    assert front(5) == pytest.approx(0.030 - back_s - mean_wait_s([log], 0.0, 2.0))
    assert front(50) == front(5)


def test_ledgers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    stages = {"gateway": 0.001, "lane": 0.5, "connect": 0.002, "engine_http": 0.003, "prefill": 0.01, "decode": 1.0}
    rows = [{"outcome": "ok", "stages_s": stages, "ttft_s": 0.6, "wall_s": 2.0}, {"outcome": "refused", "stages_s": {}}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert read_arounds(path) == [Around(0.6, pytest.approx(0.006), 2.0)]
    path.write_text("{}")
    with pytest.raises(LedgerError, match="line 1"):
        read_arounds(path)


@given(st.integers(1, 8), st.integers(1, 300))
def test_concurrencies_double_until_all_is_full(replicas: int, sequences: int) -> None:
    levels = list(concurrencies(replicas, sequences))
    assert levels[-1] == replicas * sequences
    assert all(a < b <= 2 * a for a, b in itertools.pairwise(levels))


@given(st.integers(32, 100_000), st.integers(1, 100_000), st.integers(0, 5))
def test_probes_fit_the_context(max_model_len: int, max_prompt: int, seed: int) -> None:
    prompt, output = spread_lengths(max_model_len, max_prompt, 200, seed)
    assert (prompt + output <= max_model_len).all()
    assert prompt.min() >= 1
    assert output.min() >= 1
    again = traffic_lengths(prompt, output, 50, seed)
    assert len(again[0]) == len(again[1]) == 50


def test_a_slow_while_is_told_by_its_steps() -> None:
    cost = fit_steps(made_samples(2_000, 0.0)).model
    steps = [replace(one, seconds=1.2 * one.seconds) for one in made_samples(500, 0.0, 1)]
    assert slowness(cost, steps) == pytest.approx(1.2, rel=0.01)
    assert slowness(slowed(cost, 1.2), steps) == pytest.approx(1.0, rel=0.01)
    assert slowed(cost, 2.0).run_s(7, 3, 100) == pytest.approx(2 * cost.run_s(7, 3, 100))
    with pytest.raises(ValueError, match="steps"):
        slowness(cost, [])
