"""The engine replica as a Ray Serve deployment.

Serve decides how many replicas run and replaces the unhealthy; nothing of a request passes through it. The class
gets its address and secret from Ray, runs a `ReplicaServer`, and has the directory informed (`keep_registered`).
`engine_deployment` is called by whoever deploys a spec.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import traceback
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.config import AutoscalingConfig

from cluster.node_labels import zone_of
from cluster.spec import Artifacts, Model, Pool, Starts, Tracing
from cluster.versions import content_version
from deployments.cell.departure_tracker import machine
from deployments.cell.directory import REGISTER_EVERY_S, cell_host, find_directory
from deployments.cell.node_check import check_own_node
from deployments.engine.environment import (
    forget_foreign_variables,
    keep_compiled,
    keep_serve_log,
    own_temp_dir,
    replica_environment,
)
from deployments.engine.placement import place
from deployments.engine.start_clock import StartClock, StartReporter, process_age_s
from deployments.protocol import DrainReason
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport

if TYPE_CHECKING:
    from cluster.artifacts import Held
    from deployments.engine.backend import StartBackend
    from deployments.engine.replica import Identity, ReplicaServer

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0
"""How long a call to the directory is waited for; the next one is made anyway."""


async def keep_registered(replica: "ReplicaServer", directory: Any) -> None:
    """Registers `replica` again and again while it is ready, then takes it off the list."""
    while not replica.left_ready.is_set():
        directory = await _tell(directory, "register", replica.facts, replica.epoch, machine())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_EVERY_S):
                await replica.left_ready.wait()
    await _tell(directory, "deregister", replica.facts.replica_id)


async def _tell(directory: Any, method: str, *arguments: object) -> Any:
    """Calls the directory, and returns the handle to call next time: that of its successor when it is gone for good."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            await getattr(directory, method).remote(*arguments)
    except RayActorError as error:
        logger.warning("the directory is gone (%s); looking for another", error)
        with contextlib.suppress(ValueError):
            return await asyncio.to_thread(find_directory)
    except (TimeoutError, RayError) as error:
        logger.warning("the directory did not answer to %s: %r", method, error)
    return directory


SURGE_PERCENT = 20
"""As many at a time as Serve replaces."""
_SHUTDOWN_MARGIN_S = 30.0


def shutdown_s(total_timeout_s: float) -> float:
    """What a replica may take to stop: its longest request, and the end of its server and its engine."""
    return total_timeout_s + _SHUTDOWN_MARGIN_S


_GOODBYE_S = 1.0
"""How long a replica whose engine is gone waits for the directory to take it off the list (seconds)."""


class EngineReplica:
    """One replica of `model`: serves HTTP by itself; Serve sees its constructor, its health and its end."""

    _replica: "ReplicaServer | None" = None
    _temp_dir: str | None = None
    _leases: tuple["Held", ...] = ()
    """On the model's files: kept until this process ends."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, model: Model, artifacts: Artifacts, starts: Starts, many_nodes: bool, spot_notice_url: str | None
    ) -> None:
        clock = StartClock(process_age_s())
        forget_foreign_variables()
        keep_serve_log()
        keep_compiled(starts.compile_cache)
        from deployments.engine.replica import Identity

        directory = find_directory()
        context = serve.get_replica_context().replica_id
        identity = Identity(
            f"{context.deployment_id.name}#{context.unique_id}",
            ray.get_runtime_context().get_node_id(),
            cell_host(many_nodes),
            zone_of(ray.get_runtime_context().get_node_labels()),
        )
        try:
            async with _reported_start(clock, identity, model.group_key, directory):
                if many_nodes:
                    await check_own_node(directory, identity.host)
                replica = await self._start(model, artifacts, identity, clock, directory)
        except BaseException:
            _remove(self._temp_dir)  # after the report, which reads there in which phase the engine was
            raise
        temp_dir, self._replica = self._temp_dir, replica
        self._registering = asyncio.create_task(keep_registered(replica, directory))
        self._failing = asyncio.create_task(_end_with_the_engine(replica, self._registering, temp_dir))
        if spot_notice_url is not None:
            self._watching = asyncio.create_task(_drain_on_notice(replica, spot_notice_url))

    async def _start(
        self, model: Model, artifacts: Artifacts, identity: "Identity", clock: StartClock, directory: Any
    ) -> "ReplicaServer":
        """Fetches the files and starts the engine."""
        from deployments.engine.model_files import fetch_files
        from deployments.engine.replica import ReplicaServer

        local = await asyncio.to_thread(fetch_files, model, artifacts, clock=clock)
        model, self._leases = local.model, local.leases
        self._temp_dir = own_temp_dir() if model.engine == "vllm" else None
        version = await asyncio.to_thread(lambda: local.version)
        replica = ReplicaServer(model, identity, await directory.secret.remote(), _backend_of(model), clock, version)
        await replica.start()
        return replica

    async def check_health(self) -> None:
        """Serve's health check. Raises RuntimeError when the engine is dead or stuck, or the replica has drained; Serve
        then replaces it."""
        if self._replica is not None:
            self._replica.check()

    async def __del__(self) -> None:
        """Serve awaits this once, before it ends the process: refuses new work, lets running requests end, ends the
        engine."""
        if self._replica is not None:
            await self._replica.stop()
            _remove(self._temp_dir)


_STORY_LINES = 400
"""Of what its processes wrote, so many last lines are kept of a start that failed."""


@contextlib.asynccontextmanager
async def _reported_start(clock: StartClock, identity: "Identity", model: str, directory: Any) -> AsyncIterator[None]:
    """The block starts the replica: the directory hears in which phase it is, and how it ended. After a start that
    failed, the next one waits first, since Serve tries again at once."""

    def report() -> StartReport:
        return clock.report(identity.replica_id, model, identity.node_id)

    def tell(one: StartReport) -> None:
        with contextlib.suppress(Exception):  # any failure of Ray: the directory may be away
            directory.starting.remote(one)

    with StartReporter(report, tell):
        with contextlib.suppress(TimeoutError, RayError):
            async with asyncio.timeout(_ANSWER_S):
                wait_s = await directory.start_wait_s.remote(model)
            if wait_s > 0:
                clock.enter(Phase.NODE)
                await asyncio.sleep(wait_s)
                clock.enter(Phase.ENVIRONMENT)
        try:
            yield
        except BaseException as error:
            await _tell(directory, "start_failed", report(), in_one_line(error), _story())
            raise
    await _tell(directory, "started", report())


def in_one_line(error: BaseException) -> str:
    """What an error says, with its type."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _story() -> str:
    """The error with its traceback, and the last words of this process and those below it."""
    from deployments.engine.watchdog import own_words

    return traceback.format_exc() + "\n" + "\n".join(own_words().splitlines()[-_STORY_LINES:])


async def _end_with_the_engine(replica: "ReplicaServer", registering: asyncio.Task[None], temp_dir: str | None) -> None:
    """Ends this process when the engine is gone. Serve replaces a dead actor at its next health check, and a failing
    one only after three."""
    failed = await replica.wait_failed()
    await asyncio.wait([registering], timeout=_GOODBYE_S)
    logger.error("this process ends, since its engine did: %s", failed.detail)
    _remove(temp_dir)
    logging.shutdown()
    os._exit(1)


def _remove(temp_dir: str | None) -> None:
    if temp_dir is not None:
        shutil.rmtree(temp_dir, ignore_errors=True)


async def _drain_on_notice(replica: "ReplicaServer", url: str) -> None:
    from deployments.engine.spot_notice import spot_notice  # others need no HTTP client

    logger.warning("spot notice: %s", await spot_notice(url))
    replica.drain(DrainReason.SPOT_NOTICE)


def _backend_of(model: Model) -> "StartBackend":
    """Imported here and not above: whoever only deploys needs no vLLM, and neither does a replica that simulates."""
    if model.engine == "simulated":
        from deployments.engine.simulated.backend import start_simulated

        return start_simulated
    from deployments.engine.vllm_patches import stop_at_first_errors

    stop_at_first_errors()  # before vLLM's request classes are made
    from deployments.engine.vllm_app import start_vllm

    return start_vllm


def deployment_name(group_key: str) -> str:
    """The Serve deployment of a model or one of its groups, by `Model.group_key`."""
    return "engine-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", group_key)


def engine_deployment(
    model: Model,
    pool: Pool,
    total_timeout_s: float,
    artifacts: Artifacts,
    starts: Starts,
    scaling: AutoscalingConfig | None = None,
    many_nodes: bool = False,
    tracing: Tracing | None = None,
) -> serve.Application:
    """The Serve application of `model` (a view, if it has groups) on `pool`, whose replicas are counted by
    `scaling` (`app.py`); without it, always the spec's count.

    A stopping replica waits for its requests, none of which takes longer than `total_timeout_s`. Replicas listen on
    loopback. With `many_nodes` gateways run on other nodes; replicas then listen on their node's address. Every path
    asks for the cluster's secret.
    """
    options: dict[str, Any] = {
        "name": deployment_name(model.group_key),
        **({"num_replicas": model.replicas.count} if scaling is None else {"autoscaling_config": scaling}),
        "health_check_period_s": model.health.period_s,
        "health_check_timeout_s": model.health.timeout_s,
        "graceful_shutdown_timeout_s": shutdown_s(total_timeout_s),
        "graceful_shutdown_wait_loop_s": 0.1,
        # What failed may go well later (a store that was away): each attempt waits longer than the one before, up to
        # a minute (`starts/tracker.py`). Serve would give a model up for good.
        "max_constructor_retry_count": 1_000_000,
        # New replicas of a changed model start beside the old ones, which stop when these are ready.
        "max_surge_percent": SURGE_PERCENT,
        **place(model, pool).serve_options(replica_environment(model, pool, tracing)),
    }
    notice = pool.spot_notice_url if pool.spot else None
    given = (model.model_dump_json(), artifacts.model_dump_json(), starts.model_dump_json())
    version = content_version(*given, str(many_nodes), str(notice), str(tracing))
    # Serve would give each deployment a version of its own, and replace the replicas even where nothing has changed.
    deployment = serve.deployment(**options)(EngineReplica).options(version=version, _internal=True)
    return deployment.bind(model, artifacts, starts, many_nodes, notice)
