"""One replica's life: its engine, its exchanges, its feed and its HTTP server, from the start to the end of the drain.

Not here: Ray (`deployment.py` gives it its secret and address, and tells the directory and Serve of it) and the
engine's insides (`backend.py`).
"""

import asyncio
import dataclasses
import logging
import os
import time
from dataclasses import dataclass

from cluster.spec import Model
from cluster.urls import http_url
from deployments.engine import telemetry
from deployments.engine.backend import Backend, EngineLoad, StartBackend
from deployments.engine.exchanges import Exchanges
from deployments.engine.feed import Feed
from deployments.engine.gpus import Gpus
from deployments.engine.guard import Guard
from deployments.engine.start_clock import StartClock
from deployments.engine.steps import step_times_of
from deployments.engine.watchdog import EngineVerdict, Watchdog
from deployments.http.server import HttpServer
from deployments.protocol import DrainReason, EngineFault, Failed, Finished, Hello, Load, ReplicaFacts, ReplicaState

logger = logging.getLogger(__name__)

_PROBE_EVERY_S = 2.0
"""An idle engine is asked for a sign of life this often, so that a stopped one is found before a request is."""
_KEEP_ALIVE_S = 600.0
"""Longer than any gateway keeps an idle connection, so that it is never the replica that closes one under a request."""
_CLOSE_S = 2.0
"""How long the HTTP server may take to write the last bytes of ended exchanges (seconds)."""
_SHOWN_S = 0.05
"""Phases of a start that took less are not in the log's line."""
_TELL_S = 2.0
"""How long the exchanges of a dead engine may take to end with an error (seconds); they need milliseconds."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a replica is and where it listens: given by whoever runs it. `zone`: its node's, where that has a label."""

    replica_id: str
    node_id: str
    host: str
    zone: str = ""


class ReplicaServer:
    """One replica of the engine that `start_backend` starts. `facts` are known after `start`.

    `state` is at most the backend's `watch_every_s` old; the death of the engine's process is noticed at once.
    """

    facts: ReplicaFacts
    _backend: Backend
    _server: HttpServer

    def __init__(
        self,
        model: Model,
        identity: Identity,
        secret: str,
        start_backend: StartBackend,
        clock: StartClock | None = None,
        version: str = "",
    ) -> None:
        self.clock = clock or StartClock()
        self.verdict = EngineVerdict.HEALTHY
        self.failed: Failed | None = None
        """Why it ends by itself, if it does."""
        self.drains_for: DrainReason | None = None
        """Why it drains, if it does: the first reason that there was."""
        self.left_ready = asyncio.Event()
        self._model = model
        self._version = version
        self._identity = identity
        self._secret = secret
        self._start_backend = start_backend
        self._feed = Feed(lambda: Hello(self.facts, self.state), self._load_message)
        self._exchanges = Exchanges(self._exchange_ended, self._feed.tell)
        self._load = EngineLoad(changed=self._engine_stepped, times=step_times_of(model))
        self._watchdog = Watchdog(model.health.stall_s, model.health.startup_s)
        self._guard: Guard | None = None
        self._failing = asyncio.Event()
        self._drained = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts the engine and the HTTP server; returns when requests are served."""
        self._backend = await self._start_backend(self._model, self._load, self._exchanges, self.clock)
        self._guard = guard = Guard(
            self._backend.asgi, self._secret, self._exchanges, self._feed, lambda: self.state, self.drain
        )
        self._server = HttpServer(guard, self._identity.host, 0, keep_alive_s=_KEEP_ALIVE_S)
        self.facts = _facts(self._model, self._version, self._identity, self._server.port, self._backend)
        await self._server.start()
        self._tasks = [
            asyncio.create_task(task) for task in (self._watch(), self._feed.run(), telemetry.measure_loop_lag())
        ]
        gpus = Gpus() if self._model.engine == "vllm" else None
        if gpus is not None:
            self._tasks.append(asyncio.create_task(gpus.run()))
        telemetry.EXPOSITION.sources += [self._load.times.samples, *([gpus.samples] if gpus else [])]
        telemetry.show_state(self.state)
        telemetry.EXCHANGES.set_function(lambda: len(self._exchanges))
        _, _, seconds = self.clock.measured()
        telemetry.show_start(self._model.name, seconds)
        parts = ", ".join(f"{phase} {spent:.1f}" for phase, spent in seconds.items() if spent >= _SHOWN_S)
        logger.info(
            "serving %s at %s after %.1f s (%s)", self._model.name, self.facts.url, sum(seconds.values()), parts
        )

    @property
    def epoch(self) -> int:
        return 0 if self._guard is None else self._guard.epoch

    @property
    def state(self) -> ReplicaState:
        """Where the replica stands: one whose engine is gone is not merely draining."""
        if self.verdict is not EngineVerdict.HEALTHY or self._backend.dead:
            return ReplicaState.UNHEALTHY
        return ReplicaState.READY if self.drains_for is None else ReplicaState.DRAINING

    def drain(self, reason: DrainReason = DrainReason.STOP) -> None:
        """Refuses new work from now on; what runs goes on. For good: a replica that drains does not come back.

        Then it ends its server and its engine by itself, unless Serve is about to (`STOP`).
        """
        if self.drains_for is None:
            self.drains_for = reason
            telemetry.DRAINS.labels(reason.value).inc()
            logger.info("%s drains (%s)", self._identity.replica_id, reason)
        self._state_changed()
        if reason is not DrainReason.STOP and self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())

    def check(self) -> None:
        """Raises RuntimeError when Serve should put another one in its place: the engine is dead or stuck (the process
        then ends by itself), or the replica has drained.

        Not before its last exchange has ended, since Serve kills what fails its health check (`cli/private_ray.py`, for
        the sake of hung ones).
        """
        if self.state is ReplicaState.UNHEALTHY:
            raise RuntimeError(f"the engine of {self.facts.replica_id} is {self.verdict}")
        if self._drained.is_set():
            raise RuntimeError(
                f"{self.facts.replica_id} has drained ({self.drains_for}): no fault, another one is to take its place"
            )

    async def wait_failed(self) -> Failed:
        """Returns when the engine has died or was given up and all clients have been informed: only the end of this
        process is left to do."""
        await self._failing.wait()
        assert self.failed is not None
        assert self._stopping is not None
        await asyncio.shield(self._stopping)
        return self.failed

    async def stop(self) -> None:
        """Drains, waits until the last exchange has ended (no longer than Serve lets it), and ends the server and the
        engine. Again is no error."""
        self.drain()
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        await self._drained.wait()
        self._feed.close()
        await self._server.stop(_CLOSE_S)
        for task in (*self._tasks, *([self._probe] if self._probe else [])):
            task.cancel()
        await self._backend.stop()

    async def _watch(self) -> None:
        while self.verdict is EngineVerdict.HEALTHY:
            await self._backend.wait_dead(self._backend.watch_every_s)
            now = time.monotonic()
            owed = self._backend.unfinished or self._probe_if_idle(now)
            compiling = self._watchdog.is_suspicious and self._backend.compiling()
            self.verdict = self._watchdog.check(now, owed, self._load.last_step, self._backend.dead, compiling)
        self._fail()

    def _fail(self) -> None:
        fault = EngineFault.STALLED if self.verdict is EngineVerdict.STALLED else EngineFault.DEAD
        stalled = f"the engine took no step for {self._model.health.stall_s:g} s"
        self.failed = Failed(fault, stalled if fault is EngineFault.STALLED else self._backend.last_words)
        logger.error("%s ends, since its engine is %s: %s", self.facts.replica_id, fault, self.failed.detail)
        # A stalled core holds its requests for ever; when it is killed, they end with an error.
        self._backend.kill()
        self._feed.tell(self.failed)
        asyncio.get_running_loop().call_later(_TELL_S, self._drained.set)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        self._failing.set()
        self._state_changed()

    def _probe_if_idle(self, now: float) -> int:
        """The number of unanswered probes: 1 or 0. Sends one when nothing has been heard from the engine for a
        while."""
        if self._probe is not None and not self._probe.done():
            return 1
        if now - self._load.last_step < _PROBE_EVERY_S:
            return 0
        self._probe = asyncio.create_task(self._ask())
        return 1

    async def _ask(self) -> None:
        await self._backend.probe()
        self._load.last_step = time.monotonic()

    def _state_changed(self) -> None:
        telemetry.show_state(self.state)
        self.left_ready.set()
        self._feed.changed()
        self._check_drained()

    def _engine_stepped(self) -> None:
        self._exchanges.stepped()
        self._feed.changed()

    def _exchange_ended(self, finished: Finished) -> None:
        telemetry.count(finished)
        self._feed.tell(finished)
        self._feed.changed()
        self._check_drained()

    def _check_drained(self) -> None:
        if self._exchanges.idle and (self.state is ReplicaState.UNHEALTHY or self.drains_for is not None):
            self._drained.set()

    def _load_message(self) -> Load:
        load = self._load
        return Load(
            self.state, load.running, load.waiting, len(self._exchanges), round(load.kv_usage, 4), self.drains_for
        )


def _facts(model: Model, version: str, identity: Identity, port: int, backend: Backend) -> ReplicaFacts:
    return ReplicaFacts(
        replica_id=identity.replica_id,
        model=model.name,
        url=http_url(identity.host, port),
        pid=os.getpid(),
        node_id=identity.node_id,
        task=model.task,
        group=model.group,
        zone=identity.zone,
        version=version,
        **dataclasses.asdict(backend.capacity),
    )
