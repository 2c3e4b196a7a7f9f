"""Where a model's shadow policy is made the active one, and that is taken back: a change of the spec for the whole
cell, written down as orders are.

An autoscaler that finds a promoted policy wanting takes it back here, too.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.spec import ClusterSpec, exchanged
from deployments.cell.act import Act, ActKind
from deployments.cell.listing import Announced
from deployments.cell.orders import standing
from deployments.gateway.operators.orders import ShadowForm, read_form
from deployments.gateway.own_page import ORDER_S, OwnPage, body_of, directory_answers
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode

SHADOW_PATH = "/raylane/shadow"
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ShadowExchange:
    """The act, and the spec with the policies in each other's place."""

    act: Act
    spec: ClusterSpec


@dataclass(eq=False)
class ShadowPage:
    """`exchange` makes the change of the spec that is in force at that moment, has it written down and puts it in force
    in the whole cell; it returns None where the spec was changed meanwhile."""

    service: Service
    announced: Announced
    exchange: Callable[[Callable[[ClusterSpec], ShadowExchange]], Awaitable[ShadowExchange | None]]

    def route(self) -> Route:
        return Route(SHADOW_PATH, OwnPage(self._page, self.service, ("POST",)))

    async def _page(self, request: Request) -> Response:
        """Promotes the shadow, or takes the last promotion back. It is written down and done, or neither; which, is
        unknown where no answer comes: `raylane explain` shows which policy is active."""
        form = read_form(ShadowForm, await body_of(request, _MAX_BYTES))
        async with directory_answers(ORDER_S):
            done = await self.exchange(lambda spec: self._exchanged(spec, form))
        if done is None:
            raise ApiError(
                ErrorCode.SPEC_CHANGED, "the spec was changed at the same time, so nothing was done; try again"
            )
        spec = done.spec
        section = spec.autoscaling_of(spec.view(form.model))
        assert section.shadow is not None
        reported = {"policy": section.policy, **section.model_dump(exclude_defaults=True)}
        return JSONResponse(
            {"model": form.model, "active": section.policy, "shadow": section.shadow.policy, "autoscaling": reported}
        )

    def _exchanged(self, spec: ClusterSpec, form: ShadowForm) -> ShadowExchange:
        try:
            desired, now = exchanged(spec, form.model), standing(spec, form.model)
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_VALUE, str(error), param="model") from error
        assert now is not None  # else it could not be exchanged
        kind = ActKind(form.kind)
        if kind is ActKind.ROLLBACK and not form.force and self.announced.orders.promotion_of(form.model) != now:
            raise ApiError(
                ErrorCode.INVALID_VALUE,
                f"model {form.model!r}: there is no promotion to roll back",
                param="model",
            )
        return ShadowExchange(
            Act(time.time(), kind, form.model, form.by, form.why, policy=now.over, over=now.policy), desired
        )
