"""A simulated engine as a replica's backend: the engine's model, its driver, and the app in front of it, all in the
replica's own process."""

import asyncio
import contextlib
import logging
import os
import tempfile
from pathlib import Path

from prometheus_client import Gauge, Histogram

from cluster.spec import Model
from deployments.engine.backend import EngineCapacity, EngineLoad
from deployments.engine.exchanges import Exchanges
from deployments.engine.simulated.app import SimulatedApp
from deployments.engine.simulated.ask import CHUNK_TOKENS
from deployments.engine.simulated.costs import read_costs
from deployments.engine.simulated.driver import Driver, SimulatedSteps
from deployments.engine.start_clock import StartClock
from deployments.engine.step_log import StepLog
from deployments.engine.telemetry import LOGS
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.fits import simulated_limits
from deployments.garbage import calm_garbage_collector
from deployments.starts.phases import Phase
from deployments.telemetry import table

logger = logging.getLogger(__name__)

LATE = Histogram(*table.SIMULATED_LATE.about, buckets=table.SIMULATED_LATE.bounds)
RUNNING = Gauge("vllm:num_requests_running", "Sequences in execution batches.", ["model_name"])
WAITING = Gauge("vllm:num_requests_waiting", "Sequences waiting in the engine.", ["model_name"])
KV_USAGE = Gauge("vllm:kv_cache_usage_perc", "KV cache usage, 1: full.", ["model_name"])
"""vLLM's names, so that what reads its gauges reads these; the model's name tells them apart."""


class SimulatedBackend:
    """A running simulated engine."""

    watch_every_s = 1.0

    def __init__(
        self, driver: Driver, asgi: SimulatedApp, capacity: EngineCapacity, log: StepLog | None = None
    ) -> None:
        self.asgi = asgi
        self.capacity = capacity
        self._driver = driver
        self._log = log
        self._running = asyncio.create_task(driver.run(), name="simulated-engine")
        self._running.add_done_callback(self._ended)

    @property
    def dead(self) -> bool:
        """Whether the driver has ended, which it does only by an error."""
        return self._running.done()

    @property
    def unfinished(self) -> int:
        return len(self._driver)

    @property
    def last_words(self) -> str:
        if not self._running.done() or self._running.cancelled():
            return "the simulated engine was ended"
        return f"the simulated engine: {self._running.exception()!r}"

    def compiling(self) -> bool:
        return False

    async def probe(self) -> None:
        """Returns at the event loop's next turn: the engine lives in it."""
        await asyncio.sleep(0)

    async def wait_dead(self, timeout_s: float) -> None:
        await asyncio.wait([self._running], timeout=timeout_s)

    def kill(self) -> None:
        self._running.cancel()

    async def stop(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        if self._log is not None:
            self._log.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the simulated engine has died", exc_info=error)
        self._driver.fail()


async def start_simulated(model: Model, load: EngineLoad, exchanges: Exchanges, clock: StartClock) -> SimulatedBackend:
    """Starts a simulated engine for `model`; returns when it can serve. Raises CostFileError."""
    assert model.simulated is not None
    costs = read_costs(model)
    await _imitate_start(model, model.simulated.start_up_s, clock)
    cost = costs.cost_model()
    limits = simulated_limits(model, costs).with_prefixes(CHUNK_TOKENS)
    engine = EngineModel(limits, cost)
    load.times.kv_tokens = limits.kv_tokens
    log = StepLog(Path(model.step_log) / f"steps-{os.getpid()}.jsonl", LOGS.named("steps")) if model.step_log else None
    steps = None if log is None else SimulatedSteps(log, limits)
    driver = Driver(engine, load, model.settings.stream_interval, model.simulated.speed, LATE.observe, steps=steps)
    RUNNING.labels(model.name).set_function(lambda: load.running)
    WAITING.labels(model.name).set_function(lambda: load.waiting)
    KV_USAGE.labels(model.name).set_function(lambda: load.kv_usage)
    app = SimulatedApp(model, driver, exchanges, lambda others: cost.front(others) + cost.back_s)
    capacity = EngineCapacity(model.settings.max_model_len, limits.sequences, limits.step_tokens, limits.kv_tokens)
    calm_garbage_collector()
    clock.enter(Phase.FIRST_TOKEN)  # a request for one would be a step of the engine, as if a client had asked
    return SimulatedBackend(driver, app, capacity, log)


_FIRST_ON_NODE = (Phase.FETCH, Phase.COMPILE)
"""Later replicas of the model find what these leave on the node."""


async def _imitate_start(model: Model, start_up_s: float, clock: StartClock) -> None:
    """Takes as long as the spec says in each phase that a real engine would take."""
    given = model.start.model_dump() if model.start is not None else {}
    left = Path(tempfile.gettempdir()) / f"started-{model.group_key.replace('/', '+')}"
    is_first = not left.exists()
    for phase in (Phase.FETCH, Phase.LOAD, Phase.COMPILE, Phase.GRAPHS, Phase.WARM_UP):
        takes_s = given.get(phase.value, 0.0) + (start_up_s if phase is Phase.LOAD else 0.0)
        if takes_s > 0 and (is_first or phase not in _FIRST_ON_NODE):
            clock.enter(phase)
            await asyncio.sleep(takes_s)
    with contextlib.suppress(OSError):
        left.touch()
    clock.enter(Phase.WARM_UP)
