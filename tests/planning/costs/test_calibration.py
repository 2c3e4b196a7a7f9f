"""Calibrations of a simulated engine, whose true costs are known: what is found again, and what is said of the rest."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from cluster.spec import Model
from deployments.engine.simulated.driver import SimulatedSteps
from deployments.engine.step_log import EngineFacts, StepLog
from deployments.engine_model.cost_file import CostBasis, cost_file, read_cost_file, write_cost_file
from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence
from deployments.telemetry.line_log import LogHealth
from planning.costs.calibration import Calibration, LoneKernels, Measurements, calibration
from planning.costs.front import LoneRequest
from planning.costs.host import NO_HOST, TYPICAL_HOST, calibrated_host
from planning.costs.probes import Lengths, coarse_to_fine, concurrencies, spread_lengths
from planning.costs.residuals import BLOCK, EVERY, batch_name, not_covered, parts, split
from planning.costs.roofline import roofline
from planning.costs.steps import EngineSteps, StepSample, read_step_log
from tests.planning.fit.configs import LLAMA_8B, QWEN3_0_6B, plan_on

CONTEXT = 8_192
LIMITS = EngineModelLimits(64, 2_048, 200_000, async_scheduling=True)
FRONT_S, BACK_S = 0.004, 0.001
LEVEL_S = 12.0


def a_model(**more: object) -> Model:
    settings = {"max_model_len": CONTEXT, "max_num_seqs": 64, "max_num_batched_tokens": 2_048}
    return Model.model_validate({"name": "m", "source": "org/m", "settings": settings, **more})


class Subject:
    """A simulated engine in virtual time, which writes a step log."""

    def __init__(self, cost: CostModel, path: Path) -> None:
        self.engine = EngineModel(LIMITS, cost)
        self.now_s = 0.0
        self.log = StepLog(path, LogHealth("steps"))
        self.steps = SimulatedSteps(self.log, LIMITS)

    def closed(self, lengths: Lengths, clients: int, seconds: float) -> None:
        """A closed loop of so many clients; returns when all is answered."""
        ends_s = self.now_s + seconds
        asked = self._asked(lengths)
        for _ in range(clients):
            self.engine.add(next(asked), self.now_s)
        while self.engine.next_s < math.inf:
            for _ in self._advance():
                if self.now_s < ends_s:
                    self.engine.add(next(asked), self.now_s)
        self.now_s += 0.5

    def alone(self, count: int) -> tuple[LoneRequest, ...]:
        """Requests one at a time, with what they take around their steps."""
        found = []
        for number in range(count):
            sent_s = self.now_s
            self.now_s += FRONT_S
            self.engine.add(Sequence(number, 32, 0, 8), self.now_s)
            first_s = self.engine.next_s
            while self.engine.next_s < math.inf:
                self._advance()
            found.append(LoneRequest(sent_s, first_s + BACK_S))
            self.now_s += BACK_S
        return tuple(found)

    def _advance(self) -> tuple[Sequence, ...]:
        segment, self.now_s = self.engine.segment, self.engine.next_s
        boundary = self.engine.advance()
        self.steps.note(segment, self.engine, 0.0, 1.0)
        return boundary.finished

    @staticmethod
    def _asked(lengths: Lengths) -> Iterator[Sequence]:
        while True:
            for prompt, output in zip(*(each.tolist() for each in lengths), strict=True):
                yield Sequence(None, prompt, 0, output)


PLAN = plan_on("h100", LLAMA_8B)
TRUTH = roofline(PLAN).model
NO_HOSTS = roofline(PLAN, host=NO_HOST).model
KERNELS = LoneKernels(NO_HOSTS.base_s(1), NO_HOSTS.step_s([Chunk(1, 0)], 0, 0, 1), 32)


NOISE = 0.05
"""Each step's time is blurred by so much (log-normal)."""
FORM = 0.02
"""What the fit's form cannot express: without noise, no part and no step below is off by more."""
ALONE = 60


def blurred(log: EngineSteps, after_s: float) -> EngineSteps:
    """The same log with noisy steps from a time on."""
    rng, lines, was_s, now_s = np.random.default_rng(5), [], 0.0, 0.0
    for line in log.lines:
        now_s += (line.t_s - was_s) * (float(rng.lognormal(0, NOISE)) if was_s > after_s else 1.0)
        was_s = line.t_s
        lines.append(replace(line, t_s=now_s))
    return EngineSteps(log.facts, tuple(lines))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """A whole calibration, in virtual time."""
    path = tmp_path_factory.mktemp("calibration") / "steps.jsonl"
    subject = Subject(TRUTH, path)
    alone = subject.alone(ALONE)
    alone_ended_s = subject.now_s
    for number, clients in enumerate(coarse_to_fine(list(concurrencies(1, LIMITS.sequences)))):
        subject.closed(spread_lengths(CONTEXT, CONTEXT, 4_096, number), clients, LEVEL_S / 2)
        subject.closed(spread_lengths(CONTEXT, 256, 4_096, 100 + number), clients, LEVEL_S / 2)
    subject.log.close()
    log = blurred(read_step_log(path), alone_ended_s)
    measured = Measurements((log,), FRONT_S + BACK_S, alone, (), ALONE, 0, ("16 clients: no time was left",))
    return calibration(a_model(), True, measured, "a test", KERNELS)


@pytest.mark.whole
def test_held_out_parts_are_predicted_within_their_noise(found: Calibration) -> None:
    record = found.file.calibration
    assert record is not None
    assert {one.part for one in record.residuals} == set(parts()) - {batch_name(129)}
    for one in record.residuals:
        assert abs(one.bias) < FORM + 4 * NOISE / math.sqrt(one.steps), one
        assert one.error < FORM + 2 * NOISE, one
    assert sum(one.share for one in record.residuals) == pytest.approx(1.0)


@pytest.mark.whole
def test_the_true_costs_are_found_again(found: Calibration) -> None:
    """Of steps that were no probe's. `fewest`: as many steps of such a kind were measured at least."""
    cost, fewest = found.file.cost_model(), 100
    tolerance = FORM + 4 * NOISE / math.sqrt(fewest)
    for decodes, kv in ((1, 100), (1, 4_000), (8, 8_000), (32, 32_000), (64, 64_000)):
        assert cost.run_s(1, decodes, kv) == pytest.approx(TRUTH.run_s(1, decodes, kv), rel=tolerance)
    for tokens, decodes, kv in ((32, 0, 0), (1_024, 0, 0), (256, 16, 16_000), (1_500, 48, 48_000), (100, 60, 60_000)):
        true_s = TRUTH.step_s([Chunk(tokens, 0)], decodes, kv, 1)
        assert cost.step_s([Chunk(tokens, 0)], decodes, kv, 1) == pytest.approx(true_s, rel=tolerance)


@pytest.mark.whole
def test_the_hosts_part_is_told_from_the_rest(found: Calibration) -> None:
    record = found.file.calibration
    assert record is not None
    assert record.host.host_step_s is not None
    low, high = record.host.host_step_s
    assert low <= TYPICAL_HOST.step_s <= high
    blocks_s = TYPICAL_HOST.block_s * 32
    assert record.host.prefill_step_s == pytest.approx(blocks_s, rel=0.1)


@pytest.mark.whole
def test_another_models_costs_take_the_hosts_part_over_and_are_surer(found: Calibration) -> None:
    host, typical = calibrated_host(found.file), TYPICAL_HOST
    true_s = typical.step_s + 32 * typical.block_s
    ours_s = host.step_s + 32 * host.block_s
    assert host.low * ours_s <= true_s <= host.high * ours_s
    assert host.high * ours_s - host.low * ours_s < 0.5 * (typical.high - typical.low) * true_s
    plan = plan_on("h100", QWEN3_0_6B)
    costs, usual = roofline(plan, host=host), roofline(plan)
    assert costs.model.front(0.0) == pytest.approx(FRONT_S, rel=0.01)
    assert costs.model.back_s == pytest.approx(BACK_S, rel=0.01)
    (part, before) = (next(one for one in some.sources if one.part == "host") for some in (costs, usual))
    assert (part.basis, before.basis) == (CostBasis.CALIBRATED, CostBasis.OTHER_PROFILE)
    assert part.high / part.low < before.high / before.low
    assert "calibrated here with m" in part.note


def test_costs_without_a_hosts_part_are_refused() -> None:
    estimate = cost_file("m", "1 x H100 SXM", "roofline", LIMITS, TRUTH)
    with pytest.raises(ValueError, match="costs of 'm', basis roofline: the host's part is not known; allowed"):
        calibrated_host(estimate)


@pytest.mark.whole
def test_the_file_says_what_was_not_covered_and_how_sure_it_is(found: Calibration, tmp_path: Path) -> None:
    record = found.file.calibration
    assert record is not None
    text = " / ".join(record.not_covered)
    assert "16 clients: no time was left" in text
    assert "33 to 64 decodes with 2,049 to 8,192 KV tokens each" in text  # 200,000 KV tokens hold few of them
    assert "9 to 32 decodes with 1 to 512 KV tokens each" not in text
    low, high = found.file.likely()
    assert low == pytest.approx(0.95)
    assert high == pytest.approx(1.05)
    assert found.file.sources[0].basis is CostBasis.CALIBRATED
    write_cost_file(tmp_path / "costs.json", found.file)
    assert read_cost_file(tmp_path / "costs.json") == found.file


@given(st.integers(1, 2_000), st.integers(64, 100_000))
def test_without_steps_nothing_is_covered(max_num_seqs: int, max_model_len: int) -> None:
    facts = EngineFacts(max_num_seqs, max(max_num_seqs, 2_048), 10_000_000, 16)
    missing = not_covered([], facts, max_model_len)
    assert all(text.endswith("no step") for text in missing)
    step = StepSample(0, 0, 0, 1, max_model_len / 2, 0.01)
    covered = set(missing) - set(not_covered([step] * 5, facts, max_model_len))
    assert len(covered) == 1
    assert covered.pop().startswith("1 decode with")


def test_every_fifth_block_is_held_out() -> None:
    steps = [StepSample(0, 0, 0, 1, 1.0, float(number + 1)) for number in range(3 * BLOCK * EVERY)]
    fitted, held = split(steps)
    assert len(held) == 3 * BLOCK
    assert sorted(one.seconds for one in (*fitted, *held)) == [one.seconds for one in steps]
    assert held[0].seconds == (EVERY - 1) * BLOCK + 1
