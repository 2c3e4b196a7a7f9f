"""What a gateway has to do with other cells, as one part of it: its client, its pages, the exchange of digests, the
hops, and their metrics. A cell without `peering` in its spec has none of it."""

from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import aiohttp
from starlette.routing import Route
from starlette.types import ASGIApp

from cluster.spec import ClusterSpec, Region
from deployments.gateway.operators.other_gateways import OtherGateways
from deployments.gateway.peers.auth import Credentials
from deployments.gateway.peers.client import HOP_PATH, PeerClient
from deployments.gateway.peers.digests import DIGEST_PATH, DigestExchange
from deployments.gateway.peers.hop import HandOvers
from deployments.gateway.peers.pages import USAGE_PATH, DigestPages, HopPage, UsagePages, peer_page, peer_routes
from deployments.gateway.peers.view import VIEW_PATH, CellView, RegionsPage
from deployments.gateway.service import Service
from deployments.ownership.owner_tracker import OwnerTracker
from deployments.peering.cell_peering import LOST_AGES
from deployments.telemetry import table
from deployments.telemetry.table import Metric, Sample


class CellPeers:
    """Of one gateway of the cell `home`. Made within a running event loop. Raises ValueError for a spec by which peers
    cannot be known, OSError for files of TLS that cannot be read."""

    def __init__(
        self,
        spec: ClusterSpec,
        home: Region,
        secret: str | None,
        service: Service,
        session: aiohttp.ClientSession,
        owner_trackers: Mapping[str, OwnerTracker],
        others: OtherGateways,
    ) -> None:
        self.client: PeerClient | None = None
        self.credentials: Credentials | None = None
        self.pages: dict[str, ASGIApp] = {}
        """By path."""
        self.ca: str | None = None
        """The authority whose certificates peers may show."""
        self._service = service
        self._home = home.name
        self._exchange: DigestExchange | None = None
        self._digests = DigestPages(service, session, lambda: _owner_urls(owner_trackers))
        self._cell_routes: list[Route] = []
        if (peering := spec.peering) is None:
            return
        check_proofs(spec, secret)
        self.ca = None if peering.tls is None else peering.tls.ca
        shown, cells = None if peering.secret is None else secret, [region.name for region in spec.regions]
        self.credentials = Credentials(home.name, shown, cells, peering.tls is not None)
        self.client = PeerClient(spec, self.credentials)
        service.closing.peer_patience_s = peering.max_age_s
        hand_overs = service.hand_overs = HandOvers(self.client, service.closing, service.gateway_id)
        self._exchange = DigestExchange(self.client, service.dispatchers, peering.digest_period_s, peering.max_age_s)
        usage = UsagePages(service, hand_overs, session, others, peering.max_age_s)
        self.pages[DIGEST_PATH] = peer_page(self._digests.answer, service)
        self.pages[USAGE_PATH] = peer_page(usage.answer, service)
        self.pages[HOP_PATH] = HopPage(service, hand_overs, usage, LOST_AGES * peering.max_age_s)
        self._cell_routes = [self._digests.owner_route(), usage.own_route()]

    def show(self, own: CellView) -> Route:
        """What this cell shows of itself to its peers, and the page that shows all cells; before `routes`."""
        if self.credentials is not None:
            self.pages[VIEW_PATH] = peer_page(own.answer, self._service)
        return RegionsPage(self._service, self._home, own, self.client).route()

    def routes(self) -> list[Route]:
        """For the port for clients, where peers ask, too."""
        return [] if self.credentials is None else peer_routes(self._service, self.credentials, self.pages)

    def cell_routes(self) -> list[Route]:
        """For the port for the cell."""
        return self._cell_routes

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """What runs as long as the gateway."""
        return [] if self._exchange is None else [self._exchange.run()]

    async def close(self) -> None:
        """Ends every exchange with peers."""
        if self._exchange is not None:
            await self._exchange.close()
        if self._service.hand_overs is not None:
            await self._service.hand_overs.close()

    def samples(self) -> Iterator[Sample]:
        """Read when Prometheus asks."""
        hand_overs, credentials, exchange = self._service.hand_overs, self.credentials, self._exchange
        if hand_overs is None or credentials is None or exchange is None or self.client is None:
            return
        counters: tuple[tuple[Metric, Mapping[Any, int]], ...] = (
            (table.HAND_OVERS, hand_overs.taken),
            (table.HOPS_REJECTED, hand_overs.rejected),
            (table.HOPS_BROKEN, hand_overs.broken),
            (table.GUESTS, hand_overs.guests),
            (table.DIGEST_REFUSALS, exchange.refused),
            (table.PEER_CALLS_REFUSED, credentials.refused),
            (table.DIGESTS_UNANSWERED, {(peer,): count for peer, count in exchange.failed.items()}),
            (table.HOPS_IN_FLIGHT, {(peer,): hand_overs.in_flight[peer] for peer in self.client.peers}),
        )
        for metric, counts in counters:
            for labels, count in sorted(counts.items()):
                yield metric, tuple(map(str, labels)), count


def check_proofs(spec: ClusterSpec, secret: str | None) -> None:
    """Raises ValueError where a gateway could not tell its peers from others."""
    peering = spec.peering
    if peering is not None and peering.tls is not None and spec.gateway.tls is None:
        raise ValueError("peering.tls: needs gateway.tls: the gateway itself checks its peers' certificates")
    if peering is not None and peering.secret is not None and secret is None:
        raise ValueError("peering.secret: not given to the gateway")


def _owner_urls(owner_trackers: Mapping[str, OwnerTracker]) -> dict[str, str]:
    """Where the owner of each model listens for the cell."""
    return {name: url for name, one in owner_trackers.items() if (url := one.owner_url) is not None}
