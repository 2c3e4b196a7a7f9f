"""Who may see an operators' page: this machine, and others with the cluster's secret. To change anything always takes the secret: behind a load
balancer on the same machine everybody looks local.
"""

import ipaddress
import secrets

from starlette.requests import Request
from starlette.responses import Response

from deployments.gateway.errors import ApiError, ErrorCode
from deployments.gateway.own_page import Handler

_READS = frozenset({"GET", "HEAD"})


def operators_only(handler: Handler, secret: str, open_here: bool = True) -> Handler:
    """The handler behind its door. `open_here`: this machine may read without the secret. Raises ApiError."""

    async def guarded(request: Request) -> Response:
        local = open_here and request.method in _READS and request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not local and not secrets.compare_digest(given.encode(), secret.encode()):
            raise ApiError(ErrorCode.UNAUTHORIZED, "this page needs `Authorization: Bearer <the cluster's secret>`")
        return await handler(request)

    return guarded
