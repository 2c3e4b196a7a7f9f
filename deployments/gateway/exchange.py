"""How a request goes to an engine replica: what every exchange has in common, the ways in which a replica takes no
work, the exchanges that broke, and requests without a lease."""

import asyncio
import io
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

import aiohttp

from deployments.cell.departure import Lost
from deployments.gateway.connection import Connection, answer_headers
from deployments.gateway.flow import Awaited, EndCause, RequestFlow
from deployments.openai.endpoints import BodyKind, Endpoint, engine_error
from deployments.openai.errors import ApiError, ErrorCode, lost
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.owner_tracker import overtaken_by
from deployments.protocol import (
    DRAINING_CODE,
    ENGINE_DIED_HEADER,
    REQUEST_ID_HEADER,
    SIMULATED_HEADER,
    UNHEALTHY_CODE,
    ReplicaFacts,
    ReplicaState,
)
from deployments.scheduling import Lease
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.verdicts import RequestVerdict

UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""No connection was made, so the replica did not see the request. (A connection that broke later says nothing of
that.)"""

SIMULATED_MARK = (SIMULATED_HEADER.encode(), b"true")
"""What an answer of a simulated engine carries to the client."""

_REFUSALS = {DRAINING_CODE: ReplicaState.DRAINING, UNHEALTHY_CODE: ReplicaState.UNHEALTHY}
_NOTHING: Mapping[str, str] = {}
TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context."""
_TRACE_VALUE = re.compile(r"[\x20-\x7e]{1,1024}")
_COPIED_BYTES = 1 << 20
"""A longer body is sent from a stream, piece by piece: as bytes it would be copied whole in one go of the event loop,
of which aiohttp warns."""


class ReplicaRefused(Exception):
    """The replica took no work: it drains or is unhealthy (`state`), or cannot be reached (None). The request may be
    placed elsewhere.

    Or its owner was overtaken by another, and `highest` is the highest epoch that the replica knows. Or the request is
    `too_long` for the context of the replica's group, and another group has a longer one.
    """

    verdict = RequestVerdict.REFUSED

    def __init__(self, state: ReplicaState | None, highest: int | None = None, too_long: bool = False) -> None:
        super().__init__(state)
        self.state = state
        self.highest = highest
        self.too_long = too_long

    @property
    def reason(self) -> str:
        if self.highest is not None:
            return "overtaken"
        if self.too_long:
            return "too_long"
        return self.state.value if self.state else "unreachable"


class Death(StrEnum):
    """Why a request that was at a replica is placed again though work was done for it."""

    REPLICA_LOST = "replica_lost"
    ENGINE_DIED = "engine_died"


class ReplicaDied(Exception):
    """The replica died, or its engine did, before a byte of the answer had reached the client. The request may be
    placed elsewhere, if the owner of the lanes lets it (`scheduling/suspects.py`)."""

    verdict = RequestVerdict.RESUBMITTED

    def __init__(self, death: Death) -> None:
        super().__init__(death.value)
        self.reason = death.value


REMEMBER_S = 60.0
"""A broken exchange counts for an end that is noticed so much later, and for none after that."""
_MAX_REPLICAS = 256


class BrokenExchanges:
    """The requests that broke at replicas; kept until a replica's end is reported, or for `REMEMBER_S`, since a
    connection may break without an end."""

    def __init__(self) -> None:
        self._by_replica: OrderedDict[str, list[tuple[float, Lost]]] = OrderedDict()

    @contextmanager
    def watching(self, lease: Lease, flow: RequestFlow) -> Iterator[None]:
        """Around one exchange of a request with a replica."""
        try:
            yield
        except ReplicaDied:
            self._note(lease, again=True)
            raise
        except ApiError as error:
            if error.error is ErrorCode.REPLICA_LOST:
                self._note(lease)
            raise
        except asyncio.CancelledError:
            if flow.cause is EndCause.REPLICA_LOST:
                self._note(lease)
            raise
        if flow.ledger.error == ErrorCode.REPLICA_LOST.code:
            self._note(lease)

    def taken(self, replica_id: str) -> Lost:
        """What that replica took with it; asked once."""
        since_s, total = time.monotonic() - REMEMBER_S, Lost()
        for at_s, broken in self._by_replica.pop(replica_id, ()):
            if at_s >= since_s:
                total = total.plus(broken)
        return total

    def _note(self, lease: Lease, again: bool = False) -> None:
        broken = Lost(int(not again), int(again), lease.tokens, (lease.request.key,))
        now = time.monotonic()
        noted = self._by_replica.setdefault(lease.replica_id, [])
        while noted and noted[0][0] < now - REMEMBER_S:
            noted.pop(0)
        noted.append((now, broken))
        self._by_replica.move_to_end(lease.replica_id)
        if len(self._by_replica) > _MAX_REPLICAS:
            self._by_replica.popitem(last=False)


def trace_of(ledger: Ledger, headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    """The trace context of a request, for an engine or a peer: without `tracing`, the client's as it came; what is not
    valid is left out."""
    if ledger.trace is not None:
        return ledger.trace.headers
    if b"traceparent" not in headers:
        return _NOTHING
    found = {name: headers.get(name.encode(), b"").decode("latin-1") for name in TRACE_HEADERS}
    return {name: value for name, value in found.items() if _TRACE_VALUE.fullmatch(value)}


async def post(
    session: aiohttp.ClientSession, url: str, attempt_id: str, body: bytes, more: Mapping[str, str] = _NOTHING
) -> aiohttp.ClientResponse:
    """Sends a request, with `more` headers.

    Returns when the head of its answer came. Raises aiohttp.ClientError, also for an answer that is none.
    """
    headers = {REQUEST_ID_HEADER: attempt_id, "content-type": "application/json", **more}
    response = await session.post(
        url, data=body if len(body) <= _COPIED_BYTES else io.BytesIO(body), headers=headers, allow_redirects=False
    )
    if not 200 <= response.status < 600:
        response.close()
        raise aiohttp.ClientPayloadError(f"status {response.status}")
    return response


def refusal(status: int, payload: bytes) -> ReplicaRefused | None:
    highest = overtaken_by(status, payload)
    if highest is not None:
        return ReplicaRefused(None, highest)
    if status != 503:
        return None
    try:
        code = json.loads(payload)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    state = _REFUSALS.get(code) if isinstance(code, str) else None
    return None if state is None else ReplicaRefused(state)


def content_type(response: aiohttp.ClientResponse) -> bytes:
    return response.headers.get("content-type", "application/json").encode("utf-8", "surrogateescape")


def marks(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """The mark of a simulated engine, where the answer carries it."""
    return [SIMULATED_MARK] if SIMULATED_HEADER in response.headers else []


def sized(payload: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-length", str(len(payload)).encode())]


_Answer = tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]
"""Status, content type, body, and the marks that go to the client."""


async def run_direct(session: aiohttp.ClientSession, dispatcher: Dispatcher, client: Connection) -> None:
    """Runs a request to its end. Raises ApiError, or what cancelled the flow."""
    body, flow, endpoint = client.body, client.flow, client.endpoint
    for replica in dispatcher.replicas.ready_in_turn():
        flow.ledger.replica_id, flow.ledger.pick = replica.replica_id, "direct"
        try:
            status, kind, payload, marked = await _ask(session, replica, flow, endpoint, body)
        except ReplicaRefused as refused:
            dispatcher.replica_state(replica.replica_id, refused.state)
            continue
        if status >= 400:
            error = engine_error(status, payload, endpoint.body, body)
            payload, kind, flow.ledger.error = error.payload(endpoint.dialect), b"application/json", error.error.code
        flow.wait_for(Awaited.CLIENT, time.monotonic())
        await client.start(status, [(b"content-type", kind), *sized(payload), *marked, *answer_headers(flow.ledger)])
        await client.finish(payload)
        return
    raise _no_replica(dispatcher)


async def read_from_a_replica(
    session: aiohttp.ClientSession, dispatcher: Dispatcher, path: str, within_s: float
) -> bytes:
    """What a replica answers to a GET. It asks for no work, so the next one is asked where one does not answer. Raises
    ApiError."""
    try:
        async with asyncio.timeout(within_s):
            for replica in dispatcher.replicas.ready_in_turn():
                try:
                    async with session.get(replica.url + path, allow_redirects=False) as response:
                        payload = await response.read()
                except aiohttp.ClientError:
                    continue
                if response.status != 200:
                    raise engine_error(response.status, payload, BodyKind.TOKENIZER, b"")
                return payload
    except TimeoutError:
        message = f"no replica answered within first_byte_s = {within_s:g} s"
        raise ApiError(ErrorCode.FIRST_BYTE_TIMEOUT, message) from None
    raise _no_replica(dispatcher)


def _no_replica(dispatcher: Dispatcher) -> ApiError:
    message = f"no replica of model {dispatcher.model.name!r} is ready"
    return ApiError(ErrorCode.NO_REPLICA, message, headers={"retry-after": "1"})


async def _ask(
    session: aiohttp.ClientSession, replica: ReplicaFacts, flow: RequestFlow, endpoint: Endpoint, body: bytes
) -> _Answer:
    flow.wait_for(Awaited.FIRST_BYTE, time.monotonic())
    try:
        async with await post(session, replica.url + endpoint.path, flow.ledger.attempt_id, body) as response:
            payload = await response.read()
            if ENGINE_DIED_HEADER in response.headers:
                raise lost()
    except UNREACHABLE as error:
        raise ReplicaRefused(None) from error
    except aiohttp.ClientError as error:
        raise lost() from error
    refused = refusal(response.status, payload)
    if refused is not None:
        raise refused
    return response.status, content_type(response), payload, marks(response)


taps: dict[aiohttp.StreamReader, Callable[[bytes], bool]] = {}


class TappedReader(aiohttp.StreamReader):
    """A body whose pieces its tap may take as they come: then they need no turn of the task that reads, which is a
    third of the cost of relaying them. What it does not take waits to be read. (The parser feeds the reader that it has
    made itself, so an answer's reader becomes one of these.)"""

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        tap = taps.get(self)
        return False if tap is not None and not self._buffer and tap(data) else super().feed_data(data)


def engine_session(secret: str, connect_s: float) -> aiohttp.ClientSession:
    """A gateway's connections to engines and gateways: as many as it needs, each request with the cell's secret."""
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {secret}"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30, ttl_dns_cache=60),
        auto_decompress=False,
        skip_auto_headers=("user-agent", "accept", "accept-encoding"),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
