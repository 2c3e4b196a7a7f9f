"""One gateway process, without Ray around it: an HTTP server, the lane owners of its models, the feeds of all replicas, and what it tells of itself.

`deployment.py` runs it in a Serve replica, the tests in a loop of their own.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry, ProcessCollector

from cluster.spec import ClusterSpec, Region
from deployments.gateway.endpoints import ENDPOINTS
from deployments.gateway.feeds import Feeds
from deployments.gateway.flow import SWEEP_S, Cause
from deployments.gateway.operators import OperatorPages
from deployments.gateway.pages import OwnPages
from deployments.gateway.routes import build_app
from deployments.gateway.service import Service
from deployments.gateway.status import Status
from deployments.http_server import HttpServer
from deployments.telemetry.journal import Journal
from deployments.telemetry.later import Later
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.loop_lag import LoopLag
from deployments.telemetry.metrics import LaneGauges, RequestMetrics
from deployments.telemetry.recent import Recent

log = logging.getLogger("raylane.gateway")

_CLOSE_S = 2.0
"""How long the HTTP server may take to write the last bytes of ended answers (seconds)."""


class Gateway:
    """Made within a running event loop. Raises OSError when the spec's address cannot be listened on."""

    def __init__(self, spec: ClusterSpec, home: Region, secret: str, run_dir: Path) -> None:
        settings = spec.gateway
        models = tuple(model for model in spec.models if home in spec.regions_of(model))
        registry = _registry()
        self._drain_s = settings.drain_s
        self._session = _engine_session(secret, settings.timeouts.connect_s)
        self._closed = Later(self._tell)
        self.service = Service(spec, models, self._session, self._closed.add)
        self.feeds = Feeds(self.service.owners, self._session, self.service.finished, self._take_over)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{host}:{settings.port}"
        self._status = Status(spec, self.service, self.feeds, self.url, str(run_dir), lambda: len(self.service.closing) + len(self._closed))
        self._metrics = RequestMetrics(registry, [*(endpoint.path for endpoint in ENDPOINTS), "/v1/models"])
        registry.register(LaneGauges(lambda: {name: owner.snapshot() for name, owner in self.service.owners.items()}))
        self._journal = Journal(
            run_dir / "logs" / "access.jsonl" if settings.access_log else None,
            Path(settings.trace_file) if settings.trace_file else None,
        )
        self._recent = Recent()
        self._lag = LoopLag(registry)
        operators = OperatorPages(self.service, self._status, self._recent, registry, secret, self._apply)
        pages = OwnPages(self.service, self._status)
        app = build_app(self.service, [*pages.routes(), *operators.routes()])
        self._server = HttpServer(app, settings.host, settings.port, settings.timeouts.keep_alive_s)
        self._tasks: list[asyncio.Task[None]] = []
        self._directory: Any = None
        self._applied_json: str | None = None
        self._swept_s = time.monotonic()

    async def start(self, directory: Any) -> None:
        """Listens, and follows the replicas that `directory` (an actor's handle) lists."""
        self._directory = directory
        await self._server.start()
        self._tasks = [asyncio.create_task(work) for work in (self.feeds.follow(directory), self._sweep(), self._lag.run(), self._closed.run())]

    async def stop(self) -> None:
        """Not ready from now on; lets running requests end for gateway.drain_s, then ends them; then closes all."""
        self.service.draining = True
        if not await self.service.flows.drained(self._drain_s):
            self.service.flows.abort_all(Cause.SHUTDOWN)
        await self._server.stop(_CLOSE_S)
        self.feeds.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.service.closing.flush()
        self._closed.flush()
        self._journal.close()
        await self._session.close()

    @property
    def sweep_age_s(self) -> float:
        """Seconds since the sweep that enforces time-outs ran last."""
        return time.monotonic() - self._swept_s

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.service.sweep()
            self._swept_s = time.monotonic()

    def _tell(self, ledger: Ledger) -> None:
        self._metrics.observe(ledger)
        self._status.observe(ledger)
        self._journal.write(ledger)
        self._recent.add(ledger)

    async def _apply(self, spec: ClusterSpec) -> None:
        """Puts a changed spec in force in the whole cell: here at once, at other gateways by the directory."""
        spec_json = spec.model_dump_json()
        await self._directory.apply.remote(spec_json)
        self._take_over(spec_json)

    async def _tell_again(self, spec_json: str) -> None:
        try:
            await self._directory.apply.remote(spec_json)
        except Exception as error:  # any failure of Ray; the next listing asks again
            log.warning("the directory was not told the spec: %r", error)

    def _take_over(self, spec_json: str | None) -> None:
        """Follows the directory. One that restarted has lost the spec that was applied, and is told it again."""
        if spec_json is None:
            if self._applied_json is not None:
                self._tasks.append(asyncio.create_task(self._tell_again(self._applied_json)))
        elif spec_json != self._applied_json:
            self._applied_json = spec_json
            self.service.configure(ClusterSpec.model_validate_json(spec_json))


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
