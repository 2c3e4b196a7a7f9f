"""The driver against the engine's own account, on a clock that the test moves."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engine.backend import EngineLoad
from deployments.engine.simulated.driver import Driver, SequenceJob
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from tests.clock import Clock

COST = CostModel(line(0.01, 1e-5), line(0.0, 0.0), plain_attention(1e-9, 0.0))
LIMITS = EngineModelLimits(sequences=4, step_tokens=64, kv_tokens=4_096)


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends = 0

    def reached(self, job: SequenceJob, tokens: int) -> None:
        self.tokens.append(tokens)

    def ended(self, job: SequenceJob) -> None:
        self.ends += 1

    def failed(self) -> None:
        raise AssertionError


def driver(per_chunk: int, clock: Clock, speed: float = 1.0) -> tuple[Driver, EngineLoad]:
    load = EngineLoad()
    return Driver(EngineModel(LIMITS, COST), load, per_chunk, speed, clock=clock), load


REQUESTS = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 200), st.integers(1, 100), st.booleans()), min_size=1, max_size=20
)


@pytest.mark.whole
@given(REQUESTS, st.integers(1, 40), st.floats(0.001, 0.5))
async def test_every_job_ends_once_and_its_tokens_come_in_order(
    requests: list[tuple[float, int, int, bool]], per_chunk: int, turn_s: float
) -> None:
    """However late the turns come; a job that is dropped hears nothing more."""
    clock = Clock()
    driven, load = driver(per_chunk, clock)
    heard, jobs, dropped = [], [], set()
    for at_s, prompt, output, leaves in sorted(requests):
        clock.now = max(clock.now, 100 + at_s)
        listener = Heard()
        job = SequenceJob(listener, prompt, output, True)
        driven.add(job)
        if leaves:
            clock.now += turn_s
            driven._catch_up()
            if job.open:
                dropped.add(job)
            driven.drop(job)
        heard.append(listener)
        jobs.append(job)
    while len(driven):
        clock.now += turn_s
        driven._catch_up()
    assert (load.running, load.waiting) == (0, 0) or dropped
    for job, listener in zip(jobs, heard, strict=True):
        assert listener.ends == (job not in dropped)
        assert listener.tokens == sorted(set(listener.tokens))
        assert all(tokens < job.sequence.output for tokens in listener.tokens)
        assert listener.tokens == list(range(1, job.sequence.output, per_chunk))[: len(listener.tokens)]
        if job not in dropped:
            assert len(listener.tokens) == len(range(1, job.sequence.output, per_chunk))
            assert job.added_s <= job.began_s <= job.first_s <= job.ended_s


async def test_tokens_come_when_the_steps_say() -> None:
    clock = Clock()
    driven, _ = driver(10, clock)
    job = SequenceJob(listener := Heard(), 10, 101, True)
    driven.add(job)
    steps: list[float] = []
    while not listener.ends:
        before = len(listener.tokens)
        clock.now += 0.0005
        driven._catch_up()
        if len(listener.tokens) > before:
            steps.append(clock.now - 100)
    assert listener.tokens == list(range(1, 101, 10))
    for first, second in itertools.pairwise(steps):
        assert abs(second - first - 10 * 0.01001) < 0.002


async def test_speed_and_the_engines_account_of_time() -> None:
    ends = []
    for speed in (1.0, 8.0):
        clock = Clock()
        driven, _ = driver(10, clock, speed)
        driven.add(job := SequenceJob(Heard(), 100, 50, False))
        while len(driven):
            clock.now += 0.001
            driven._catch_up()
        ends.append((job.ended_s - job.added_s, clock.now - 100))
    assert abs(ends[0][0] - ends[1][0]) < 1e-9
    assert abs(ends[0][1] / 8 - ends[1][1]) < 0.002
