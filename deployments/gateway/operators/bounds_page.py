"""The page of a re-planner (`raylane replan`): what arrives in this cell, what its autoscalers have, and the bounds
that it orders for them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.spec import Model
from cluster.spec.base import Section
from deployments.cell.act import Act, ActKind
from deployments.cell.control import MAX_REPLICAS, SHORTEST_S
from deployments.cell.listing import Announced
from deployments.cell.orders import Orders
from deployments.gateway.operators.orders import Named, OrderForm, read_form
from deployments.gateway.operators.other_gateways import OtherGateways
from deployments.gateway.operators.status import shown_control, shown_orders
from deployments.gateway.own_page import OwnPage, body_of
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.ownership.dispatcher import Dispatcher
from deployments.scheduling import Snapshot
from deployments.scheduling.replica import ReplicaStatus

BOUNDS_PATH = "/raylane/bounds"
LONGEST_BOUND_S = 3_600.0
"""A re-planner that has ended is forgotten within so long; then the spec's own bounds hold again."""
UNSCHEDULABLE = "unschedulable"
"""The reason of an autoscaler that could not get what it wanted (`autoscaling/scaler/decision.py`)."""
_MAX_BYTES = 1 << 20
_ANSWER_S = 5.0

Count = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]


class Bound(Section):
    """No fewer than `floor` and no more than `ceiling` replicas of a model, or of a group (`MODEL@GROUP`)."""

    model: Named
    floor: Count
    ceiling: Count

    @model_validator(mode="after")
    def _is_in_order(self) -> "Bound":
        if self.floor > self.ceiling:
            raise ValueError(f"floor = {self.floor}, ceiling = {self.ceiling}: allowed: floor <= ceiling")
        return self


class BoundsForm(OrderForm):
    """Bounds of several models, all for so many seconds."""

    bounds: Annotated[tuple[Bound, ...], Field(min_length=1, max_length=10_000)]
    for_s: Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_BOUND_S)]


class BoundsPage:
    """`order` has acts written down and put in force by the directory."""

    def __init__(
        self,
        service: Service,
        announced: Announced,
        others: OtherGateways,
        region: str,
        order: Callable[..., Awaitable[Orders]],
    ) -> None:
        self._service = service
        self._announced = announced
        self._others = others
        self._region = region
        self._order = order

    def route(self) -> Route:
        return Route(BOUNDS_PATH, OwnPage(self.bounds, self._service, ("GET", "HEAD", "POST"), quiet=True))

    async def bounds(self, request: Request) -> Response:
        """The state of the cell's models; with `?here=1` of those alone that this gateway owns. POST orders bounds."""
        if request.method == "POST":
            form = read_form(BoundsForm, await body_of(request, _MAX_BYTES))
            return JSONResponse(shown_orders(await self._bound(form)))
        models = self._here()
        if request.query_params.get("here") != "1":
            for other in await self._others.ask(BOUNDS_PATH + "?here=1"):
                for name, model in other["models"].items():
                    if model["epoch"] > models.get(name, {"epoch": -1})["epoch"]:
                        models[name] = model
        return JSONResponse({"region": self._region, "unix_s": time.time(), "models": models})

    async def _bound(self, form: BoundsForm) -> Orders:
        views = {view.group_key for name in self._service.dispatchers for view in self._service.views_of(name)}
        for one in form.bounds:
            if one.model not in views:
                message = f"model = {shown(one.model)}: not served here; allowed: {', '.join(sorted(views))}"
                raise ApiError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
        now = time.time()
        until_s = now + form.for_s
        acts = [
            Act(
                now,
                ActKind.BOUND,
                one.model,
                form.by,
                form.why,
                replicas=one.floor,
                until_unix_s=until_s,
                ceiling=one.ceiling,
            )
            for one in form.bounds
        ]
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._order(*acts)
        except Exception as error:  # any failure of Ray, or of the disk under the audit
            raise ApiError(
                ErrorCode.NO_DIRECTORY, f"the directory did not accept the bounds, so they have no effect: {error!r}"
            ) from error

    def _here(self) -> dict[str, Any]:
        return {
            name: self._model(dispatcher, snapshot)
            for name, dispatcher in self._service.dispatchers.items()
            if dispatcher.own is not None and (snapshot := dispatcher.snapshot()) is not None
        }

    def _model(self, dispatcher: Dispatcher, snapshot: Snapshot) -> dict[str, Any]:
        """`flows`: what arrived since the owner's start, by lane and class. `room` (of a group): its autoscaler could
        get no more than so many replicas."""
        assert dispatcher.own is not None
        return {
            "epoch": dispatcher.own.epoch,
            "flows": [[flow.lane, flow.traffic_class, flow.arrived] for flow in snapshot.flows],
            "groups": [self._group(view, snapshot) for view in self._service.views_of(dispatcher.model.name)],
        }

    def _group(self, view: Model, snapshot: Snapshot) -> dict[str, Any]:
        own = [one for one in snapshot.replicas if one.group == view.group]
        scaling = self._announced.scaling_of(view.group_key)
        return {
            "group": view.group_key,
            "applied": view.replicas.count if scaling is None else scaling.applied,
            "ready": sum(one.status in (ReplicaStatus.READY, ReplicaStatus.EJECTED) for one in own),
            "room": scaling.requested if scaling is not None and scaling.reason == UNSCHEDULABLE else None,
            "reason": None if scaling is None else scaling.reason,
            "controls": [shown_control(one) for one in self._announced.controls_of(view.group_key)],
        }
