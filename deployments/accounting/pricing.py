"""What the work of one attempt counts for, beside that of the others on its replica. Pure.

By the engine's step model (`engine_model/cost_model.py`), for a sequence with P prompt tokens, C of them cached, and O
output tokens, beside B - 1 other sequences with K tokens of context each:

    prefill = sum over its chunks (q tokens after p others) of step([q after p], B - 1 decodes) - step(B - 1 decodes)
    decode  = (O - 1) * (base(B) / B + kv_read * (P + O / 2))

A prompt pays for what it adds to steps that run anyway, and for all of the step where none runs. A step of decodes is
shared equally but for the KV cache, of which each sequence reads its own. B is the harmonic mean of the running
sequences over the attempt's time, so that the shares of all sequences add up to the time in which any ran. The sum over
all attempts is then the time of the steps, as long as the mix is steady; a bill scales it to the time that was
measured.

Without a step model the scheduler's cost counts: uncached prompt tokens, and `decode_weight` for each output token.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from deployments.accounting.facts import AttemptUsage
from deployments.engine_model.cost_model import Chunk, CostModel

_PRICES = 65_536
"""So many prices are kept: requests of equal lengths come again and again."""


@dataclass(frozen=True, slots=True)
class Work:
    """In seconds of an engine, or in tokens: only the proportions count."""

    prefill: float
    decode: float


class Pricing(Protocol):
    """How the work of one model and group is priced. `basis` says so in words."""

    basis: str

    def work(self, usage: AttemptUsage, batch: float, context_tokens: float) -> Work:
        """Of an attempt, beside `batch` running sequences (its own included, at least 1) with so many tokens of context
        each, all of them means over its time."""


class TokenPricing:
    """The scheduler's cost."""

    def __init__(self, decode_weight: float) -> None:
        self.basis = f"the scheduler's cost: an output token counts for {decode_weight:g} uncached prompt tokens"
        self._decode_weight = decode_weight

    def work(self, usage: AttemptUsage, batch: float, context_tokens: float) -> Work:
        uncached = max(0, usage.prompt_tokens - usage.cached_tokens)
        return Work(float(uncached), self._decode_weight * usage.output_tokens)


class StepPricing:
    """By the step model `cost`; `source` says where it is from. A step has up to `step_tokens` tokens."""

    def __init__(self, cost: CostModel, step_tokens: int, source: str) -> None:
        self.basis = f"the step model of {source}"
        self._cost = cost
        self._step_tokens = max(1, step_tokens)
        self._prefill_s = lru_cache(_PRICES)(self._prefill_beside_s)

    def work(self, usage: AttemptUsage, batch: float, context_tokens: float) -> Work:
        sequences = max(1, usage.sequences)
        prompt, cached, output = (
            number / sequences for number in (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
        )
        beside, context = max(1.0, batch) - 1, round(context_tokens)
        low = math.floor(beside)
        prefill_s = self._prefill_s(round(prompt), min(round(cached), round(prompt)), low, context)
        if beside > low:
            more_s = self._prefill_s(round(prompt), min(round(cached), round(prompt)), low + 1, context)
            prefill_s += (more_s - prefill_s) * (beside - low)
        steps = max(0.0, output - 1)
        kv_s = self._cost.kv_read_s * (prompt + output / 2)
        return Work(sequences * prefill_s, sequences * steps * (self._share_s(beside + 1) + kv_s))

    def _share_s(self, batch: float) -> float:
        """One sequence's part of a step of so many decodes, without what it reads."""
        low = math.floor(batch)
        base_s = self._cost.base_s(low)
        if batch > low:
            base_s += (self._cost.base_s(low + 1) - base_s) * (batch - low)
        return base_s / batch

    def _prefill_beside_s(self, prompt: int, cached: int, decodes: int, context: int) -> float:
        """What a prompt adds to steps that decode so many sequences."""
        step_s, kv_tokens = self._cost.step_s, decodes * context
        alone_s = step_s((), decodes, kv_tokens, 0) if decodes else 0.0
        return sum(
            max(0.0, step_s((chunk,), decodes, kv_tokens, int(is_last)) - alone_s)
            for chunk, is_last in self._chunks(prompt, cached, decodes)
        )

    def _chunks(self, prompt: int, cached: int, decodes: int) -> Iterator[tuple[Chunk, bool]]:
        """The parts in which a prompt is computed. The engine computes at least its last token."""
        room, at = max(1, self._step_tokens - decodes), min(cached, prompt - 1)
        while at < prompt:
            tokens = min(room, prompt - at)
            yield Chunk(tokens, at), at + tokens == prompt
            at += tokens
