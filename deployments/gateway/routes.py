"""The gateway's ASGI app: which path goes where, and who may ask for it. Relayed endpoints go to the service, the
rest to the gateway's own pages.

A path that is not in the table `ACCESS` cannot be served, on neither of the two ports. Where a request comes from
says nothing: behind a reverse proxy or a load balancer on the same machine everybody comes from loopback.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from deployments.gateway.connection import Receive, Scope, Send
from deployments.gateway.cors import CorsRules, Doorstep, answer_preflight
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.endpoints import ENDPOINTS, Endpoint
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown


class Access(StrEnum):
    """What a path asks for."""

    OPEN = "open"
    """Nothing: load balancers ask for it, and it says nothing of anybody's requests."""
    KEY = "key"
    """A tenant's key, where the spec has tenants; whose it is, is the path's own affair."""
    SECRET = "secret"
    """The cluster's secret, as a bearer token: it shows or changes what is not the asker's alone."""


ACCESS: Mapping[str, Access] = MappingProxyType(
    {
        "/health": Access.OPEN,
        "/ready": Access.OPEN,
        "/ping": Access.OPEN,
        "/version": Access.KEY,
        "/load": Access.KEY,
        "/tokenizer_info": Access.KEY,
        "/v1/models": Access.KEY,
        "/v1/models/{name:path}": Access.KEY,
        "/v1/chat/completions": Access.KEY,
        "/v1/chat/completions/batch": Access.KEY,
        "/v1/completions": Access.KEY,
        "/v1/responses": Access.KEY,
        "/v1/embeddings": Access.KEY,
        "/v1/messages": Access.KEY,
        "/v1/messages/count_tokens": Access.KEY,
        "/invocations": Access.KEY,
        "/tokenize": Access.KEY,
        "/detokenize": Access.KEY,
        "/metrics": Access.SECRET,
        "/raylane/status": Access.SECRET,
        "/raylane/http_sd": Access.SECRET,
        "/raylane/requests/{request_id:path}": Access.SECRET,
        "/raylane/spec": Access.SECRET,
        "/raylane/controls": Access.SECRET,
        "/raylane/release": Access.SECRET,
        "/raylane/cordon": Access.SECRET,
        "/raylane/drain": Access.SECRET,
        "/raylane/shadow": Access.SECRET,
        "/raylane/scaling/{model:path}": Access.SECRET,
        "/raylane/lanes": Access.SECRET,
    }
)


class Door:
    """The ASGI app behind a path that asks for the secret. Who has none gets `refusal` instead."""

    def __init__(self, app: ASGIApp, secret: str, refusal: ASGIApp) -> None:
        self._app = app
        self._credentials = b"Bearer " + secret.encode()
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange; nothing of it is read before the secret was seen."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        enters = len(given) == 1 and hmac.compare_digest(given[0], self._credentials)
        await (self._app if enters else self._refusal)(scope, receive, send)


def behind_doors(routes: Sequence[Route], secret: str, refusal: ASGIApp, cors: Callable[[], CorsRules]) -> list[Route]:
    """The routes, each asking for what the table says; web pages of other origins get none of those that ask for the
    secret.

    Raises KeyError for a path that is not in it.
    """

    def guarded(route: Route) -> ASGIApp:
        return Door(route.app, secret, refusal) if ACCESS[route.path] is Access.SECRET else Doorstep(route.app, cors)

    return [Route(route.path, guarded(route)) for route in routes]


class ClientApp:
    """The ASGI app of the port for clients: relayed endpoints, and the gateway's own pages.

    A relayed endpoint is found by its path before the router is asked, and this is no coroutine of its own: every
    layer between the server and the relay would be resumed for each piece of a stream. Each path is served below the
    spec's `gateway.root_path`, too, under the same rule of access.
    """

    def __init__(self, service: Service, own: Sequence[Route], secret: str) -> None:
        self.relayed: Mapping[str, Endpoint] = {one.path: one for one in ENDPOINTS if ACCESS[one.path] is Access.KEY}
        self.pages = build_cell_app(service, own, secret)
        self._service = service

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        root = self._service.settings.root_path
        if root and scope["path"].startswith(root + "/"):
            scope["path"] = scope["path"].removeprefix(root)
        endpoint = self.relayed.get(scope["path"])
        if endpoint is None:
            return self.pages(scope, receive, send)
        preflight = self._service.cors.note(scope)
        return (
            self._service.handle(endpoint, scope, receive, send)
            if preflight is None
            else answer_preflight(send, preflight)
        )


def build_cell_app(service: Service, own: Sequence[Route], secret: str) -> Router:
    """The app of the port for the cell: the gateway's own pages, and no requests of clients."""
    routes = behind_doors(own, secret, OwnPage(_unauthorized, service, methods=None), lambda: service.cors)
    return Router(routes, default=OwnPage(_not_found, service, methods=None), redirect_slashes=False)


async def _unauthorized(request: Request) -> Response:
    raise ApiError(
        ErrorCode.UNAUTHORIZED,
        "this page needs `Authorization: Bearer <the cluster's secret>`",
        headers={"www-authenticate": "Bearer"},
    )


async def _not_found(request: Request) -> Response:
    raise ApiError(ErrorCode.NOT_FOUND, f"{request.method} {shown(request.url.path)}: no such path")
