"""A line of JSON for each step of an engine: what it computed, and when it was over. Opt-in (`step_log` of a model);
`raylane calibrate` reads it (`planning/costs/steps.py`). The first line tells of the engine."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from deployments.telemetry.line_log import LineLog, LogHealth


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The log's first line: the engine's limits, in vLLM's names, and the tokens that its KV cache and one block of it
    hold."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step: the sequences whose prompts it prefilled, and how many tokens of these; the sequences of which it decoded
    a token; and what ran, waited and was in the KV cache after it (a share). `t_s`: the replica's monotonic clock when
    its outputs arrived, so that the difference of two lines is a step's time."""

    t_s: float
    prompts: int
    prompt_tokens: int
    decodes: int
    running: int
    waiting: int
    kv_usage: float


class StepLog:
    """Writes one replica's steps to a file."""

    def __init__(self, path: Path, health: LogHealth) -> None:
        self._lines = LineLog(path, health)
        self._first: str | None = None
        """The line about the engine, until it is written."""
        self._begun = False

    def begin(self, facts: EngineFacts) -> None:
        """The engine is up and warm. Steps before are not noted."""
        self._begun = True
        self._first = msgspec.json.encode(facts).decode()
        self._write_first()

    def write(self, step: StepLine) -> None:
        if self._begun:
            self._write_first()
            self._lines.write(msgspec.json.encode(step).decode())

    def _write_first(self) -> None:
        if self._first is not None and self._lines.write(self._first):
            self._first = None

    def close(self) -> None:
        self._lines.close()
