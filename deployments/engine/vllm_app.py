"""vLLM in this process: its engine client, its core in a child process, and its own OpenAI app.

Here is all that depends on how vLLM is put together. Not here: what raylane adds around it (`guard.py`, `feed.py`),
and when to give it up (`watchdog.py`). `deployment.py` starts it.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.exceptions import VLLMValidationError
from vllm.lora.utils import get_adapter_absolute_path
from vllm.usage.usage_lib import UsageContext
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import LoggingStatLogger, StatLoggerBase
from vllm.version import __version__ as vllm_version

from cluster.artifacts import resolve_source
from cluster.spec import Model
from deployments.engine import telemetry
from deployments.engine.args import ArgumentsError, namespace, why_not_served
from deployments.engine.backend import EngineCapacity, EngineLoad
from deployments.engine.compiling import Compilers
from deployments.engine.exchanges import Exchanges, current
from deployments.engine.killers import EngineBuild, RequestTraits, killer_of
from deployments.engine.start_clock import StartClock
from deployments.engine.step_log import EngineFacts, StepLine, StepLog
from deployments.engine.warm_up import first_token, warm_up
from deployments.engine.watchdog import own_words, root_cause
from deployments.protocol import Usage
from deployments.starts.phases import Phase


class EngineStats(StatLoggerBase):  # type: ignore[misc]
    """vLLM calls `record` once for each message of the engine, in the replica's event loop: it must be quick."""

    def __init__(self, load: EngineLoad, exchanges: Exchanges, steps: StepLog | None = None) -> None:
        self._load = load
        self._exchanges = exchanges
        self._steps = steps

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        load = self._load
        load.last_step = time.monotonic()
        if scheduler_stats is not None:
            load.running = scheduler_stats.num_running_reqs
            load.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            load.kv_usage = scheduler_stats.kv_cache_usage
            details, idle = scheduler_stats.iteration_details, not load.running and not load.waiting
            step = None if details is None else _step(details, load)
            load.times.ended(load.last_step, idle, step)
            if self._steps is not None and step is not None:
                self._steps.write(step)
        if iteration_stats is not None:
            for finished in iteration_stats.finished_requests:
                self._exchanges.record(finished.request_id, _sequence(finished))
        load.changed()

    def log_engine_initialized(self) -> None:
        """Nothing to do: the load is known from the first step on."""


def _step(details: Any, load: EngineLoad) -> StepLine:
    """A step, by vLLM's account of it (`SchedulerIterationDetails`) and of what is left."""
    done = (details.num_ctx_requests, details.num_ctx_tokens, details.num_generation_requests)
    return StepLine(round(load.last_step, 6), *done, load.running, load.waiting, round(load.kv_usage, 6))


def _sequence(finished: Any) -> Usage:
    # A sequence that ended before its first token has zeros for time stamps, and so negative durations.
    return Usage(
        prompt_tokens=finished.num_prompt_tokens,
        cached_tokens=finished.num_cached_tokens,
        output_tokens=finished.num_generation_tokens,
        preemptions=finished.num_preemptions,
        queued_s=max(0.0, finished.queued_time),
        prefill_s=max(0.0, finished.prefill_time),
        decode_s=max(0.0, finished.decode_time),
    )


_STOP_S = 5.0
"""How long the engine's processes may take to end when asked, before they are killed (seconds)."""


class BookedLLM(AsyncLLM):  # type: ignore[misc]
    """vLLM's engine client, which records each request on the HTTP exchange that sent it."""

    exchanges: Exchanges
    build: EngineBuild

    async def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """As in vLLM; `n` sequences of a sampling request finish one by one, and each brings its own statistics."""
        self._refuse_killer(params)
        sequences = getattr(params, "n", 1)
        self.exchanges.accept(request_id, sequences)
        exchange = current.get()
        if exchange is not None:  # the lane decides, not the client
            kwargs["priority"] = exchange.priority
        try:
            collector = await super().add_request(request_id, prompt, params, *args, **kwargs)
        except BaseException:
            self.exchanges.retract(request_id, sequences)
            raise
        self.exchanges.expect(sequences, self._states(collector.request_id))
        return collector

    def _refuse_killer(self, params: Any) -> None:
        """Raises VLLMValidationError, which becomes a 400, for what is known to kill this engine."""
        asked = getattr(params, "prompt_logprobs", None)
        killer = killer_of(RequestTraits(asked is not None), self.build)
        if killer is not None:
            raise VLLMValidationError(killer.reported(self.build), parameter=killer.field, value=asked)

    def _states(self, internal_id: str) -> list[Any]:
        """The states of a request's sequences, those that have ended left out; vLLM's output processor says in each
        when its first token came."""
        processor = self.output_processor
        parent = processor.parent_requests.get(internal_id)
        ids = (internal_id,) if parent is None else parent.child_requests
        return [state for one in ids if (state := processor.request_states.get(one)) is not None]


@dataclass(frozen=True, slots=True)
class VllmApp:
    """A running vLLM and the ASGI app that serves it: a `Backend`."""

    engine: BookedLLM
    asgi: Any
    compilers: Compilers
    watch_every_s: float = 0.2

    @property
    def dead(self) -> bool:
        return bool(self.engine.errored)

    @property
    def unfinished(self) -> int:
        """Requests (sequences) that the engine has accepted and not finished."""
        return int(self.engine.get_num_unfinished_requests())

    @property
    def capacity(self) -> EngineCapacity:
        config = self.engine.vllm_config
        scheduler, cache = config.scheduler_config, config.cache_config
        kv_tokens = int(cache.num_gpu_blocks or 0) * int(cache.block_size)
        return EngineCapacity(
            config.model_config.max_model_len, scheduler.max_num_seqs, scheduler.max_num_batched_tokens, kv_tokens
        )

    @property
    def last_words(self) -> str:
        """The signal that ended the core, else the last error in its log."""
        codes = [process.exitcode for process in _processes(self.engine)]
        signals = [signal.Signals(-code).name for code in codes if code is not None and code < 0]
        if signals:
            return f"the engine's core was ended by {signals[0]}"
        return root_cause(own_words()) or "the engine's core ended without a word"

    def compiling(self) -> bool:
        return self.compilers.at_work()

    async def probe(self) -> None:
        """Returns when the core has answered (it reads its messages between two steps), or is known to have ended."""
        with contextlib.suppress(EngineDeadError):
            await self.engine.is_paused()

    async def wait_dead(self, timeout_s: float) -> None:
        """Returns after `timeout_s`, or as soon as the core is known to have ended."""
        if self.engine.output_handler is not None:
            await asyncio.wait([self.engine.output_handler], timeout=timeout_s)
        else:
            await asyncio.sleep(timeout_s)

    def kill(self) -> None:
        """Ends the core at once, even a stopped one; vLLM then fails every request that it held."""
        for process in _processes(self.engine):
            process.kill()

    async def stop(self) -> None:
        """Ends the core and waits until its processes are gone."""
        if self.engine.output_handler is not None:
            # It would report the end that is meant as an error.
            self.engine.output_handler.cancel()
        stop = functools.partial(self.engine.shutdown, timeout=_STOP_S)
        await asyncio.get_running_loop().run_in_executor(None, stop)


async def start_vllm(model: Model, load: EngineLoad, exchanges: Exchanges, clock: StartClock) -> VllmApp:
    """Starts the engine for `model`; returns when it can serve. Raises ArgumentsError for what is not served, and
    RuntimeError with the core's own error where the start fails.

    It blocks the event loop meanwhile, on purpose: the core must be started by a thread that lives as long as the
    process (`fate_share.py`).
    """
    clock.folder = Path(tempfile.gettempdir())
    if (reason := why_not_served(model)) is not None:
        raise ArgumentsError(reason)
    args = namespace(model)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    # It would print a line for each step whose details are asked for.
    logging.getLogger(LoggingStatLogger.__module__).addFilter(lambda record: "Iteration(" not in str(record.msg))
    steps = (
        StepLog(Path(model.step_log) / f"steps-{os.getpid()}.jsonl", telemetry.LOGS.named("steps"))
        if model.step_log
        else None
    )
    try:
        engine = BookedLLM.from_vllm_config(
            config, stat_loggers=[lambda _config, _index: EngineStats(load, exchanges, steps)]
        )
    except RuntimeError as error:  # "see root cause above", which nobody can who reads this one
        cause = root_cause(own_words())
        if cause is None:
            raise
        raise RuntimeError(f"the engine's core did not start: {cause}") from error
    clock.enter(Phase.WARM_UP)
    engine.exchanges = exchanges
    engine.build = EngineBuild(vllm_version, str(config.device_config.device_type), _adapts_output(model))
    await engine.reset_mm_cache()
    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    # vLLM's error handler tells "its" server to end when the engine has died; ours outlives the engine to answer for
    # it.
    app.state.server = SimpleNamespace(should_exit=False)
    await warm_up(app, model)
    clock.enter(Phase.FIRST_TOKEN)
    await first_token(app, model)
    await engine.reset_prefix_cache()
    scheduling, cache = config.scheduler_config, config.cache_config
    blocks, size = int(cache.num_gpu_blocks or 0), int(cache.block_size)
    load.times.kv_tokens = blocks * size
    if steps is not None:
        steps.begin(EngineFacts(scheduling.max_num_seqs, scheduling.max_num_batched_tokens, blocks * size, size))
    freeze_gc_heap()
    compilers = Compilers(Path(tempfile.gettempdir()), lambda: [process.pid for process in _processes(engine)])
    return VllmApp(engine, app, compilers)


def _adapts_output(model: Model) -> bool:
    """Whether an adapter of `model` changes the output layer, by what PEFT wrote into its configuration: names of
    layers, or a pattern of names."""
    for adapter in model.adapters:
        folder = Path(get_adapter_absolute_path(resolve_source(adapter.source)))
        targets = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8")).get("target_modules") or ()
        if any("lm_head" in target for target in ([targets] if isinstance(targets, str) else targets)):
            return True
    return False


def _processes(engine: BookedLLM) -> list[Any]:
    """The core's process, as multiprocessing knows it; several where the engine has several cores."""
    manager = engine.engine_core.resources.engine_manager
    return [] if manager is None else list(manager.processes)
