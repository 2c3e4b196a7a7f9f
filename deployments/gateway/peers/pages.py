"""The pages that a gateway has for its peers: digests, requests that are handed over, and what engines counted of them;
and the base of further ones.

Any gateway of the cell may be asked. A question about a model is answered by the model's owner, and what was counted
goes to the gateway that holds the client: this one, or another one of the cell, which this one asks.
"""

import asyncio
import json
import logging
import math
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.gateway.entrance import EXTRA_HEADERS
from deployments.gateway.operators.other_gateways import OtherGateways
from deployments.gateway.own_page import OwnPage, body_of, send_or_cut
from deployments.gateway.peers.auth import CELL_HEADER, SENDER, CallRefusal, Credentials, PeerDoor
from deployments.gateway.peers.client import HOP_HEADER, PeerFailed
from deployments.gateway.peers.digests import Questions, answers_of, read_questions
from deployments.gateway.peers.guest import GuestConnection, GuestRefusedHere
from deployments.gateway.peers.hop import HandOvers, read_header
from deployments.gateway.service import Service, new_ledger
from deployments.openai.endpoints import ENDPOINTS, Endpoint
from deployments.openai.errors import ApiError, ErrorCode
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import Finished
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.verdicts import RequestVerdict
from deployments.wire import WireError, from_plain, to_plain

log = logging.getLogger("raylane.peers")

OWNER_DIGEST_PATH = "/raylane/digests"
"""For the cell's own gateways: the answers to questions about models that the asked one owns."""
_MAX_QUESTION = 1 << 20
_OWNER_S = 1.0
USAGE_PATH = "/raylane/peers/usage"
OWN_USAGE_PATH = "/raylane/usage"
"""For the cell's own gateways: what a peer's engine counted of a request whose client the asked one holds."""
_MAX_PROBES, _MAX_IDLE_S = 127, 32_767
"""Linux allows no more (MAX_TCP_KEEPCNT, MAX_TCP_KEEPIDLE)."""
_RELAYED: Mapping[str, Endpoint] = {one.path: one for one in ENDPOINTS if one.leased}

PeerHandler = Callable[[str, Any], Awaitable[Any]]
"""Of a page: who asks, and what (JSON), to the answer (JSON). May raise ApiError."""


def peer_page(handler: PeerHandler, service: Service) -> OwnPage:
    """The ASGI app of a JSON page for peers, behind its door: POST alone."""

    async def answer(request: Request) -> Response:
        try:
            content = from_json(await body_of(request, _MAX_QUESTION))
        except ValueError:
            raise ApiError(ErrorCode.INVALID_JSON, "the body is no JSON") from None
        return JSONResponse(await handler(request.scope[SENDER], content))

    return OwnPage(answer, service, ("POST",), quiet=True)


async def refuse_call(service: Service, refusal: CallRefusal, scope: Scope, receive: Receive, send: Send) -> None:
    """The answer to who is no peer. What else the call holds is not read."""
    error = ApiError(ErrorCode.UNAUTHORIZED, f"this page is for peer cells: {refusal.value}")
    answer = JSONResponse(error.body(), refusal.status, {"connection": "close"})
    await send_or_cut(answer, service, scope, receive, send)


@dataclass(eq=False)
class DigestPages:
    """Of one gateway. `owners`: where the owner of each model listens for the cell, by model."""

    service: Service
    session: aiohttp.ClientSession
    owners: Callable[[], Mapping[str, str]]

    def owner_route(self) -> Route:
        """The page for the cell's other gateways."""
        return Route(OWNER_DIGEST_PATH, OwnPage(self._owned, self.service, methods=("POST",), quiet=True))

    async def answer(self, sender: str, content: Any) -> dict[str, Any]:
        """The digests that a peer asks for."""
        try:
            questions = read_questions(content)
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_VALUE, f"no questions: {error}") from None
        digests = answers_of(self.service.dispatchers, questions)
        elsewhere: dict[str, dict[str, Any]] = defaultdict(dict)
        owners = self.owners()
        for model in questions.keys() - digests.keys():
            if model in owners:
                elsewhere[owners[model]][model] = list(questions[model])
        for found in await asyncio.gather(*(self._ask(url, asked) for url, asked in elsewhere.items())):
            digests.update(found)
        return {"digests": digests}

    async def _ask(self, url: str, questions: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            async with (
                asyncio.timeout(_OWNER_S),
                self.session.post(url + OWNER_DIGEST_PATH, json={"questions": questions}) as response,
            ):
                found = await response.json() if response.status == 200 else {}
                return dict(found.get("digests", {}))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.info("%s did not say what it owns: %r", url, error)
            return {}

    async def _owned(self, request: Request) -> Response:
        try:
            questions: Questions = read_questions(json.loads(await body_of(request, _MAX_QUESTION)))
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_VALUE, f"no questions: {error}") from None
        return JSONResponse({"digests": answers_of(self.service.dispatchers, questions)})


@dataclass(frozen=True, slots=True)
class PeerUsage:
    """What an engine counted of a request whose client is at that gateway of its home, under its id there."""

    gateway: str
    finished: Finished


@dataclass(eq=False)
class UsagePages:
    """Of one gateway: hears from peers what their engines counted, and tells peers what this cell's did. What does not
    come within `within_s` counts as booked, and its ledger holds no counts."""

    service: Service
    hand_overs: HandOvers
    session: aiohttp.ClientSession
    others: OtherGateways
    within_s: float

    def own_route(self) -> Route:
        """The page for the cell's other gateways."""
        return Route(OWN_USAGE_PATH, OwnPage(self._own, self.service, methods=("POST",), quiet=True))

    async def answer(self, sender: str, content: Any) -> None:
        """A peer tells of a request that it has served."""
        usage = _usage_in(content)
        if usage.gateway == self.service.gateway_id:
            self.service.closing.peer_finished(sender, usage.finished)
        elif usage.gateway in self.others.urls:
            url = self.others.urls[usage.gateway] + OWN_USAGE_PATH
            try:
                async with asyncio.timeout(_OWNER_S), self.session.post(url, json=[sender, content]):
                    pass
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                log.info("%s did not hear of a request's usage: %r", url, error)

    def tell(self, facts: HopFacts, ledger: Ledger) -> None:
        """A guest's ledger is complete: its home hears what the engine counted."""
        if ledger.finished is not None and ledger.finished.usage.sequences:
            finished = to_plain(ledger.finished) | {"request_id": facts.attempt_id, "booking": ""}
            self.hand_overs.run(self._tell(facts.home, {"gateway": facts.gateway, "finished": finished}))

    async def _tell(self, home: str, content: Any) -> None:
        try:
            await self.hand_overs.client.post_json(home, USAGE_PATH, content, self.within_s)
        except PeerFailed as error:
            log.info("%s", error)

    async def _own(self, request: Request) -> Response:
        try:
            sender, content = json.loads(await body_of(request, _MAX_QUESTION))
        except (ValueError, TypeError):
            raise ApiError(ErrorCode.INVALID_VALUE, "no usage") from None
        self.service.closing.peer_finished(str(sender), _usage_in(content).finished)
        return JSONResponse(None)


def _usage_in(content: Any) -> PeerUsage:
    try:
        usage = from_plain(content, PeerUsage)
    except WireError as error:
        raise ApiError(ErrorCode.INVALID_VALUE, f"no usage: {error}") from None
    if not usage.finished.is_possible:
        raise ApiError(ErrorCode.INVALID_VALUE, "no usage: a number that cannot be")
    return usage


@dataclass(eq=False)
class HopPage:
    """The ASGI app of HOP_PATH, behind its door: a request that a peer hands over takes a client's way from here, if it
    is not refused by its head alone. uvicorn says 100 Continue when its body is asked for."""

    service: Service
    hand_overs: HandOvers
    usage: UsagePages
    silent_s: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self.service
        given = dict(scope["headers"]).get(HOP_HEADER.encode(), b"")
        try:
            facts = read_header(given.decode("latin-1"))
            endpoint = _RELAYED.get(facts.path)
            if endpoint is None or scope["method"] != "POST" or facts.home != scope[SENDER]:
                raise ValueError("a path that is not handed over, or the home is not who sends it")
            if (refusal := self._judge(facts)) is not None:
                raise GuestRefusedHere(refusal)
        except (ValueError, GuestRefusedHere) as error:
            refused = error if isinstance(error, ApiError) else ApiError(ErrorCode.INVALID_VALUE, f"no hop: {error}")
            closing = {CELL_HEADER: service.cell, "connection": "close", **refused.headers}
            answer = JSONResponse(refused.body(), refused.error.status, closing)
            await send_or_cut(answer, service, scope, receive, send)
            return
        ledger = _ledger_of(service, facts, scope)
        ledger.on_closed = partial(self.usage.tell, facts, ledger)
        _watch(send, self.silent_s)
        client = service.connection(GuestConnection, scope, receive, send, ledger, endpoint)
        client.hop, client.guests = facts, self.hand_overs.guests
        await service.run(client)

    def _judge(self, facts: HopFacts) -> HopRefusal | None:
        """Why the request is refused, without its body. Where another gateway owns the model, that one judges it with
        the body."""
        dispatcher = self.service.dispatchers.get(facts.model)
        if dispatcher is None:
            return HopRefusal.SPEC
        if self.service.draining:
            return HopRefusal.LOADED
        owner = dispatcher.own
        return owner.peering.judge(facts) if owner is not None and owner.peering is not None else None


def _watch(send: Send, silent_s: float) -> None:
    """A home whose link is cut is a client that left after so long, also while nothing is sent: TCP asks whether it is
    there. (Behind a proxy it is the proxy that answers.)"""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is not None:
        half_s = max(1, round(silent_s / 2))
        every_s = math.ceil(half_s / _MAX_PROBES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(half_s, _MAX_IDLE_S))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, half_s // every_s)


def _ledger_of(service: Service, facts: HopFacts, scope: Scope) -> Ledger:
    """A guest's: under the id that its client knows, so that `raylane why` finds it in either cell."""
    ledger = new_ledger(scope, facts.path, service.tracing, of_peer=True)
    ledger.attempt_id, ledger.gateway = facts.guest_id, service.gateway_id
    ledger.cell, ledger.home = service.cell, facts.home
    waited_s = round(facts.waited_s, 6)
    ledger.decide(RequestVerdict.GUEST, facts.reason.value, ledger.arrived_s, home=facts.home, waited_s=waited_s)
    return ledger


def peer_routes(service: Service, credentials: Credentials, pages: Mapping[str, ASGIApp]) -> list[Route]:
    """The routes of the port for clients: pages for peers, by their path. Each answer names this cell."""
    named = [(CELL_HEADER.encode(), credentials.cell.encode())]

    def behind_door(app: ASGIApp) -> PeerDoor:
        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            scope[EXTRA_HEADERS] = named
            await app(scope, receive, send)

        return PeerDoor(call, credentials, partial(refuse_call, service))

    return [Route(path, behind_door(app)) for path, app in pages.items()]
