"""The external tier: an OpenAI-compatible service outside answers a request that nothing in the cluster answers in time
(docs/pressure.md).

Its price is reserved with the directory first (`cell/spending.py`): no reservation, no request. What it took is a fact
of the bill, and settles the reservation (`cell/cost_book.py`). Nothing of the client but its request goes there: no
header, no name, no id. Until the service's answer has begun, the request may still wait for its own model.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import aiohttp

from cluster.spec import PICO, External, Model, Tenant, TrafficClass
from deployments.accounting.facts import ExternalUsage
from deployments.cell.spending import Reservation
from deployments.gateway.connection import Connection
from deployments.gateway.exchange import UNREACHABLE, sized
from deployments.gateway.flow import Awaited
from deployments.gateway.relay import AnswerStream
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.external import ExternalBody, Tokens, external_body, usage_in
from deployments.openai.inquiry import Inquiry
from deployments.scheduling.reasons import Ending, RejectCause, Rung
from deployments.telemetry.exposition import MetricCounts
from deployments.telemetry.ledger import EXTERNAL, Degradation, Ledger
from deployments.telemetry.table import EXTERNAL_REQUESTS
from deployments.telemetry.verdicts import RequestVerdict

log = logging.getLogger("raylane.external")

FAILURES, OPEN_S = 3, 30.0
_RESERVE_S = 2.0
_REFUSED = (400, 413, 422)
"""What the service says of the request; all other errors are its own."""
_UNKNOWN: Tokens | None = None
_BETWEEN = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")


class ExternalOutcome(StrEnum):
    """What became of a request that was meant for the external tier."""

    ANSWERED = "answered"
    BROKE = "broke"
    """It failed after its answer had begun, or its client left."""
    FAILED = "failed"
    REFUSED = "refused"
    BUDGET = "budget"
    """Its tenant's budget is too small, or cannot be asked for."""
    BREAKER = "breaker"


class Breaker:
    """After `FAILURES` failures in a row nothing is sent for `OPEN_S`; then one request tries."""

    def __init__(self) -> None:
        self._failures = 0
        self._until_s = 0.0

    def is_open(self, now: float) -> bool:
        return self._failures >= FAILURES and now < self._until_s

    def lets(self, now: float) -> bool:
        """Whether a request may be sent, which is the one that tries where others failed."""
        if self.is_open(now):
            return False
        self._until_s = now + OPEN_S
        return True

    def ended(self, well: bool, now: float) -> None:
        self._failures, self._until_s = 0 if well else self._failures + 1, now + OPEN_S


@dataclass(frozen=True, slots=True)
class ExternalRoute:
    """A request for a `model` of the cluster that may go there; `name`: the service's for it."""

    inquiry: Inquiry
    model: str
    name: str
    tenant: str
    traffic_class: str


def route_of(
    external: External, inquiry: Inquiry, body: bytes, model: Model, traffic_class: TrafficClass, tenant: Tenant | None
) -> ExternalRoute | None:
    """Whether a request may leave the cluster: of that tenant, for that model, by all that restricts where it may be
    served, and by what it says."""
    if tenant is None or tenant.name not in external.tenants or model.name not in external.models:
        return None
    residencies = (model.residency, traffic_class.residency, tenant.residency)
    if any(names is not None and external.region not in names for names in residencies):
        return None
    name = external.models[model.name]
    if inquiry.model not in ("", model.name, *model.aliases) or external_body(inquiry, body, name, 1) is None:
        return None
    return ExternalRoute(inquiry, model.name, name, tenant.name, traffic_class.name)


class ExternalTier:
    """`home`: the gateway's region. `report` takes facts of the bill. `directory` is set before the first request."""

    directory: Any = None

    def __init__(self, settings: External, key: str, home: str, report: Callable[[ExternalUsage], None]) -> None:
        self.settings = settings
        self._home = home
        self._report = report
        self._breaker = Breaker()
        self._counts = MetricCounts(EXTERNAL_REQUESTS)
        self.samples = self._counts.samples
        self._session = aiohttp.ClientSession(
            headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
            skip_auto_headers=("user-agent",),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._session.close()

    async def run(self, route: ExternalRoute, cause: RejectCause, client: Connection) -> bool:
        """Has a request answered there. False: it is not, and nothing of an answer was sent. `cause`: why its model
        does not answer it. Raises ApiError, or what cancelled the flow."""
        attempt_id, settings, outcome = uuid.uuid4().hex, self.settings, ExternalOutcome.BREAKER
        flow = client.flow
        flow.ledger.waits_again(time.monotonic())
        flow.wait_for(Awaited.WHOLE_ANSWER, time.monotonic())
        body = external_body(route.inquiry, client.body, route.name, settings.max_tokens)
        if body is not None and not self._breaker.is_open(time.monotonic()):
            outcome = ExternalOutcome.BUDGET
            if await self._reserve(route, attempt_id, sum(settings.pico_usd(*body.most))):
                outcome, spent = ExternalOutcome.BROKE, _UNKNOWN
                try:
                    outcome, spent = await self._exchange(route, body, cause, client)
                finally:
                    self._settle(route, attempt_id, spent or body.most, estimated=spent is None)
                    self._note(route, cause, outcome, flow.ledger)
                return outcome is ExternalOutcome.ANSWERED
        self._note(route, cause, outcome, flow.ledger)
        return False

    async def _reserve(self, route: ExternalRoute, attempt_id: str, pico_usd: int) -> bool:
        budget = round(self.settings.tenants[route.tenant] * PICO)
        try:
            async with asyncio.timeout(_RESERVE_S):
                wanted = Reservation(route.tenant, pico_usd)
                return bool(await self.directory.reserve.remote(attempt_id, wanted, budget))
        except BaseException as error:  # any failure of Ray, or the client left: it may be reserved all the same
            self._settle(route, attempt_id, (0, 0), estimated=False)
            if not isinstance(error, Exception):
                raise
            log.warning("the directory did not reserve for %s: %r", route.tenant, error)
            return False

    def _settle(self, route: ExternalRoute, attempt_id: str, tokens: Tokens, estimated: bool) -> None:
        whose = attempt_id, route.model, route.tenant, route.traffic_class, self._home
        self._report(ExternalUsage(time.time_ns(), *whose, estimated, *tokens, *self.settings.pico_usd(*tokens)))

    def _note(self, route: ExternalRoute, cause: RejectCause, outcome: ExternalOutcome, ledger: Ledger) -> None:
        self._counts.values[route.model, outcome.value] += 1
        ledger.decide(RequestVerdict.EXTERNAL, outcome.value, time.monotonic(), asked=cause.value, model=route.name)

    async def _exchange(
        self, route: ExternalRoute, body: ExternalBody, cause: RejectCause, client: Connection
    ) -> tuple[ExternalOutcome, Tokens | None]:
        """What came of it, and the tokens that the service counts; None: it may have worked, and does not say."""
        ledger, degraded, now = client.flow.ledger, client.flow.ledger.degraded, time.monotonic()
        if not self._breaker.lets(now):
            return ExternalOutcome.BREAKER, (0, 0)
        ledger.left_lane(now, placed=True)
        ledger.pick = EXTERNAL
        ledger.degraded += (Degradation(Rung.FALLBACK, route.model, cause.value, f"model={route.model}; to=external"),)
        url = self.settings.url.rstrip("/") + client.endpoint.path.removeprefix("/v1")
        outcome, spent = ExternalOutcome.FAILED, _UNKNOWN
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                response = await self._session.post(url, data=body.content, allow_redirects=False)
            async with response:
                if response.status == 200:
                    spent = await _ExternalRelay(client, body.asks_usage).run(response)
                    self._breaker.ended(True, time.monotonic())
                    return ExternalOutcome.ANSWERED, spent
                outcome = ExternalOutcome.REFUSED if response.status in _REFUSED else ExternalOutcome.FAILED
                spent = 0, 0
                log.warning("the external service answered with status %d", response.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            if client.answered:
                self._breaker.ended(False, time.monotonic())
                raise ApiError(ErrorCode.ENGINE_ERROR, "the external service broke off its answer") from error
            spent = (0, 0) if isinstance(error, UNREACHABLE) else _UNKNOWN
            log.warning("the external service failed: %r", error)
        self._breaker.ended(outcome is ExternalOutcome.REFUSED, time.monotonic())
        ledger.degraded = degraded
        ledger.refused(time.monotonic())
        return outcome, spent


class _ExternalRelay(AnswerStream):
    _is_tapped = False

    def __init__(self, client: Connection, asks_usage: bool) -> None:
        super().__init__(client)
        self._asks_usage = asks_usage
        self._spent: Tokens | None = None

    async def run(self, response: aiohttp.ClientResponse) -> Tokens | None:
        """Relays the answer. Returns its tokens, if it tells of them."""
        if response.content_type == "text/event-stream":
            await self._stream(response)
            return self._spent
        payload = await response.read()
        self._ledger.last_byte_s = self._first_byte()
        await self._give(200, [*self._head_of(response), *sized(payload)], payload)
        return usage_in(payload)[0]

    def _checked(self, events: bytes) -> bytes:
        if b'"usage"' not in events:
            return events
        kept = []
        for event in _BETWEEN.split(events):
            usage, alone = usage_in(event)
            self._spent = usage or self._spent
            kept += [event] if self._asks_usage or not alone else []
        return b"".join(kept)

    def _end(self, ending: Ending) -> None:
        """The service knows."""
