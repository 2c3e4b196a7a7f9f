"""The connection of a request that a peer has handed over: the client's side of its flow, as `Connection` is for a
client of this cell. It gets the answer that its client would get here.

A home that goes away is a client that leaves. Nothing of the wait is sent: home tells its client. A request that is not
admitted is refused with 503, and why; it waits at its home.
"""

from collections import Counter

from cluster.spec import ClusterSpec, Tenant, TrafficClass
from deployments.gateway.connection import Connection
from deployments.gateway.entrance import KeyRing
from deployments.gateway.peers.client import FIRST_TOKEN_HEADER, REFUSAL_HEADER
from deployments.openai.errors import ApiError, Dialect, ErrorCode
from deployments.peering import HopFacts, HopRefusal
from deployments.scheduling import Request


class GuestRefusedHere(ApiError):
    """This cell does not take the request. It waits at its home."""

    def __init__(self, refusal: HopRefusal) -> None:
        headers = {REFUSAL_HEADER: refusal.value, "connection": "close"}  # its body may still be to come
        super().__init__(ErrorCode.HOP_REFUSED, f"the request is not taken: {refusal.value}", headers=headers)


class GuestConnection(Connection):
    """One request of another cell. `guests` counts those that are taken, by model and home. Both are set before it is
    run."""

    hop: HopFacts
    guests: Counter[tuple[str, str]]
    _admitted = False

    def tenant(self, keys: KeyRing, spec: ClusterSpec) -> Tenant | None:
        """The one that home has found by its client's key."""
        found = next((tenant for tenant in spec.tenants if tenant.name == self.hop.tenant), None)
        if found is None and (spec.tenants or self.hop.tenant):
            raise GuestRefusedHere(HopRefusal.SPEC)
        return found

    def traffic_class(self, spec: ClusterSpec, tenant: Tenant | None, service_tier: str) -> TrafficClass:
        found = next((one for one in spec.classes if one.name == self.hop.traffic_class), None)
        if found is None:
            raise GuestRefusedHere(HopRefusal.SPEC)
        return found

    def submitted(self, request: Request, model: str) -> Request:
        """With what is left of its deadlines, by this cell's clock: home stated it with the head of the request."""
        if model != self.hop.model:
            raise GuestRefusedHere(HopRefusal.SPEC)
        return self.hop.guest(request, self.flow.ledger.arrived_s)

    def admitted(self) -> None:
        self._admitted = True
        self.guests[self.hop.model, self.hop.home] += 1

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        ledger = self.flow.ledger
        if not ledger.stream and ledger.first_token_s is not None:
            after_s = max(0.0, ledger.first_token_s - ledger.arrived_s)
            self.carry(FIRST_TOKEN_HEADER.encode(), f"{after_s:.6f}")
        await super()._start(status, headers)

    async def _fail_whole(self, error: ApiError, dialect: Dialect) -> None:
        """Home puts it into its client's dialect."""
        if not self._admitted and not isinstance(error, GuestRefusedHere):
            error = GuestRefusedHere(_refusal_of(error))
        await super()._fail_whole(error, Dialect.OPENAI)


def _refusal_of(error: ApiError) -> HopRefusal:
    """What home hears of an error before the request was admitted: this cell is stopping, or reads the request
    otherwise."""
    if error.error is ErrorCode.DRAINING:
        return HopRefusal.LOADED
    return HopRefusal.REJECTED if error.error.status >= 429 else HopRefusal.SPEC
