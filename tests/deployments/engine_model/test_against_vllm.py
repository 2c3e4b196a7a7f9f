"""The engine model against vLLM's own scheduler, step by step: the same sequences with the same tokens at the same
time, the same preempted, the same found in the prefix cache.

    pytest tests/deployments/engine_model/test_against_vllm.py                              a sample
    RAYLANE_WORKLOADS=10000 pytest tests/deployments/engine_model/test_against_vllm.py      as many as are asked for
"""

import logging
import math
import os
import warnings
from collections.abc import Callable
from itertools import zip_longest

import pytest
from hypothesis import HealthCheck, given, settings

from deployments.engine_model.cost_model import Attention, CostModel, half_square, line, plain_attention
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.scheduler import StepScheduler
from deployments.engine_model.sequence import Sequence
from deployments.engine_model.speculation import SpeculativeScheduler
from tests.deployments.engine_model.scripts import BLOCK, Record, Script, Step, limits_of_engines, workloads

pytestmark = [pytest.mark.whole, pytest.mark.contract]
UNREAD = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(0.0, 1e-10), draft=line(0.001, 1e-5))
ThroughVllm = Callable[[EngineModelLimits, list[tuple[float, Script]]], Record]
COST = CostModel(
    line(0.004, 2e-5),
    line(0.0, 1e-5),
    Attention(line(1e-4, 2e-6), half_square(1e-10), 3e-8, 1e-8, 1e-10, 3e-6, 1e-8, 6e-8),
)


def cost_of(limits: EngineModelLimits) -> CostModel:
    """With drafts, nobody knows when a step is planned how many tokens it will read."""
    return COST if limits.speculation is None else UNREAD


class _Watched(StepScheduler):
    """The engine model's scheduler, which notes what it plans."""

    def __init__(self, limits: EngineModelLimits) -> None:
        super().__init__(limits)
        self.steps: list[tuple[int, dict[int, int], frozenset[int], dict[int, int]]] = []
        """How many steps, their tokens, who was preempted before them, and what those that began found."""
        self._planned: tuple[dict[int, int], frozenset[int], dict[int, int]] = ({}, frozenset(), {})
        self._gone: set[int] = set()
        self._padded: dict[int, int] = {}

    def schedule(self, seen_s: float) -> int:
        before = set(self._running)
        run = super().schedule(seen_s)
        tokens = {one.tag: count for one, count in self.chunks} | self._padded
        self._padded.clear()
        tokens |= self._tokens_of_decodes()
        found = {one.tag: one.past for order, one in self._running.items() if order not in before}
        if tokens:
            self._planned = (tokens, frozenset(self._gone), found)
            self._gone.clear()
        return run

    def _tokens_of_decodes(self) -> dict[int, int]:
        return {one.tag: 1 for one in self._running.values() if one.decodes}

    def _preempt(self, sequence: Sequence, granted: int) -> None:
        self._gone.add(sequence.tag)
        super()._preempt(sequence, granted)

    def end_run(self, steps: int) -> tuple[Sequence, ...]:
        self.steps.append((steps, *self._planned))
        return super().end_run(steps)

    def end_step(self, now: float) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        self.steps.append((1, *self._planned))
        return super().end_step(now)


class _WatchedSpeculative(_Watched, SpeculativeScheduler):
    """The same with drafts."""

    def _tokens_of_decodes(self) -> dict[int, int]:
        return {one.tag: tokens for one, tokens in self._paced.granted.items()}

    def _begun(self, sequence: Sequence, tokens: int, room: int) -> int:
        taken = super()._begun(sequence, tokens, room)
        self._padded[sequence.tag] = taken
        return taken


def modelled(limits: EngineModelLimits, arrived: list[tuple[float, Script]]) -> Record:
    """The same requests at the same times through the engine model."""
    watched = _Watched(limits) if limits.speculation is None else _WatchedSpeculative(limits)
    engine, record = EngineModel(limits, cost_of(limits), watched), Record(arrived)
    began: list[float] = []

    def until(at_s: float) -> None:
        while engine.next_s < at_s:
            now = engine.next_s
            began.append(engine.began_s)
            record.finished_s.update({one.tag: now for one in engine.advance().finished})

    for number, (at_s, script) in enumerate(arrived):
        until(at_s)
        prefix = prefix_of(script) if limits.prefix_caching else ()
        sequence = Sequence(number, script.prompt, 0, script.output, prefix, script.priority, script.open_ended)
        engine.add(sequence, at_s)
    until(math.inf)
    assert engine.kv_usage == pytest.approx(0.0, abs=1e-12)
    for began_s, (steps, tokens, preempted, found) in zip(began, watched.steps, strict=True):
        record.steps.append(Step(began_s, tokens, preempted, found))
        record.steps += [Step(math.nan, tokens, frozenset(), {})] * (steps - 1)
    return record


def prefix_of(script: Script) -> tuple[int, ...]:
    """Chained hashes of its blocks: of all where another request follows it, else of those that it may share."""
    known = len(script.tokens) if script.then is not None else script.shared
    return tuple(hash(script.tokens[: end * BLOCK]) for end in range(1, known // BLOCK + 1))


def difference(vllm: Record, ours: Record) -> str:
    """Where two runs differ first, in words; empty where they do not."""
    for number, (one, other) in enumerate(zip_longest(vllm.steps, ours.steps)):
        if one is None or other is None:
            return f"step {number}: vLLM has {len(vllm.steps)}, the model {len(ours.steps)}"
        for name in ("preempted", "tokens", "found"):
            if getattr(one, name) != getattr(other, name):
                return f"step {number}, {name}: vLLM {getattr(one, name)}, the model {getattr(other, name)}"
        if not math.isnan(other.began_s) and abs(one.began_s - other.began_s) > 1e-6:
            return f"step {number}: vLLM at {one.began_s}, the model at {other.began_s}"
    for number, at_s in vllm.finished_s.items():
        if abs(ours.finished_s.get(number, math.inf) - at_s) > 1e-6:
            return f"request {number} ends: vLLM at {at_s}, the model at {ours.finished_s.get(number)}"
    return ""


@pytest.fixture(scope="module")
def through_vllm(tmp_path_factory: pytest.TempPathFactory) -> ThroughVllm:
    """Runs requests through vLLM's scheduler, which takes seconds to import, and warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.deployments.engine_model.vllm_scheduler import VllmRun

        folder = tmp_path_factory.mktemp("model")
        logging.getLogger("vllm").setLevel(logging.ERROR)
        return lambda limits, requests: VllmRun(limits, cost_of(limits), folder).run(requests)


@settings(
    max_examples=int(os.environ.get("RAYLANE_WORKLOADS", "60")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(limits=limits_of_engines(), requests=workloads())
def test_step_by_step_the_same_as_vllm(
    limits: EngineModelLimits, requests: list[tuple[float, Script]], through_vllm: ThroughVllm
) -> None:
    vllm = through_vllm(limits, requests)
    assert difference(vllm, modelled(limits, vllm.arrived)) == ""
