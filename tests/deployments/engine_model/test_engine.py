"""The simulated engine: its closed forms against steps that are taken one by one, and vLLM's rules."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from deployments.engine_model.cost_model import (
    Attention,
    Chunk,
    CostModel,
    Curve,
    half_square,
    line,
    plain_attention,
    table,
)
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence
from tests.deployments.engine_model.naive_engine import Arrival, NaiveEngine

COST = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
PREFIXES = st.sampled_from([(), (1,), (1, 2), (1, 2, 3), (1, 4), (5, 6, 7, 8, 9), tuple(range(20, 45))])
REQUESTS = st.lists(
    st.tuples(st.floats(0, 0.3), st.integers(1, 900), st.integers(1, 120), PREFIXES, st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=40,
)


@pytest.mark.whole
@settings(max_examples=300, deadline=None)
@given(
    REQUESTS,
    st.integers(1, 12),
    st.integers(64, 700),
    st.integers(1_100, 6_000),
    st.sampled_from([0.0, 3e-8, 1e-5]),
    st.sampled_from([0, 32]),
    st.booleans(),
)
def test_closed_forms_are_the_steps_that_they_stand_for(
    requests: list[Arrival],
    sequences: int,
    budget: int,
    kv: int,
    kv_read: float,
    chunk: int,
    asynchronous: bool,
) -> None:
    cost = CostModel(
        line(0.004, 2e-5),
        line(0.0, 1e-5),
        Attention(line(1e-4, 2e-6), half_square(1e-10), kv_read, 1e-8, 1e-10, 3e-6, 1e-8, 2 * kv_read),
    )
    limits = EngineModelLimits(sequences, budget, kv, chunk_tokens=chunk, async_scheduling=asynchronous)
    arrived = np.cumsum([gap for gap, *_ in requests]).tolist()
    arrivals = [
        (at, prompt, output, prefix[: prompt // chunk] if chunk else (), *rest)
        for at, (_, prompt, output, prefix, *rest) in zip(arrived, requests, strict=True)
    ]
    naive = NaiveEngine(limits, cost)
    naive.run(arrivals)
    engine, made = EngineModel(limits, cost), list[Sequence]()
    finish = {}
    for index, (at, prompt, output, prefix, *rest) in enumerate([*arrivals, (math.inf, 1, 1, (), 0, False)]):
        while engine.next_s < at:
            now = engine.next_s
            finish.update({sequence.tag: now for sequence in engine.advance().finished})
        if at < math.inf:
            made.append(Sequence(index, prompt, 0, output, prefix, *rest))
            engine.add(made[-1], at)
    if naive.preempted and len({priority for *_, priority, _ in arrivals}) > 1:
        # vLLM then leaves those behind the victim out of one step, which the closed forms do not.
        assert engine.kv_usage == 0
        assert set(finish) == set(naive.finish)
        return
    assert engine.preemptions == naive.preempted
    assert [sequence.first_s for sequence in made] == pytest.approx(
        [naive.first[index] for index in range(len(requests))], rel=1e-9, abs=1e-7
    )
    assert [finish[index] for index in range(len(requests))] == pytest.approx(
        [naive.finish[index] for index in range(len(requests))], rel=1e-9, abs=1e-7
    )
    assert engine.kv_usage == 0


@given(st.integers(1, 500), st.integers(1, 300), st.floats(0, 1e6), st.floats(0, 1e-6))
def test_steps_in_is_the_inverse_of_a_run(steps: int, decodes: int, kv: float, kv_read: float) -> None:
    cost = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(kv_read, 0.0))
    step_s = cost.run_s(1, decodes, kv)
    assert cost.steps_in(cost.run_s(steps, decodes, kv) - 1e-3 * step_s, decodes, kv) == steps
    assert cost.steps_in(cost.run_s(steps, decodes, kv) + 1e-3 * step_s, decodes, kv) == steps + 1
    assert cost.steps_in(0.0, decodes, kv) == 1
    assert sum(cost.run_s(1, decodes, kv + decodes * step) for step in range(min(steps, 50))) == pytest.approx(
        cost.run_s(min(steps, 50), decodes, kv)
    )


def test_a_prompt_is_prefilled_in_chunks_and_samples_at_the_end_of_the_last() -> None:
    engine = EngineModel(EngineModelLimits(8, 100, 10_000), COST)
    engine.add(Sequence("a", 250, 0, 5), 0.0)
    expected = sum(
        COST.step_s([Chunk(size, past)], 0, 0, size == 50) for size, past in ((100, 0), (100, 100), (50, 200))
    )
    assert engine.advance().first == ()
    assert engine.advance().first == ()
    at = engine.next_s
    assert [sequence.tag for sequence in engine.advance().first] == ["a"]
    assert at == pytest.approx(expected)
    assert [sequence.tag for sequence in engine.advance().finished] == ["a"]
    assert engine.next_s == math.inf
    assert engine.kv_usage == 0


def test_cached_tokens_are_not_prefilled() -> None:
    times = []
    for cached in (0, 800):
        engine = EngineModel(EngineModelLimits(8, 2_000, 10_000), COST)
        engine.add(Sequence("a", 1_000, cached, 5), 0.0)
        times.append(engine.next_s)
    assert times[1] < times[0] / 2


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(1, 60), st.floats(0, 0.2), st.booleans()), min_size=1, max_size=25
    ),
    st.integers(2, 8),
)
def test_aborted_ones_leave_nothing(requests: list[tuple[int, int, float, bool]], sequences: int) -> None:
    engine = EngineModel(EngineModelLimits(sequences, 256, 4_000), COST)
    made, now = [], 0.0
    for prompt, output, gap, _ in requests:
        while engine.next_s <= now + gap:
            engine.advance()
        now += gap
        made.append(Sequence(len(made), prompt, 0, output))
        engine.add(made[-1], now)
    for sequence, (_, _, _, aborted) in zip(made, requests, strict=True):
        if aborted:
            engine.abort(sequence, now)
    finished = []
    while engine.next_s < math.inf:
        finished += engine.advance().finished
    assert engine.running == engine.waiting == 0
    assert engine.kv_usage == 0
    aborted_tags = {sequence.tag for sequence, (_, _, _, aborted) in zip(made, requests, strict=True) if aborted}
    assert not aborted_tags & {sequence.tag for sequence in finished}


def test_curves_interpolate_and_refuse_nonsense() -> None:
    curve = table([(4, 8.0), (1, 2.0), (2, 4.0)])
    assert [curve(x) for x in (0, 1, 1.5, 3, 8)] == [2.0, 2.0, 3.0, 6.0, 16.0]
    for at, value in (((), ()), ((1.0, 1.0), (1.0, 2.0)), ((1.0,), (1.0, 2.0))):
        with pytest.raises(ValueError, match="curve"):
            Curve(at, value)
    with pytest.raises(ValueError, match="negative"):
        plain_attention(-1.0, 0.0)
