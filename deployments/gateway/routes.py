"""The gateway's ASGI app: which path goes where. Relayed endpoints go to the service, the rest to the gateway's own pages."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from deployments.gateway.access import behind_doors
from deployments.gateway.connection import Receive, Scope, Send
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.endpoints import ENDPOINTS, Endpoint
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown


class RelayedEndpoint:
    """The ASGI app of one relayed path."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service = service
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        await self._service.handle(self._endpoint, scope, receive, send)


def build_app(service: Service, own: Sequence[Route], secret: str) -> Router:
    """The gateway's whole ASGI app. A bare Router: middleware would wrap `send` and cost a layer on every piece of a stream."""
    return build_cell_app(service, [*(Route(endpoint.path, RelayedEndpoint(service, endpoint)) for endpoint in ENDPOINTS), *own], secret)


def build_cell_app(service: Service, own: Sequence[Route], secret: str) -> Router:
    """The app of the port for the cell: the gateway's own pages, and no requests of clients. `access.py` says who may ask for what."""
    routes = behind_doors(own, secret, OwnPage(_unauthorized, service, methods=None), lambda: service.cors)
    return Router(routes, default=OwnPage(_not_found, service, methods=None), redirect_slashes=False)


async def _unauthorized(request: Request) -> Response:
    raise ApiError(ErrorCode.UNAUTHORIZED, "this page needs `Authorization: Bearer <the cluster's secret>`", headers={"www-authenticate": "Bearer"})


async def _not_found(request: Request) -> Response:
    raise ApiError(ErrorCode.NOT_FOUND, f"{request.method} {shown(request.url.path)}: no such path")
