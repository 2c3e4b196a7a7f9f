"""A line for each step of an engine: what it computed, and when it was over. Opt-in (`step_log` of a model); `raylane
calibrate` reads it.

The first line tells of the engine: `max_num_seqs`, `max_num_batched_tokens`, `kv_tokens`, `block_tokens`. The others:

    t_s             the replica's monotonic clock when the step's outputs arrived, so that the difference of two lines
                    is a step's time
    prompts, prompt_tokens     sequences whose prompts it prefilled, and how many tokens of these
    decodes         sequences of which it decoded a token
    running, waiting, kv_usage     after the step
"""

import json
from pathlib import Path
from typing import Protocol

from deployments.telemetry.line_log import LineLog, LogHealth


class IterationDetails(Protocol):
    """What vLLM tells of a step (`SchedulerIterationDetails`)."""

    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int


class StepLog:
    """Writes one replica's steps to a file."""

    def __init__(self, path: Path, health: LogHealth) -> None:
        self._lines = LineLog(path, health)
        self._first: str | None = None
        """The line about the engine, until it is written."""
        self._begun = False

    def begin(self, max_num_seqs: int, max_num_batched_tokens: int, kv_tokens: int, block_tokens: int) -> None:
        """The engine is up and warm. Steps before are not noted."""
        self._begun = True
        facts = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "kv_tokens": kv_tokens,
            "block_tokens": block_tokens,
        }
        self._first = json.dumps(facts)
        self._write_first()

    def write(self, details: IterationDetails, running: int, waiting: int, kv_usage: float, now: float) -> None:
        """Notes a step whose outputs arrived at `now`."""
        if not self._begun:
            return
        self._write_first()
        self._lines.write(
            json.dumps(
                {
                    "t_s": round(now, 6),
                    "prompts": details.num_ctx_requests,
                    "prompt_tokens": details.num_ctx_tokens,
                    "decodes": details.num_generation_requests,
                    "running": running,
                    "waiting": waiting,
                    "kv_usage": round(kv_usage, 6),
                }
            )
        )

    def _write_first(self) -> None:
        if self._first is not None and self._lines.write(self._first):
            self._first = None

    def close(self) -> None:
        self._lines.close()
