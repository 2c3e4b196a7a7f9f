"""Where operators give their orders: hold and pin a model's replicas, cordon and drain one. Each is written down by the directory (`cell/act.py`).

A drain goes to the replicas themselves, whether the directory answers or not: a machine that is to be taken away waits for nobody.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.spec import Model
from deployments.cell.act import Act, ActKind
from deployments.cell.announced import Announced
from deployments.cell.orders import Orders
from deployments.gateway.feeds import ReplicaFeed
from deployments.gateway.operators.chosen_replica import chosen
from deployments.gateway.operators.order_forms import ControlForm, CordonForm, DrainForm, ReleaseForm, read_form
from deployments.gateway.operators.orders_shown import shown_orders
from deployments.gateway.own_page import Handler, OwnPage, body_of
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.protocol import DRAIN_PATH, DrainReason, ReplicaFacts

log = logging.getLogger("raylane.controls")

_ANSWER_S = 5.0
_MOST_BYTES = 64 << 10


class OrderPages:
    """`order` has an act written down and put in force by the directory. `feeds` are those of the cell's replicas, by their ids."""

    def __init__(
        self,
        service: Service,
        feeds: Mapping[str, ReplicaFeed],
        announced: Announced,
        session: aiohttp.ClientSession,
        order: Callable[[Act], Awaitable[Orders]],
    ) -> None:
        self._service = service
        self._feeds = feeds
        self._announced = announced
        self._session = session
        self._order = order

    def routes(self) -> list[Route]:
        """The routes of these pages."""
        return [
            self._route("/raylane/controls", self.controls, ("GET", "HEAD", "POST")),
            self._route("/raylane/release", self.release),
            self._route("/raylane/cordon", self.cordon),
            self._route("/raylane/drain", self.drain),
        ]

    async def controls(self, request: Request) -> Response:
        """What is in force; POST holds or pins the number of a model's replicas."""
        if request.method != "POST":
            return JSONResponse(shown_orders(self._announced.orders))
        form = read_form(ControlForm, await body_of(request, _MOST_BYTES))
        most = self._model(form.model).replicas.max
        if most is not None and form.replicas > most:
            message = f"replicas = {form.replicas}: allowed: at most {most}, the model's replicas.max"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="replicas")
        now = time.time()
        act = Act(now, ActKind(form.kind), form.model, form.by, form.why, replicas=form.replicas, until_unix_s=now + form.for_s)
        return await self._in_force(act)

    async def release(self, request: Request) -> Response:
        """Ends what holds or pins a model."""
        form = read_form(ReleaseForm, await body_of(request, _MOST_BYTES))
        self._model(form.model)
        return await self._in_force(Act(time.time(), ActKind.RELEASE, form.model, form.by, form.why))

    async def cordon(self, request: Request) -> Response:
        """Keeps new work off a replica, or no more."""
        form = read_form(CordonForm, await body_of(request, _MOST_BYTES))
        models = {cordon.replica_id: cordon.model for cordon in self._announced.orders.cordons}
        if not form.undo:
            models = {replica_id: feed.facts.model for replica_id, feed in self._feeds.items()}
        replica_id = chosen("replica", form.replica, models)
        kind = ActKind.UNCORDON if form.undo else ActKind.CORDON
        return await self._in_force(Act(time.time(), kind, models[replica_id], form.by, form.why, replica_id), replica=replica_id)

    async def drain(self, request: Request) -> Response:
        """Has replicas drain: they finish what they have, take nothing new, and are replaced."""
        form = read_form(DrainForm, await body_of(request, _MOST_BYTES))
        there = [feed.facts for feed in self._feeds.values()]
        if form.replica is not None:
            wanted = chosen("replica", form.replica, (facts.replica_id for facts in there))
            meant = [facts for facts in there if facts.replica_id == wanted]
        else:
            wanted = chosen("node", form.node or "", (facts.node_id for facts in there))
            meant = [facts for facts in there if facts.node_id == wanted]
        answers = await asyncio.gather(*(self._drain(facts, form.reason) for facts in meant))
        failed = {facts.replica_id: error for facts, error in zip(meant, answers, strict=True) if error is not None}
        draining = [facts for facts in meant if facts.replica_id not in failed]
        audited = await self._audited(form, draining)
        return JSONResponse({"draining": [facts.replica_id for facts in draining], "failed": failed, "audited": audited})

    async def _drain(self, facts: ReplicaFacts, reason: DrainReason) -> str | None:
        """Tells one replica; what went wrong, if anything."""
        try:
            async with asyncio.timeout(_ANSWER_S), self._session.post(facts.url + DRAIN_PATH, json={"reason": reason}) as response:
                return None if response.status == 202 else f"it answered {response.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"it does not answer: {error!r}"

    async def _audited(self, form: DrainForm, drained: list[ReplicaFacts]) -> bool:
        try:
            for facts in drained:
                await self._told(Act(time.time(), ActKind.DRAIN, facts.model, form.by, form.why, facts.replica_id, reason=form.reason))
        except ApiError as error:
            log.warning("a drain by %s was not written down: %s", form.by, error.message)
            return False
        return True

    async def _in_force(self, act: Act, **more: str) -> Response:
        return JSONResponse({**shown_orders(await self._told(act)), **more})

    async def _told(self, act: Act) -> Orders:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._order(act)
        except Exception as error:  # any failure of Ray, or of the disk under the audit
            raise ApiError(ErrorCode.NO_DIRECTORY, f"the directory did not take the order, nothing is in force: {error!r}") from error

    def _model(self, name: str) -> Model:
        desk = self._service.desks.get(name)
        if desk is None:
            message = f"model = {shown(name)}: not served here; allowed: {', '.join(self._service.desks)}"
            raise ApiError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
        return self._service.spec.model(name)

    def _route(self, path: str, handler: Handler, methods: tuple[str, ...] = ("POST",)) -> Route:
        return Route(path, OwnPage(handler, self._service, methods))
