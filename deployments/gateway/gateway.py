"""One gateway process, without Ray around it: an HTTP server for clients and one for its cell, a dispatcher for each
model, the feeds of all replicas.

`deployment.py` runs it in a Serve replica, the tests in a loop of their own.
"""

import asyncio
import ipaddress
import logging
import time
import uuid
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, CollectorRegistry, ProcessCollector
from starlette.routing import Route

from cluster.spec import ClusterSpec, Region
from cluster.urls import http_url
from deployments.cell.act import Act
from deployments.cell.departure import Lost
from deployments.cell.departure_tracker import Presence, own_presence
from deployments.cell.listing import Announced, Listing
from deployments.cell.membership import Epochs, Member, Membership
from deployments.cell.orders import Orders
from deployments.gateway.cell_pages import LanesPage, ScalingPage
from deployments.gateway.entrance import ClientApp, Operators
from deployments.gateway.exchange import engine_session
from deployments.gateway.external import ExternalTier
from deployments.gateway.feeds import Feeds
from deployments.gateway.flow import SWEEP_S, EndCause
from deployments.gateway.operators.cost_reporter import CostReporter
from deployments.gateway.operators.directory_pages import CostTotals, DirectoryPages
from deployments.gateway.operators.orders import OrderPages
from deployments.gateway.operators.other_gateways import OtherGateways
from deployments.gateway.operators.page import OperatorPage
from deployments.gateway.operators.pages import OperatorPages
from deployments.gateway.operators.samples import sources
from deployments.gateway.operators.shadow_page import ShadowExchange, ShadowPage
from deployments.gateway.operators.status import Status
from deployments.gateway.own_page import build_cell_app
from deployments.gateway.pages import OwnPages
from deployments.gateway.peers.peering import CellPeers
from deployments.gateway.peers.view import CellView
from deployments.gateway.replica_loss import DepartureReporter
from deployments.gateway.service import Service
from deployments.http.server import HttpServer
from deployments.openai.endpoints import ENDPOINTS
from deployments.ownership.owner_tracker import OwnerTracker
from deployments.telemetry import table
from deployments.telemetry.exposition import Exposition, Source
from deployments.telemetry.journal import Later, Recent, journal_of
from deployments.telemetry.line_log import Logs
from deployments.telemetry.metrics import LoopLag, RecentTtfts, RequestMetrics
from deployments.telemetry.slo import ServiceLevels
from deployments.traffic.recorder import TrafficRecorder

if TYPE_CHECKING:
    from deployments.telemetry.spans import RequestSpans

log = logging.getLogger("raylane.gateway")

_CLOSE_S = 2.0
"""How long the HTTP server may take to write the last bytes of ended answers (seconds)."""


class Gateway:
    """Made within a running event loop. Raises OSError when the spec's address cannot be listened on.

    `cell_host` is where it listens for the cell's other processes (gateways, Prometheus), on a port of its own.
    `peers_secret`: that all cells share, where the spec names one; `external_key`: of its external tier.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        home: Region,
        secret: str,
        run_dir: Path,
        cell_host: str = "127.0.0.1",
        peers_secret: str | None = None,
        external_key: str | None = None,
    ) -> None:
        settings = spec.gateway
        models = tuple(model for model in spec.models if home in spec.regions_of(model))
        self.gateway_id = uuid.uuid4().hex[:8]
        self._settings = settings
        self._session = engine_session(secret, settings.timeouts.connect_s)
        self._metrics = RequestMetrics([*(endpoint.path for endpoint in ENDPOINTS), "/v1/models"])
        ttfts = RecentTtfts(model.name for model in models)
        self._logs = Logs()
        self._journal = journal_of(settings, run_dir, self._logs)
        self._traffic = TrafficRecorder(self.gateway_id, home.name, self._logs.named("traffic"))
        self._recent = Recent()
        self._costs = CostReporter(self.gateway_id, home, self._logs.named("cost"))
        self._spans = self._exported_spans(spec, home)
        traced = () if self._spans is None else (self._spans.export,)
        kept = (self._journal.write, self._traffic.add, *traced, self._recent.add, self._costs.add)
        self._levels = ServiceLevels(model.name for model in models)
        self._closed = Later(self._metrics.observe, self._levels.observe, ttfts.observe, *kept)
        self.service = Service(
            spec, home, models, self.gateway_id, self._session, self._closed.add, secret, peers_secret
        )
        if spec.external is not None and external_key is not None:
            self.service.external = ExternalTier(spec.external, external_key, home.name, self._costs.spent)
        self._levels.service = self.service
        self._departure_reporter = DepartureReporter(self.gateway_id, self.service.broken_exchanges)
        ended, finished = self._costs.ended_with(self._departure_reporter.ended), self._costs.finished
        reported = self._reported
        self.feeds = Feeds(self.service.dispatchers, self._session, self.service.account, reported, ended, finished)
        self._costs.service, self._costs.feeds = self.service, self.feeds.by_replica
        everywhere = ipaddress.ip_address(settings.host).is_unspecified
        scheme = "http" if settings.tls is None else "https"
        self.url = http_url(cell_host if everywhere else settings.host, settings.port, scheme)
        self.others = OtherGateways(self.gateway_id, self._session)
        self._announced = Announced()
        parts = (spec, self.service, self.feeds, self.others, self._announced)
        self._status = Status(*parts, self.url, str(run_dir), self._open_ledgers, self._logs, ttfts, self._levels)
        self._cost_totals = CostTotals()
        self._owner_trackers: dict[str, OwnerTracker] = {}
        trackers = self._owner_trackers
        self.cell_peers = CellPeers(spec, home, peers_secret, self.service, self._session, trackers, self.others)
        self._decision_logs = Path(settings.decision_log) if settings.decision_log else None
        self._lag = LoopLag()
        self._operators = Operators(secret, home.endpoint)
        self._server, self._cell_server = self._servers(self._registry(), cell_host)
        self.others.own_url = http_url(cell_host, self._cell_server.port)
        self._tasks: list[asyncio.Task[None]] = []
        self._membership: Membership | None = None
        self._joining: asyncio.Task[None] | None = None
        self._directory: Any = None
        self._applied_json: str | None = None
        self._applied_number = 0
        self._changing_spec = asyncio.Lock()
        self._swept_s = time.monotonic()

    def _exported_spans(self, spec: ClusterSpec, home: Region) -> "RequestSpans | None":
        if spec.tracing is None:
            return None
        try:
            from deployments.telemetry.spans import RequestSpans
        except ModuleNotFoundError as error:
            raise RuntimeError(f"tracing: {error}; needed: the extra `otel` of raylane") from error
        return RequestSpans(spec.tracing.endpoint, self.gateway_id, home.name, self._logs.named("spans"))

    def _registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        for collector in (PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        own = [one.samples for one in (self._metrics, self._levels, self._lag, self._logs, self.cell_peers)]
        own += [] if self.service.external is None else [self.service.external.samples]
        parts = (self.service.dispatchers, self._owner_trackers, self._announced, self.others.everyone)
        read = sources(self._settings, *parts, lambda: self._cost_totals.bill)
        age: Source = lambda: [(table.DIRECTORY_AGE, (), self.feeds.directory_age_s())]  # noqa: E731
        kept: Source = lambda: () if self.service.cache is None else self.service.cache.samples()  # noqa: E731
        registry.register(Exposition(*own, age, kept, *read))
        return registry

    def _servers(self, registry: CollectorRegistry, cell_host: str) -> tuple[HttpServer, HttpServer]:
        """The server for clients, at the spec's address, and the one for the cell's processes.

        Raises OSError when either address cannot be listened on.
        """
        settings, own = self._settings, self._pages(registry)
        keep_alive_s, limits = settings.timeouts.keep_alive_s, self.service.client_limits
        app = ClientApp(self.service, build_cell_app(self.service, [*own, *self.cell_peers.routes()], self._operators))
        tls = None if settings.tls is None else (settings.tls.cert, settings.tls.key)
        options = (keep_alive_s, settings.replicas > 1, limits, tls, self.cell_peers.ca)
        clients = HttpServer(app, settings.host, settings.port, *options)
        for_cell = [LanesPage(self.service.dispatchers).route(), ScalingPage(self.service).route()]
        for_cell += self.cell_peers.cell_routes()
        cell_app = build_cell_app(self.service, [*own, *for_cell], self._operators)
        return clients, HttpServer(cell_app, cell_host, 0, keep_alive_s, limits=limits)

    def _open_ledgers(self) -> int:
        return len(self.service.closing) + len(self._closed)

    def _pages(self, registry: CollectorRegistry) -> list[Route]:
        """The gateway's own pages, at both its addresses."""
        operators = OperatorPages(self.service, self._status, self._recent, self.others, registry, self._apply)
        orders = OrderPages(self.service, self.feeds.by_replica, self._announced, self._session, self._order)
        shadow = ShadowPage(self.service, self._announced, self._exchange).route()
        kept = DirectoryPages(self.service, lambda: self._directory)
        own = OwnPages(self.service, self._status).routes()
        regions = self.cell_peers.show(CellView(self._status, operators.find, kept))
        own += OperatorPage(self.service, self._operators, self.others).routes()
        return [*own, *operators.routes(), *orders.routes(), *kept.routes(), shadow, regions]

    async def start(self, directory: Any) -> None:
        """Listens, and follows what `directory` (an actor's handle) says of replicas, gateways and owners."""
        self._directory = self._departure_reporter.directory = directory
        if self.service.external is not None:
            self.service.external.directory = directory
        await self._cell_server.start()
        member = Member(self.gateway_id, self.others.own_url, tuple(self.service.dispatchers))
        self._membership = Membership(directory, member, self._epochs, self._presence)
        for name, dispatcher in self.service.dispatchers.items():
            health = self._logs.named(f"decisions of {name}") if self._decision_logs else None
            settings = partial(self.service.settings_of, name)
            parts = (dispatcher, self.gateway_id, self._session, self._membership, settings)
            self._owner_trackers[name] = OwnerTracker(*parts, self._decision_logs, health, self.service.peered)
        await self._server.start()
        self._joining = asyncio.create_task(self._membership.run())
        self._tasks = [
            asyncio.create_task(work)
            for work in (self.feeds.follow(directory), self._sweep(), self._lag.run(), self._closed.run())
        ]
        told = (self._costs, self._cost_totals, self._traffic)
        self._tasks += [asyncio.create_task(one.run(directory)) for one in told]
        self._tasks += [asyncio.create_task(work) for work in self.cell_peers.work()]

    async def stop(self) -> None:
        """Not ready from now on; hands its models over; lets running requests end for gateway.drain_s, then ends them;
        then closes all.

        Where other gateways live, it goes on serving the connections that it has for gateway.lame_duck_s, each for one
        last answer; and what waits in the lanes, which another one owns from now on, gets its place first.
        """
        lane_s = 0.0
        self.service.leaving = True
        if self._joining is not None:
            self._joining.cancel()
        if self._membership is not None:
            await self._membership.leave()
        if self.others.urls:
            if self.others.share_node:
                await self._server.stop_accepting()
            await asyncio.sleep(self._settings.lame_duck_s)
            lane_s = self._settings.timeouts.queue_wait_s
        else:
            self.service.draining = True
        if not await self.service.flows.drained(self._settings.drain_s, lane_s):
            self.service.flows.abort_all(EndCause.SHUTDOWN)
        self.service.draining = True
        await self._server.stop(_CLOSE_S)
        self.feeds.close()
        await self._departure_reporter.close()
        for owner_tracker in self._owner_trackers.values():
            owner_tracker.close()
        await self._cell_server.stop(_CLOSE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cell_peers.close()
        self.service.closing.flush()
        self._closed.flush()
        await self._costs.close()
        if self.service.external is not None:
            await self.service.external.close()
        if self._spans is not None:
            await self._spans.close()
        self._journal.close()
        if self._directory is not None:
            await self._traffic.deliver(self._directory)
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

    async def _apply(self, spec: ClusterSpec) -> None:
        """Puts a changed spec in force in the whole cell: here at once, at other gateways by the directory."""
        spec_json = spec.model_dump_json()
        async with self._changing_spec:
            self._take_over(spec_json, await self._directory.apply.remote(spec_json))

    async def _exchange(self, change: Callable[[ClusterSpec], ShadowExchange]) -> ShadowExchange | None:
        """Changes the spec in force by an operator's act, in the whole cell; None where another gateway has changed it
        meanwhile.

        No `_apply` comes in between: what the change is made of is what it replaces.
        """
        async with self._changing_spec:
            done = change(self.service.spec)
            spec_json = done.spec.model_dump_json()
            answer: tuple[Orders, int] | None = await self._directory.exchange.remote(
                done.act, spec_json, self._applied_json
            )
            if answer is None:
                return None
            self._announced.orders, number = answer
            self._take_over(spec_json, number)
            self._follow_orders()
            return done

    async def _order(self, *acts: Act) -> Orders:
        """Has the directory put acts in force; here they are at once. Raises whatever Ray does."""
        orders: Orders = await self._directory.order.remote(*acts)
        self._announced.orders = orders
        self._follow_orders()
        return orders

    def _follow_orders(self) -> None:
        for name, dispatcher in self.service.dispatchers.items():
            dispatcher.cordon(self._announced.orders.cordoned(name))
            dispatcher.order_ladder(self._announced.orders.ladder_of(name))
            for view in self.service.views_of(name):
                dispatcher.expect_replica(self._announced.ready_at_s(view.group_key), view.group)

    async def _tell_again(self, spec_json: str, number: int) -> None:
        try:
            await self._directory.restore.remote(spec_json, number)
        except Exception as error:  # any failure of Ray; the next listing asks again
            log.warning("the directory did not get the spec: %r", error)

    def _epochs(self) -> Epochs:
        owned = {name: epoch for name, one in self._owner_trackers.items() if (epoch := one.epoch)}
        return Epochs(owned, {name: one.highest for name, one in self._owner_trackers.items()})

    def _presence(self) -> Presence:
        """This process, and the requests that would be lost with it now."""
        return own_presence(
            reduce(Lost.plus, (dispatcher.held for dispatcher in self.service.dispatchers.values()), Lost())
        )

    def _reported(self, listing: Listing) -> None:
        self.others.reported(listing.gateways)
        self._take_over(listing.spec_json, listing.spec_number)
        self._announced.take(listing)
        self._follow_orders()  # before an owner begins: it places nothing where it should not
        owners = {ownership.model: ownership for ownership in listing.owners}
        now = time.monotonic()
        for name, owner_tracker in self._owner_trackers.items():
            owner_tracker.reported(owners.get(name))
            owner_tracker.dispatcher.losses.died(listing.lost, now)
        self._costs.died(listing.lost)

    def _take_over(self, spec_json: str | None, number: int) -> None:
        """Applies the spec that the directory has. One that restarted may have lost it, or have an older one: it gets
        this one again. Of one that cannot be read, as another version's, or that needs what is not installed here,
        nothing is applied."""
        if spec_json is None or number < self._applied_number:
            if self._applied_json is not None:
                again = asyncio.create_task(self._tell_again(self._applied_json, self._applied_number))
                self._tasks = [*(task for task in self._tasks if not task.done()), again]
            return
        if spec_json != self._applied_json:
            try:
                self.service.configure(ClusterSpec.model_validate_json(spec_json))
            except (ValueError, RuntimeError) as error:
                log.error("the spec that the directory has is not applied: %s", error)
                return
            self._applied_json = spec_json
            for owner_tracker in self._owner_trackers.values():
                owner_tracker.configure()
        self._applied_number = number
