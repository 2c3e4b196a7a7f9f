"""The pages that a gateway has for its peers: digests, and requests that are handed over; and the base of further ones.

Any gateway of the cell may be asked. A question about a model is answered by the model's owner: by this gateway, or by
another one of the cell, which this one asks.
"""

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import aiohttp
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.gateway.exchange import TRACE_HEADERS
from deployments.gateway.flow import RequestFlow
from deployments.gateway.own_page import OwnPage, body_of, send_or_cut
from deployments.gateway.peers.auth import (
    CALL,
    CELL_HEADER,
    SIGNATURE_HEADER,
    Call,
    CallRefusal,
    Calls,
    PeerDoor,
    content_of,
)
from deployments.gateway.peers.client import HOP_PATH
from deployments.gateway.peers.digests import Questions, answers_of, read_questions
from deployments.gateway.peers.envelope import HopEnvelope, read_envelope
from deployments.gateway.peers.guest import GuestConnection
from deployments.gateway.service import Service
from deployments.openai.endpoints import ENDPOINTS, Endpoint
from deployments.openai.errors import ApiError, ErrorCode
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.verdicts import RequestVerdict

log = logging.getLogger("raylane.peers")

OWNER_DIGEST_PATH = "/raylane/digests"
"""For the cell's own gateways: the answers to questions about models that the asked one owns."""
_MAX_QUESTION = 1 << 20
_OWNER_S = 1.0
_RELAYED: Mapping[str, Endpoint] = {one.path: one for one in ENDPOINTS if one.leased}

PeerHandler = Callable[[str, Any], Awaitable[Any]]
"""Of a page: who asks, and what (JSON), to the answer (JSON). May raise ApiError."""


class PeerPage:
    """The ASGI app of a JSON page for peers, behind its door: POST alone. Its answers are signed."""

    def __init__(self, handler: PeerHandler, calls: Calls, service: Service) -> None:
        self._handler = handler
        self._calls = calls
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope[CALL]
        try:
            status, content = 200, await self._answer(call, Request(scope, receive))
        except ClientDisconnect:
            return
        except ApiError as error:
            status, content = error.error.status, error.body()
        except Exception:
            log.exception("%s failed inside the gateway", scope["path"])
            status, content = 500, ApiError(ErrorCode.INTERNAL, "internal error").body()
        body = json.dumps(content).encode()
        signer = self._calls.signer
        headers = {CELL_HEADER: signer.cell, SIGNATURE_HEADER: signer.answer(call, status, body)}
        response = Response(body, status, headers, "application/json")
        await send_or_cut(response, self._service, scope, receive, send)

    async def _answer(self, call: Call, request: Request) -> Any:
        if request.method != "POST":
            raise ApiError(ErrorCode.METHOD_NOT_ALLOWED, f"{request.method} {request.url.path}: allowed: POST")
        body = await body_of(request, _MAX_QUESTION)
        if content_of(body) != call.content:
            self._calls.refuse(call.sender, CallRefusal.WRONG_CONTENT)
            raise ApiError(ErrorCode.UNAUTHORIZED, "the body is not the one that was signed")
        try:
            content = from_json(body)
        except ValueError:
            raise ApiError(ErrorCode.INVALID_JSON, "the body is no JSON") from None
        return await self._handler(call.sender, content)


async def refuse_call(service: Service, refusal: CallRefusal, scope: Scope, receive: Receive, send: Send) -> None:
    """The answer to a call whose signature is not right. What else it holds is not read."""
    error = ApiError(ErrorCode.UNAUTHORIZED, f"this page is for peer cells: {refusal.value}")
    answer = JSONResponse(error.body(), refusal.status, {"connection": "close"})
    await send_or_cut(answer, service, scope, receive, send)


class DigestPages:
    """Of one gateway. `owners`: where the owner of each model listens for the cell, by model."""

    def __init__(
        self, service: Service, session: aiohttp.ClientSession, owners: Callable[[], Mapping[str, str]]
    ) -> None:
        self._service = service
        self._session = session
        self._owners = owners

    def owner_route(self) -> Route:
        """The page for the cell's other gateways."""
        return Route(OWNER_DIGEST_PATH, OwnPage(self._owned, self._service, methods=("POST",), quiet=True))

    async def answer(self, sender: str, content: Any) -> dict[str, Any]:
        """The digests that a peer asks for."""
        try:
            questions = read_questions(content)
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_VALUE, f"no questions: {error}") from None
        digests = answers_of(self._service.dispatchers, questions)
        elsewhere: dict[str, dict[str, Any]] = defaultdict(dict)
        owners = self._owners()
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
                self._session.post(url + OWNER_DIGEST_PATH, json={"questions": questions}) as response,
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
        return JSONResponse({"digests": answers_of(self._service.dispatchers, questions)})


class HopPage:
    """The ASGI app of HOP_PATH, behind its door: a request that a peer hands over takes a client's way from here."""

    def __init__(self, service: Service, calls: Calls) -> None:
        self._service = service
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, call = self._service, scope[CALL]
        try:
            envelope = read_envelope(call.hop)
            endpoint = _RELAYED.get(envelope.path)
            if endpoint is None or scope["method"] != "POST" or envelope.facts.home != call.sender:
                raise ValueError("a path that is not handed over, or the home is not who sends it")
        except ValueError as error:
            answer = JSONResponse(
                ApiError(ErrorCode.INVALID_VALUE, f"no hop: {error}").body(), 400, {"connection": "close"}
            )
            await send_or_cut(answer, service, scope, receive, send)
            return
        hand_overs = service.hand_overs
        assert hand_overs is not None
        flow = RequestFlow(_ledger_of(service, envelope), service.settings.timeouts)
        client = GuestConnection(
            _with_trace(scope, envelope),
            receive,
            send,
            flow,
            service.settings.limits.max_body_bytes,
            service.client_limits(),
            lambda: service.leaving,
            call,
            envelope.facts,
            self._calls,
            hand_overs.guests,
        )
        await service.run(endpoint, flow, client)
        await client.end(flow.ledger)


def _ledger_of(service: Service, envelope: HopEnvelope) -> Ledger:
    """A guest's: under the id that its client knows, so that `raylane why` finds it in either cell."""
    facts = envelope.facts
    ledger = Ledger(envelope.request_id, facts.guest_id, envelope.path, time.monotonic(), time.time())
    ledger.gateway, ledger.cell, ledger.home = service.gateway_id, service.cell, facts.home
    waited_s = round(facts.waited_s, 6)
    ledger.decide(RequestVerdict.GUEST, facts.reason.value, ledger.arrived_s, home=facts.home, waited_s=waited_s)
    return ledger


def _with_trace(scope: Scope, envelope: HopEnvelope) -> Scope:
    """The scope with the client's trace context: what the hop's own request carries under these names is a proxy's."""
    names = {name.encode() for name in TRACE_HEADERS}
    kept = [(name, value) for name, value in scope["headers"] if name not in names]
    return {**scope, "headers": [*kept, *((name.encode(), value.encode()) for name, value in envelope.trace.items())]}


def peer_routes(service: Service, calls: Calls, pages: Mapping[str, PeerPage]) -> list[Route]:
    """The routes of the port for clients: hops, and JSON pages by their path."""
    apps: dict[str, ASGIApp] = {HOP_PATH: HopPage(service, calls), **pages}
    return [Route(path, PeerDoor(app, calls, partial(refuse_call, service))) for path, app in apps.items()]
