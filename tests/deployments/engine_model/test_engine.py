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
from deployments.engine_model.limits import EngineModelLimits, Speculation
from deployments.engine_model.scheduler import StepScheduler
from deployments.engine_model.sequence import Sequence
from deployments.engine_model.speculation import accepted

COST = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
PREFIXES = st.sampled_from([(), (1,), (1, 2), (1, 2, 3), (1, 4), (5, 6, 7, 8, 9), tuple(range(20, 45))])
REQUESTS = st.lists(
    st.tuples(st.floats(0, 0.3), st.integers(1, 900), st.integers(1, 120), PREFIXES, st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=40,
)


class SteppingScheduler(StepScheduler):
    """Plans one step at a time: runs of decodes have no closed form."""

    def schedule(self, seen_s: float) -> int:
        return min(1, super().schedule(seen_s))


def played(
    engine: EngineModel, requests: list[tuple[float, Sequence]]
) -> tuple[list[float | None], dict[object, float], int]:
    """When each request had its first token, and when it ended; and how many were preempted."""
    finished_s = {}
    for at_s, sequence in [*requests, (math.inf, None)]:
        while engine.next_s < at_s:
            now = engine.next_s
            finished_s.update({one.tag: now for one in engine.advance().finished})
        if sequence is not None:
            engine.add(sequence, at_s)
    assert engine.kv_usage == pytest.approx(0.0, abs=1e-12)
    assert engine.running == engine.waiting == 0
    return [sequence.first_s for _, sequence in requests], finished_s, engine.preemptions


@pytest.mark.whole
@settings(max_examples=300, deadline=None)
@given(
    REQUESTS,
    st.sampled_from([0.0, 3e-8, 1e-5]),
    st.builds(
        EngineModelLimits,
        sequences=st.integers(1, 12),
        step_tokens=st.integers(64, 700),
        kv_tokens=st.integers(1_100, 3_000),
        chunk_tokens=st.sampled_from([0, 8, 16, 64]),
        prefix_caching=st.booleans(),
        async_scheduling=st.booleans(),
        long_prefill_tokens=st.sampled_from([0, 0, 100]),
    ),
)
def test_closed_forms_are_the_steps_that_they_stand_for(
    requests: list[tuple[float, int, int, tuple[int, ...], int, bool]], kv_read: float, limits: EngineModelLimits
) -> None:
    cost = CostModel(
        line(0.004, 2e-5),
        line(0.0, 1e-5),
        Attention(line(1e-4, 2e-6), half_square(1e-10), kv_read, 1e-8, 1e-10, 3e-6, 1e-8, 2 * kv_read),
    )
    arrived = np.cumsum([gap for gap, *_ in requests]).tolist()

    def sequences() -> list[tuple[float, Sequence]]:
        return [
            (at_s, Sequence(number, prompt, 0, output, prefix[: prompt // (limits.chunk_tokens or 16)], *rest))
            for number, (at_s, (_, prompt, output, prefix, *rest)) in enumerate(zip(arrived, requests, strict=True))
        ]

    first_s, finished_s, preemptions = played(EngineModel(limits, cost), sequences())
    stepping = EngineModel(limits, cost, SteppingScheduler(limits))
    stepped = played(stepping, sequences())
    assert preemptions == stepped[2]
    assert first_s == pytest.approx(stepped[0], rel=1e-9, abs=1e-7)
    assert [finished_s[number] for number in range(len(requests))] == pytest.approx(
        [stepped[1][number] for number in range(len(requests))], rel=1e-9, abs=1e-7
    )


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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_that_is_aborted_in_its_last_chunk_is_gone(asynchronous: bool) -> None:
    engine = EngineModel(EngineModelLimits(4, 256, 4_000, async_scheduling=asynchronous), COST)
    engine.add(aborted := Sequence("a", 400, 0, 5), 0.0)
    engine.advance()
    engine.abort(aborted, engine.began_s)
    assert engine.advance().finished == ()
    assert (engine.next_s, engine.running, engine.waiting, engine.kv_usage) == (math.inf, 0, 0, 0)


def test_a_long_prompt_is_alone_as_long_as_no_other_request_is_known() -> None:
    engine = EngineModel(EngineModelLimits(1, 100, 4_000, async_scheduling=True, long_prefill_tokens=24), COST)
    engine.add(Sequence("long", 1_000, 0, 2), 0.0)
    engine.add(Sequence("late", 10, 0, 2), engine.next_s / 2)
    taken = []
    for _ in range(3):
        began_s = engine.began_s
        taken.append(engine.next_s - began_s)
        engine.advance()
    assert taken[1] > 1.2 * taken[2]


def test_curves_interpolate_and_refuse_nonsense() -> None:
    curve = table([(4, 8.0), (1, 2.0), (2, 4.0)])
    assert [curve(x) for x in (0, 1, 1.5, 3, 8)] == [2.0, 2.0, 3.0, 6.0, 16.0]
    for at, value in (((), ()), ((1.0, 1.0), (1.0, 2.0)), ((1.0,), (1.0, 2.0))):
        with pytest.raises(ValueError, match="curve"):
            Curve(at, value)
    with pytest.raises(ValueError, match="negative"):
        plain_attention(-1.0, 0.0)


def test_a_draft_gives_as_many_tokens_as_are_accepted() -> None:
    speculation = Speculation((0.8, 0.6, 0.1))
    shares = [0, 0, 0, 0]
    for tokens in range(20_000):
        shares[accepted(speculation, 7, tokens)] += 1
    assert [sum(shares[count:]) / 20_000 for count in (1, 2, 3)] == pytest.approx(speculation.acceptance, abs=0.02)
    cost = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10), draft=line(0.001, 0.0))
    steps = []
    for drafted in (None, speculation):
        engine = EngineModel(EngineModelLimits(8, 256, 8_000, speculation=drafted), cost)
        played(engine, [(0.0, Sequence(number, 50, 0, 500)) for number in range(4)])
        steps.append(engine.steps)
    assert steps[0] / steps[1] == pytest.approx(1 + 0.8 + 0.6 + 0.1, rel=0.06)


def test_what_a_draft_costs_is_added_to_the_step() -> None:
    cost = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10), draft=line(0.001, 1e-4))
    for chunks in ([], [Chunk(100, 0)]):
        plain, with_draft = (cost.step_s(chunks, 8, 1_000, 0, drafted) for drafted in (0, 24))
        assert with_draft - plain == pytest.approx(24 * 3e-5 + 0.001 + 8 * 1e-4)
    with pytest.raises(ValueError, match="none larger than the one before"):
        Speculation((0.5, 0.6))
