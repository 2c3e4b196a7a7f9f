"""The gateway's ASGI app: which path goes where. Relayed endpoints go to the service; what the gateway answers itself stands here."""

import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from deployments.gateway.connection import Receive, Scope, Send
from deployments.gateway.endpoints import ENDPOINTS, Endpoint
from deployments.gateway.errors import ApiError, ErrorCode
from deployments.gateway.inquiry import shown
from deployments.gateway.service import Service, new_ledger, outcome_of
from deployments.gateway.status import Status

log = logging.getLogger("raylane.gateway")

Handler = Callable[[Request], Awaitable[Response]]
_PATH_CHARS = 200
"""Of a path that a client made up, so much is written down."""


class RelayedEndpoint:
    """The ASGI app of one relayed path."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service = service
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        await self._service.handle(self._endpoint, scope, receive, send)


class OwnPages:
    """What the gateway answers by itself. Operators' pages are open to this machine, and to others with the cluster's secret."""

    def __init__(self, service: Service, status: Status, registry: CollectorRegistry, secret: str) -> None:
        self._service = service
        self._status = status
        self._registry = registry
        self._secret = secret
        self._started_unix_s = int(time.time())

    def routes(self) -> list[Route]:
        """The routes of these pages."""
        return [
            Route("/v1/models", OwnPage(self.models, self._service)),
            Route("/v1/models/{name:path}", OwnPage(self.model, self._service)),
            Route("/health", OwnPage(self.health, self._service, quiet=True)),
            Route("/ready", OwnPage(self.ready, self._service, quiet=True)),
            Route("/metrics", OwnPage(self._for_operators(self.metrics), self._service, quiet=True)),
            Route("/raylane/status", OwnPage(self._for_operators(self.status), self._service, quiet=True)),
            Route("/raylane/http_sd", OwnPage(self._for_operators(self.http_sd), self._service, quiet=True)),
        ]

    async def models(self, request: Request) -> Response:
        """The served models, in OpenAI's form."""
        return JSONResponse({"object": "list", "data": self._cards()})

    async def model(self, request: Request) -> Response:
        """One served model."""
        name = request.path_params["name"]
        for card in self._cards():
            if card["id"] == name:
                return JSONResponse(card)
        message = f"model = {shown(name)}: not served here; allowed: {', '.join(self._service.served_names)}"
        raise ApiError(ErrorCode.MODEL_NOT_FOUND, message, param="model")

    async def health(self, request: Request) -> Response:
        """Alive: the event loop answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Ready: every model that should have replicas has one, and the gateway is not stopping."""
        missing = self._status.models_without_replica()
        if self._service.draining or missing:
            body = {"status": "draining" if self._service.draining else "starting", "models_without_replica": missing}
            return JSONResponse(body, status_code=503, headers={"retry-after": "1"})
        return JSONResponse({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """This process's Prometheus metrics."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def status(self, request: Request) -> Response:
        """What `raylane status` shows."""
        return JSONResponse(self._status.report())

    async def http_sd(self, request: Request) -> Response:
        """Every process of the cell that has /metrics, for Prometheus' http_sd_config."""
        return JSONResponse(self._status.targets())

    def _for_operators(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            local = request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not local and not secrets.compare_digest(given.encode(), self._secret.encode()):
                raise ApiError(ErrorCode.UNAUTHORIZED, "this page needs `Authorization: Bearer <the cluster's secret>`")
            return await handler(request)

        return guarded

    def _cards(self) -> list[dict[str, Any]]:
        cards: list[dict[str, Any]] = []
        for model in (owner.model for owner in self._service.owners.values()):
            common = {"object": "model", "created": self._started_unix_s, "owned_by": "raylane", "max_model_len": model.settings.max_model_len}
            cards.append({"id": model.name, **common, "root": model.source, "parent": None})
            cards.extend({"id": adapter.name, **common, "root": adapter.source, "parent": model.name} for adapter in model.adapters)
        return cards


class OwnPage:
    """The ASGI app of one path that the gateway answers itself.

    It gives the answer its request id, errors their form, and the journal its line; not for `quiet` pages, which probes and scrapers ask for all the
    time.
    """

    def __init__(self, handler: Handler, service: Service, methods: tuple[str, ...] | None = ("GET", "HEAD"), quiet: bool = False) -> None:
        self._handler = handler
        self._service = service
        self._methods = methods
        self._quiet = quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        ledger = new_ledger(scope, scope["path"][:_PATH_CHARS])
        try:
            response = await self._answer(scope)
        except ApiError as error:
            ledger.error = error.error.code
            response = _error_response(error)
        except Exception:
            log.exception("%s failed inside the gateway", ledger.path)
            ledger.error = ErrorCode.INTERNAL.code
            response = _error_response(ApiError(ErrorCode.INTERNAL, f"internal error; request id {ledger.request_id}"))
        response.headers["x-request-id"] = ledger.request_id
        await response(scope, receive, send)
        if not self._quiet:
            ledger.status, ledger.bytes_out, ledger.ended_s = response.status_code, len(response.body), time.monotonic()
            ledger.outcome = outcome_of(ledger)
            self._service.closing.ended(ledger)

    async def _answer(self, scope: Scope) -> Response:
        if self._methods is not None and scope["method"] not in self._methods:
            allowed = ", ".join(self._methods)
            raise ApiError(ErrorCode.METHOD_NOT_ALLOWED, f"{scope['method']} {scope['path']}: allowed: {allowed}", headers={"allow": allowed})
        return await self._handler(Request(scope))


def build_app(pages: OwnPages, service: Service) -> Router:
    """The gateway's whole ASGI app. A bare Router: middleware would wrap `send` and cost a layer on every piece of a stream."""
    relayed = [Route(endpoint.path, RelayedEndpoint(service, endpoint)) for endpoint in ENDPOINTS]
    return Router([*relayed, *pages.routes()], default=OwnPage(_not_found, service, methods=None), redirect_slashes=False)


async def _not_found(request: Request) -> Response:
    raise ApiError(ErrorCode.NOT_FOUND, f"{request.method} {shown(request.url.path)}: no such path")


def _error_response(error: ApiError) -> Response:
    return JSONResponse(error.body(), status_code=error.error.status, headers=error.headers)
