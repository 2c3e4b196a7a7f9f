"""The price of an attempt against the simulated engine, whose steps are shared one by one."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence as Seq
from typing import Any

import pytest

from deployments.accounting.billing import _batches
from deployments.accounting.facts import NS, AttemptUsage, Count
from deployments.accounting.pricing import StepPricing
from deployments.engine_model.cost_model import Attention, Chunk, CostModel, Curve, half_square, line, plain_attention
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.scheduler import StepScheduler
from deployments.engine_model.sequence import Sequence

SMALL = CostModel(line(0.025, 5e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
"""Each step costs much, however little is in it."""
LARGE = CostModel(
    Curve((0.0, 256.0, 512.0), (0.008, 0.009, 0.018)),
    line(0.001, 1e-5),
    Attention(line(0.0002, 1e-5), half_square(4e-9), 3e-8, 1e-7, 5e-9, 1e-5, 1e-8, 4e-8),
)
"""Like a GPU: flat, then bound by its matrix products; attention costs more beside prompts."""
LIMITS = EngineModelLimits(64, 512, 400_000)


class OneStepScheduler(StepScheduler):
    """Plans one step at a time."""

    def schedule(self, seen_s: float) -> int:
        return min(1, super().schedule(seen_s))


class SharedEngine:
    """Runs requests, and shares each step among those that are in it: decodes pay for the step without prompts, each
    for its own KV cache; prompts for what they add, in proportion to what each would alone."""

    def __init__(self, cost: CostModel, requests: Seq[tuple[float, str, int, int]]) -> None:
        self.scheduler = OneStepScheduler(LIMITS)
        self.engine = EngineModel(LIMITS, cost, self.scheduler)
        self.cost = cost
        self.paid_s: defaultdict[str, float] = defaultdict(float)
        self.busy_s = 0.0
        self.attempts: list[AttemptUsage] = []
        for at_s, tenant, prompt, output in [*requests, (math.inf, "", 0, 0)]:
            while self.engine.next_s < at_s:
                self._step()
            if prompt:
                self.engine.add(Sequence((tenant, at_s), prompt, 0, output), at_s)

    def _step(self) -> None:
        chunks: list[tuple[Any, Chunk]] = [(one, Chunk(tokens, one.past)) for one, tokens in self.scheduler.chunks]
        decoding = [one for one in self.scheduler._running.values() if one.decodes]
        step_s, kv = self.engine.next_s - self.engine.began_s, self.scheduler.lockstep.kv
        self.busy_s += step_s
        plain_s = self.cost.step_s((), len(decoding), kv, 0) if decoding else 0.0
        for one in decoding:
            own = one.past + self.scheduler.lockstep.step - one.start_step
            self.paid_s[one.tag[0]] += self.cost.base_s(len(decoding)) / len(decoding)
            self.paid_s[one.tag[0]] += self.cost.attention.kv_read_s * own
        adds = [self.cost.step_s((chunk,), len(decoding), kv, 1) - plain_s for _, chunk in chunks]
        for (one, _), adds_s in zip(chunks, adds, strict=True):
            self.paid_s[one.tag[0]] += (step_s - plain_s) * adds_s / sum(adds)
        now = self.engine.next_s
        for one in self.engine.advance().finished:
            tenant, at_s = one.tag
            self.attempts.append(
                AttemptUsage(
                    str(at_s), "r", "m", tenant, "", round(at_s * NS), round(now * NS), Count.ENGINE, one.prompt, 0,
                    one.output,
                )
            )  # fmt: skip


def traffic(seed: int, rate: float) -> list[tuple[float, str, int, int]]:
    rng, at_s, found = random.Random(seed), 0.0, []
    for _ in range(400):
        at_s += rng.expovariate(rate)
        tenant, prompt = rng.choice((("short", 60), ("long", 600), ("wordy", 60)))
        output = rng.randrange(100, 300) if tenant == "wordy" else rng.randrange(10, 60)
        found.append((at_s, tenant, round(prompt * rng.uniform(0.5, 1.5)), output))
    return found


@pytest.mark.whole
@pytest.mark.parametrize(("cost", "rate"), [(SMALL, 0.5), (SMALL, 3.0), (LARGE, 1.0), (LARGE, 8.0), (LARGE, 30.0)])
def test_tenants_pay_what_the_steps_cost_that_ran_for_them(cost: CostModel, rate: float) -> None:
    engine = SharedEngine(cost, traffic(1, rate))
    pricing = StepPricing(cost, LIMITS.step_tokens, "a test")
    batches = _batches(engine.attempts)
    context = sum(one.prompt_tokens + one.output_tokens / 2 for one in engine.attempts) / len(engine.attempts)
    priced_s: defaultdict[str, float] = defaultdict(float)
    for one, batch in zip(engine.attempts, batches, strict=True):
        work = pricing.work(one, batch, context)
        priced_s[one.tenant] += work.prefill + work.decode
    total_s = sum(priced_s.values())
    assert sum(engine.paid_s.values()) == pytest.approx(engine.busy_s, rel=1e-6)
    assert total_s == pytest.approx(engine.busy_s, rel=0.05)
    for tenant, paid_s in engine.paid_s.items():
        assert priced_s[tenant] / total_s == pytest.approx(paid_s / engine.busy_s, rel=0.025), tenant


def test_a_prompt_beside_others_pays_for_what_it_adds() -> None:
    pricing = StepPricing(LARGE, 512, "a test")
    alone, beside = (pricing.work(usage(400, 1), batch, 500) for batch in (1.0, 40.0))
    assert alone.prefill == pytest.approx(LARGE.step_s((Chunk(400, 0),), 0, 0, 1))
    expected = LARGE.step_s((Chunk(400, 0),), 39, 39 * 500, 1) - LARGE.step_s((), 39, 39 * 500, 0)
    assert beside.prefill == pytest.approx(expected)
    assert alone.decode == beside.decode == 0.0


def test_cached_tokens_are_read_and_not_computed() -> None:
    pricing = StepPricing(LARGE, 512, "a test")
    costs = [pricing.work(usage(2_000, 1, cached), 20.0, 500).prefill for cached in (0, 1_000, 1_990, 2_000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] > 0, "the engine computes at least the last token"


def test_several_sequences_cost_as_much_as_so_many_requests() -> None:
    pricing = StepPricing(LARGE, 512, "a test")
    one, four = (
        pricing.work(AttemptUsage("", "r", "m", "", "", 0, 1, Count.ENGINE, 100 * n, 0, 50 * n, n), 8.0, 300)
        for n in (1, 4)
    )
    assert (four.prefill, four.decode) == pytest.approx((4 * one.prefill, 4 * one.decode))


def usage(prompt: int, output: int, cached: int = 0) -> AttemptUsage:
    return AttemptUsage("", "r", "m", "", "", 0, 1, Count.ENGINE, prompt, cached, output)
