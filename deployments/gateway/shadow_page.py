"""Where a model's shadow law is made the active one, and that is taken back: a change of the spec for the whole cell, written down as orders are.

An autoscaler that finds a promoted law wanting takes it back here, too.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.spec import ClusterSpec, exchanged
from deployments.announced import Announced
from deployments.controls.act import Act, ActKind
from deployments.controls.orders import Orders
from deployments.gateway.errors import ApiError, ErrorCode
from deployments.gateway.operators_only import operators_only
from deployments.gateway.order_forms import ShadowForm, read_form
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service

SHADOW_PATH = "/raylane/shadow"
_ANSWER_S = 5.0
_MOST_BYTES = 64 << 10


class ShadowPage:
    """`order` has an act written down by the directory, `apply` puts a changed spec in force in the whole cell."""

    def __init__(
        self,
        service: Service,
        announced: Announced,
        secret: str,
        order: Callable[[Act], Awaitable[Orders]],
        apply: Callable[[ClusterSpec], Awaitable[None]],
    ) -> None:
        self._service = service
        self._announced = announced
        self._secret = secret
        self._order = order
        self._apply = apply

    def route(self) -> Route:
        """Its route."""
        return Route(SHADOW_PATH, OwnPage(operators_only(self.exchange, self._secret), self._service, ("POST",)))

    async def exchange(self, request: Request) -> Response:
        """Promotes the shadow, or takes the last promotion back. First it is written down, then it is done."""
        body = await request.body()
        if len(body) > _MOST_BYTES:
            raise ApiError(ErrorCode.BODY_TOO_LARGE, f"the order has {len(body)} bytes; allowed: at most {_MOST_BYTES}")
        form = read_form(ShadowForm, body)
        kind = ActKind(form.kind)
        if kind is ActKind.ROLLBACK and not form.force and form.model not in self._announced.orders.promoted:
            raise ApiError(ErrorCode.INVALID_VALUE, f"model {form.model!r}: no promotion is in force that could be taken back", param="model")
        try:
            spec = exchanged(self._service.spec, form.model)
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_VALUE, str(error), param="model") from error
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._order(Act(time.time(), kind, form.model, form.by, form.why))
                await self._apply(spec)
        except Exception as error:  # any failure of Ray, or of the disk under the audit
            raise ApiError(ErrorCode.NO_DIRECTORY, f"the directory did not take the order: {error!r}") from error
        section = spec.autoscaling_of(spec.model(form.model))
        assert section.shadow is not None
        told = {"policy": section.policy, **section.model_dump(exclude_defaults=True)}
        return JSONResponse({"model": form.model, "active": section.policy, "shadow": section.shadow.policy, "autoscaling": told})
