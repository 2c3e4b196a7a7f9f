"""The gateway as a Ray Serve deployment. Serve keeps it alive and replaces it; its HTTP does not pass through Serve."""

import asyncio
import atexit
import contextlib
import os
from pathlib import Path
from typing import Any

from ray import serve

from cluster.launch import EXTERNAL_FILE, PEERS_FILE
from cluster.node_labels import pool_selector
from cluster.secrets import read_shared_secret
from cluster.spec import ClusterSpec, Region
from cluster.versions import content_version
from deployments.cell.directory import cell_host, find_directory
from deployments.cell.node_check import check_own_node
from deployments.garbage import calm_garbage_collector
from deployments.gateway.flow import SWEEP_S, EndCause
from deployments.gateway.gateway import Gateway

_GOODBYE_S = 1.0
"""How long the streams may take to end with an error when their process ends (seconds)."""
_SWEEP_STOPPED_S = 30 * SWEEP_S + 5


class GatewayReplica:
    """One gateway process."""

    _gateway: Gateway | None = None
    _node_secrets: Path | None = None
    """The node's folder of secrets, in a deployed cell."""
    _started: asyncio.Task[None] | None = None

    def __init__(self, spec_json: str, region: str, run_dir: str, many_nodes: bool) -> None:
        spec = ClusterSpec.model_validate_json(spec_json)
        with contextlib.suppress(OSError):  # the log that cannot be written says so
            Path(run_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._started = asyncio.create_task(self._start(spec, spec.region(region), Path(run_dir), many_nodes))

    async def check_health(self) -> None:
        """Serve's probe: the start went well, and the sweep that enforces time-outs still runs."""
        if self._started is not None:
            await asyncio.shield(self._started)
        if self._gateway is not None and self._gateway.sweep_age_s > _SWEEP_STOPPED_S:
            raise RuntimeError("the gateway's sweep has stopped")

    async def __del__(self) -> None:
        """Serve's shutdown hook: not ready, drain, then close."""
        if self._started is not None:
            self._started.cancel()
        if self._gateway is not None:
            await self._gateway.stop()

    async def _start(self, spec: ClusterSpec, home: Region, run_dir: Path, many_nodes: bool) -> None:
        directory = find_directory()
        if many_nodes:
            await check_own_node(directory, cell_host(many_nodes))
        secret = await directory.secret.remote()
        where = spec, home, self._node_secrets
        shared = [await asyncio.to_thread(read_shared_secret, file, *where) for file in (PEERS_FILE, EXTERNAL_FILE)]
        gateway = Gateway(spec, home, secret, run_dir, cell_host(many_nodes), *shared)
        await gateway.start(directory)
        calm_garbage_collector()
        self._gateway = gateway
        loop = asyncio.get_running_loop()
        atexit.register(_end_streams, gateway, loop)
        _end_streams_with(os.getppid(), gateway, loop)


def _end_streams(gateway: Gateway, loop: asyncio.AbstractEventLoop) -> None:
    """Ends each stream with an error event, from the main thread of a process that ends. At SIGTERM Ray ends its
    workers without Serve's shutdown hook, and the streams would break off without a word."""

    async def end() -> None:
        _abort_streams(gateway)
        await gateway.service.flows.drained(_GOODBYE_S)

    if loop.is_running():
        with contextlib.suppress(Exception):  # whatever it is, the process ends
            asyncio.run_coroutine_threadsafe(end(), loop).result(2 * _GOODBYE_S)


def _abort_streams(gateway: Gateway) -> None:
    gateway.service.leaving = gateway.service.draining = True
    gateway.service.flows.abort_all(EndCause.SHUTDOWN)


def _end_streams_with(parent: int, gateway: Gateway, loop: asyncio.AbstractEventLoop) -> None:
    """Ends the streams when a process dies: the one that started this one, Ray's raylet. Its workers look after it once
    a second, and end without a word when it is gone."""
    with contextlib.suppress(OSError):  # a kernel that cannot watch processes
        watched = os.pidfd_open(parent)

        def ended() -> None:
            loop.remove_reader(watched)
            os.close(watched)
            _abort_streams(gateway)

        loop.add_reader(watched, ended)


GATEWAY_APP = "gateway"
"""The name of the gateways' application, and of its one deployment."""


def gateway_options(spec: ClusterSpec, region: Region, many_nodes: bool) -> dict[str, Any]:
    """How Serve runs the gateways. Their CPU is not booked with Ray.

    With `many_nodes` no two share a node, and each listens for the cell on its node's address; otherwise they share the
    only node's port.
    """
    selector = pool_selector(pool.name for pool in spec.gateway_pools(region))
    return {
        "name": GATEWAY_APP,
        "num_replicas": spec.gateway.replicas,
        "ray_actor_options": {"num_cpus": 0, "label_selector": selector},
        **({"max_replicas_per_node": 1} if many_nodes else {}),
        "health_check_period_s": 5,
        "health_check_timeout_s": 30,
        "graceful_shutdown_timeout_s": spec.gateway.stop_s,
        "graceful_shutdown_wait_loop_s": 0.1,
        "max_ongoing_requests": 100,
    }


def gateway_deployment(spec: ClusterSpec, region: Region, run_dir: Path, many_nodes: bool = False) -> Any:
    """The Serve application of the gateways."""
    deployment = serve.deployment(GatewayReplica).options(**gateway_options(spec, region, many_nodes))
    spec_json = spec.model_dump_json()
    version = content_version(spec_json, region.name, str(run_dir))
    # Serve would give each deployment a version of its own, and replace the gateways even where nothing has changed.
    return deployment.options(version=version, _internal=True).bind(spec_json, region.name, str(run_dir), many_nodes)
