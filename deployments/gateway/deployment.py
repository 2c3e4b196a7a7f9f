"""The gateway as a Ray Serve deployment. Serve keeps it alive and replaces it; its HTTP does not pass through Serve."""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry, ProcessCollector
from ray import serve

from cluster.spec import ClusterSpec, Region
from deployments.directory import find_directory
from deployments.gateway.feeds import Feeds
from deployments.gateway.flow import SWEEP_S, Cause
from deployments.gateway.routes import OwnPages, build_app
from deployments.gateway.service import Service
from deployments.gateway.status import Status
from deployments.http_server import HttpServer
from deployments.telemetry.journal import Journal
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.loop_lag import LoopLag
from deployments.telemetry.metrics import LaneGauges, RequestMetrics

STARTUP_S = 60.0


class GatewayReplica:
    """One gateway process: an HTTP server, the lane owners of all models, the feeds of all replicas."""

    def __init__(self, spec_json: str, region: str, run_dir: str) -> None:
        self._spec = ClusterSpec.model_validate_json(spec_json)
        home = self._spec.region(region)
        self._models = tuple(model for model in self._spec.models if home in self._spec.regions_of(model))
        self._run_dir = Path(run_dir)
        self._started = asyncio.create_task(self._start())
        self._tasks: list[asyncio.Task[None]] = []
        self._swept_s = time.monotonic()

    async def check_health(self) -> None:
        """Serve's probe: the start went well, and the sweep that enforces time-outs still runs."""
        await asyncio.shield(self._started)
        if time.monotonic() - self._swept_s > 30 * SWEEP_S + 5:
            raise RuntimeError("the gateway's sweep has stopped")

    async def port(self) -> int:
        """Where it listens, once it does."""
        await asyncio.shield(self._started)
        return self._server.port

    async def __del__(self) -> None:
        """Serve's shutdown hook: not ready, drain, then close."""
        self._service.draining = True
        if not await self._service.flows.drained(self._spec.gateway.drain_s):
            self._service.flows.abort_all(Cause.SHUTDOWN)
        await self._server.stop(drain_s=2)
        self._feeds.close()
        for task in self._tasks:
            task.cancel()
        await self._session.close()

    async def _start(self) -> None:
        directory = find_directory()
        secret: str = await directory.secret.remote()
        settings = self._spec.gateway
        registry = _registry()
        self._session = _engine_session(secret, settings.timeouts.connect_s)
        self._service = Service(self._spec, self._models, self._session, self._on_closed)
        self._feeds = Feeds(self._service.owners, self._session, self._service.finished)
        url = f"http://{settings.host}:{settings.port}"
        self._status = Status(self._spec, self._service, self._feeds, url, str(self._run_dir))
        self._metrics = RequestMetrics(registry)
        registry.register(LaneGauges(lambda: {name: owner.snapshot() for name, owner in self._service.owners.items()}))
        self._journal = Journal(
            self._run_dir / "logs" / "access.jsonl" if settings.access_log else None,
            Path(settings.trace_file) if settings.trace_file else None,
        )
        pages = OwnPages(self._service, self._status, registry, secret)
        app = build_app(pages, self._service)
        self._server = HttpServer(app, settings.host, settings.port, settings.timeouts.keep_alive_s)
        await self._server.start()
        self._tasks = [asyncio.create_task(work) for work in (self._feeds.follow(directory), self._sweep(), LoopLag(registry).run())]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._service.sweep()
            self._swept_s = time.monotonic()

    def _on_closed(self, ledger: Ledger) -> None:
        self._metrics.observe(ledger)
        self._status.observe(ledger)
        self._journal.write(ledger)


def gateway_deployment(spec: ClusterSpec, region: Region, run_dir: Path) -> Any:
    """The Serve application of the gateway. Its CPU is not booked with Ray: it shares the head's cores with Ray itself."""
    deployment = serve.deployment(GatewayReplica).options(
        name="gateway",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=spec.gateway.drain_s + 10,
        graceful_shutdown_wait_loop_s=0.1,
        max_ongoing_requests=100,
    )
    return deployment.bind(spec.model_dump_json(), region.name, str(run_dir))


def _engine_session(secret: str, connect_s: float) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {secret}"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30, ttl_dns_cache=60),
        auto_decompress=False,
        skip_auto_headers=("user-agent", "accept", "accept-encoding"),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for collector in (PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry
