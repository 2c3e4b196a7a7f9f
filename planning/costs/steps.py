"""The steps that an engine took, read from its step log (`deployments/engine/step_log.py`), as samples that costs are
fitted to.

The log tells when a step's outputs arrived, so a step's time is the difference to the line before, where the engine had
work left by then. What the decodes of a step read of the KV cache follows from how full it was before, less half a
block a sequence, which is allocated and not filled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from deployments.engine.step_log import EngineFacts, StepLine
from deployments.engine_model.cost_model import Chunk, CostModel

LONGEST_S = 5.0
"""A longer gap is no step: the machine was asleep, or the engine stopped."""


class StepLogError(ValueError):
    """A step log that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step: what it computed, and its time."""

    prompts: int
    prompt_tokens: int
    past_tokens: int
    """Of the first of these prompts, prefilled in steps before."""
    decodes: int
    kv_read_tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """A step log."""

    facts: EngineFacts
    lines: tuple[StepLine, ...]

    def within(self, began_s: float, ended_s: float) -> "EngineSteps":
        """The steps that ended between two times of the monotonic clock."""
        return EngineSteps(self.facts, tuple(line for line in self.lines if began_s <= line.t_s < ended_s))


def read_step_log(path: Path) -> EngineSteps:
    """The step log of one replica. Raises StepLogError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StepLogError(f"{path}: cannot be read: {error.strerror}") from error
    number, rows = 1, text.splitlines()
    try:
        facts = msgspec.json.decode(rows[0] if rows else "", type=EngineFacts)
        lines = []
        for row in rows[1:]:
            number += 1
            lines.append(msgspec.json.decode(row, type=StepLine))
    except msgspec.MsgspecError as error:
        raise StepLogError(f"{path}: line {number} is none of a step log: {error}") from error
    return EngineSteps(facts, tuple(lines))


def samples(log: EngineSteps) -> Iterator[StepSample]:
    """The steps whose time is known.

    A step that uses up its token budget leaves its last prompt unfinished, which goes on, first, in the next one. Where
    a step has several prompts, their shares of its tokens are taken to be equal: the log tells their sum.
    """
    before: StepLine | None = None
    past = 0
    for line in log.lines:
        if before is not None and before.running + before.waiting > 0:
            seconds = line.t_s - before.t_s
            read = (
                max(0.0, before.kv_usage * log.facts.kv_tokens - before.running * log.facts.block_tokens / 2)
                if line.decodes
                else 0.0
            )
            if 0 < seconds < LONGEST_S:
                yield StepSample(
                    line.prompts, line.prompt_tokens, past if line.prompts else 0, line.decodes, read, seconds
                )
        unfinished = line.prompts and line.prompt_tokens + line.decodes >= log.facts.max_num_batched_tokens
        past = (past if line.prompts == 1 else 0) + line.prompt_tokens // line.prompts if unfinished else 0
        before = line


def predicted_s(cost: CostModel, sample: StepSample) -> float:
    """The time that the costs give a measured step; its prompts' shares are taken to be equal."""
    prompts = sample.prompts
    chunks = [Chunk(sample.prompt_tokens // prompts, 0 if index else sample.past_tokens) for index in range(prompts)]
    return cost.step_s(chunks, sample.decodes, sample.kv_read_tokens, prompts)


def slowness(cost: CostModel, samples: Iterable[StepSample]) -> float:
    """Measured over predicted time, of all steps together. Raises ValueError without steps."""
    measured = predicted = 0.0
    for sample in samples:
        measured += sample.seconds
        predicted += predicted_s(cost, sample)
    if not predicted:
        raise ValueError("no measured steps")
    return measured / predicted
