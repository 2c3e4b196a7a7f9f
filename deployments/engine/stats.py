"""What vLLM says of itself after each step: how much runs and waits, how full the KV cache is, which sequences finished.

`EngineStats` is vLLM's hook that paints the replica's `EngineLoad`. vLLM's own Prometheus logger runs beside it: the gauges of `/metrics` are vLLM's,
and lag by nothing that we need, since the feed is painted from here.
"""

import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from deployments.engine.exchanges import Exchanges, SequenceStats
from deployments.engine.load import EngineLoad
from deployments.engine.step_log import StepLog


class EngineStats(StatLoggerBase):  # type: ignore[misc]
    """vLLM calls `record` once for each message of the engine, in the replica's event loop: it must be quick."""

    def __init__(self, load: EngineLoad, exchanges: Exchanges, steps: StepLog | None = None) -> None:
        self._load = load
        self._exchanges = exchanges
        self._steps = steps

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        load = self._load
        load.last_step = time.monotonic()
        if scheduler_stats is not None:
            load.running = scheduler_stats.num_running_reqs
            load.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            load.kv_usage = scheduler_stats.kv_cache_usage
            if self._steps is not None and scheduler_stats.iteration_details is not None:
                self._steps.write(scheduler_stats.iteration_details, load.running, load.waiting, load.kv_usage, load.last_step)
        if iteration_stats is not None:
            for finished in iteration_stats.finished_requests:
                self._exchanges.record(finished.request_id, _sequence(finished))
        load.changed()

    def log_engine_initialized(self) -> None:
        """Nothing to do: the load is known from the first step on."""


def _sequence(finished: Any) -> SequenceStats:
    # A sequence that ended before its first token has zeros for time stamps, and so negative durations.
    return SequenceStats(
        prompt_tokens=finished.num_prompt_tokens,
        cached_tokens=finished.num_cached_tokens,
        output_tokens=finished.num_generation_tokens,
        preemptions=finished.num_preemptions,
        queued_s=max(0.0, finished.queued_time),
        prefill_s=max(0.0, finished.prefill_time),
        decode_s=max(0.0, finished.decode_time),
    )
