"""How many requests a second one replica serves for good, from the cost of its steps: an equation, where the simulator
would run a trace.

B sequences are in the engine. A prompt of `isl` tokens takes c steps, its answer of `osl` tokens osl - 1 more (the step
that ends the prompt samples the first token), so that a request stays for r = c + osl - 1 steps of t seconds each (one
more with asynchronous scheduling, which gives its place away a step later; with speculative decoding, osl - 1 tokens
take as many steps as it takes to gain them), and by Little's law

    x = B / (r * t)                        requests a second
    D = B * (osl - 1) / r                  sequences that decode in a step
    k = D * (isl + osl * (1 + cv^2) / 2)   KV tokens that they read: answers that run at a moment are longer than those
                                           that come; cv is their spread
    m = step_tokens - D                    tokens of prompts that one step has room for;  c = ceil(isl / m)
    p = B * isl / r                        tokens of prompts that each step must take on average;  p <= m
    f = max(p / m, 1 - exp(-c * B / r))    the share of steps that prefill: prompts come at random, not in even portions
    t = (1 - f) * step(D, k) + f * step(D, k beside p / f tokens of prompts)

`step` is that of `deployments/engine_model/cost_model.py`. Up to some number of tokens a GPU's step costs the same, so
a prompt spread evenly over all steps would cost nothing: so steps with and without prompts are computed apart. The
best B is the one of the largest x that fits

    B <= sequences,    B * (isl + osl) <= kv_tokens,    t <= itl_s,    c * step(...) <= ttft_s (a prompt that waits for
                       nothing but its own steps)

Mean lengths go in, and the spread of the answers (`output_cv`: standard deviation over mean). 1 is an exponential
distribution's; 0 says that all are of one length, and flatters an engine that is bound by reading its KV cache. What
lies before and behind the engine (`CostModel.front`, `back_s`) is latency, and costs the engine nothing. Prefix caching
is left out: pass the uncached part as `isl` where most of the prompts is shared. Pure; policies and planners call it.
"""

import math
from dataclasses import dataclass

from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import EngineModelLimits

_STEPS_A_DOUBLING = 32
"""How finely sizes of the batch are tried: each one up to 46, then one in every 2.2 %."""


@dataclass(frozen=True, slots=True)
class WorkingPoint:
    """An engine with `sequences` in it, of which `decodes` decode in a step: the mean time of a step, which is a
    token's (`step_s`), of a prompt that waits for nothing but its own steps (`prefill_s`), and how many requests it
    serves a second."""

    sequences: int
    decodes: int
    step_s: float
    prefill_s: float
    requests_per_s: float


def rate_at(limits: EngineModelLimits, cost: CostModel, isl: float, osl: float) -> float:
    """Requests a second of one replica, of `isl` tokens of prompt and `osl` of output on average; 0 where it cannot
    hold even one at a time."""
    point = best_point(limits, cost, isl, osl)
    return 0.0 if point is None else point.requests_per_s


def best_point(
    limits: EngineModelLimits,
    cost: CostModel,
    isl: float,
    osl: float,
    itl_s: float | None = None,
    ttft_s: float | None = None,
    output_cv: float = 1.0,
) -> WorkingPoint | None:
    """The working point of the highest rate that keeps the bounds (seconds; None: no bound); None where there is
    none."""
    isl, osl = max(1.0, isl), max(1.0, osl)

    best: WorkingPoint | None = None
    for sequences in _sizes(min(limits.sequences, int(limits.kv_tokens // (isl + osl)))):
        point = working_point(limits, cost, sequences, isl, osl, output_cv)
        if (
            point is None
            or (itl_s is not None and point.step_s > itl_s)
            or (ttft_s is not None and point.prefill_s > ttft_s)
        ):
            continue
        if best is None or point.requests_per_s > best.requests_per_s:
            best = point
    return best


def working_point(
    limits: EngineModelLimits, cost: CostModel, sequences: int, isl: float, osl: float, output_cv: float = 1.0
) -> WorkingPoint | None:
    """What an engine does with so many sequences in it, see the module's docstring; None where its steps have no room
    for so many prompts."""
    isl, osl = max(1.0, isl), max(1.0, osl)
    acceptance = limits.speculation.acceptance if limits.speculation is not None else ()
    after_first, each = (osl - 1) / (1 + sum(acceptance)), 1 + len(acceptance)
    chunks, steps, room = 1, osl, 0.0
    leaving = 1 if limits.async_scheduling and sequences > 1 else 0
    for _ in range(3):  # c and m depend on each other, hardly
        steps = chunks + after_first + leaving
        room = limits.step_tokens - sequences * after_first / steps * each
        if room < 1:
            return None
        chunks = math.ceil(isl / room)
    prompt_tokens = sequences * isl / steps
    if prompt_tokens > room:
        return None
    decodes = round(sequences * after_first / steps)
    drafted = decodes * (each - 1)
    kv_tokens = decodes * (isl + osl * (1 + output_cv * output_cv) / 2)
    share = max(prompt_tokens / room, -math.expm1(-chunks * sequences / steps))
    parts = max(1, round(chunks * sequences / steps / share))
    part = Chunk(max(1, round(prompt_tokens / share / parts)), round(isl * (chunks - 1) / (2 * chunks)))
    mixed_s = cost.step_s([part] * parts, decodes, kv_tokens, max(1, parts // chunks), drafted)
    plain_s = cost.step_s((), decodes, kv_tokens, 0, drafted) if decodes else mixed_s
    step_s = (1 - share) * plain_s + share * mixed_s
    return WorkingPoint(sequences, decodes, step_s, chunks * mixed_s, sequences / (steps * step_s))


def _sizes(maximum: int) -> list[int]:
    """Numbers up to `maximum`, denser where they are small. They depend on the engine's limits alone, never on a bound:
    a tighter bound therefore leaves fewer of the same sizes, and no rate grows with it."""
    if maximum < 1:
        return []
    count = math.ceil(math.log2(maximum) * _STEPS_A_DOUBLING)
    return sorted({maximum, *(round(2 ** (step / _STEPS_A_DOUBLING)) for step in range(count))})
