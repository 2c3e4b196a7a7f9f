"""Where operators give their orders: hold and pin a model's replicas, cordon and drain one. Each is written down by
the directory (`cell/act.py`).

Orders are closed JSON objects, whose errors name the key, the value and what is allowed. A drain goes to the
replicas themselves, whether the directory answers or not: a machine that is to be taken away waits for nobody.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import aiohttp
from pydantic import Field, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.spec import Model, problem_lines
from cluster.spec.base import Section
from deployments.cell.act import Act, ActKind
from deployments.cell.control import LONGEST_S, MAX_REPLICAS, SHORTEST_S
from deployments.cell.listing import Announced
from deployments.cell.orders import Orders
from deployments.gateway.feeds import ReplicaFeed
from deployments.gateway.own_page import ORDER_S, Handler, OwnPage, body_of, directory_answers
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import not_served, shown
from deployments.protocol import DRAIN_PATH, DrainReason, ReplicaFacts
from deployments.scheduling import LadderMode, LadderOrder
from deployments.scheduling.policy import ladder_of
from deployments.wire import to_plain

Form = TypeVar("Form", bound="OrderForm")
Text = Annotated[str, Field(max_length=1_000)]
Named = Annotated[str, Field(min_length=1, max_length=200)]


class OrderForm(Section):
    """`by`: who orders it, as known on the machine of the command; `why` is for the audit."""

    by: Named
    why: Text = ""


class ControlForm(OrderForm):
    """A hold (no fewer than so many `replicas`) or a pin (exactly so many) of a model, or of a group (`MODEL@GROUP`),
    for so many seconds."""

    model: Named
    kind: Literal["hold", "pin"]
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
    for_s: Annotated[float, Field(ge=SHORTEST_S, le=LONGEST_S)]

    @model_validator(mode="after")
    def _holds_something(self) -> "ControlForm":
        if self.kind == "hold" and not self.replicas:
            raise ValueError("replicas = 0: allowed: at least 1 for a hold; to have none is a pin")
        return self


class ReleaseForm(OrderForm):
    """Ends what holds or pins a model."""

    model: Named


class CordonForm(OrderForm):
    """Keeps new work off a replica (the whole of its id, or its beginning or end), or with `undo` no more."""

    replica: Named
    undo: bool = False


class DrainForm(OrderForm):
    """Drains a replica, or all of a node, by the whole, the beginning or the end of its id."""

    replica: Named | None = None
    node: Named | None = None
    reason: Literal[DrainReason.OPERATOR, DrainReason.SPOT_NOTICE] = DrainReason.OPERATOR

    @model_validator(mode="after")
    def _names_one(self) -> "DrainForm":
        if (self.replica is None) == (self.node is None):
            raise ValueError(f"replica = {self.replica!r}, node = {self.node!r}: allowed: one of the two")
        return self


class ShadowForm(OrderForm):
    """Makes the shadow policy of a model the active one, or takes that back; with `force` also where a changed spec did
    it, not an order."""

    model: Named
    kind: Literal["promote", "rollback"]
    force: bool = False


class LadderForm(OrderForm):
    """How far the ladder of a model goes (`at`), or may go (`at_most`), to the named `step` (empty: none); `auto`
    leaves it to itself."""

    model: Named
    mode: LadderMode
    step: Annotated[str, Field(max_length=200)] = ""


def read_form(kind: type[Form], body: bytes) -> Form:
    """The form in a body. Raises ApiError."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            "; ".join(problem_lines(error, kind)),
            param=".".join(map(str, problem["loc"])) or None,
        ) from None


def chosen(what: str, name: str, known: Iterable[str]) -> str:
    """The one of the `known` ids that is `name`, or else begins or ends with it. Raises ApiError, which lists what
    there is."""
    ids = sorted(set(known))
    if name in ids:
        return name
    found = [one for one in ids if name and (one.startswith(name) or one.endswith(name))]
    if len(found) == 1:
        return found[0]
    if found:
        message = (
            f"{what} = {shown(name)}: ambiguous; allowed: a beginning or end that only one of these has: "
            f"{', '.join(found)}"
        )
        raise ApiError(ErrorCode.INVALID_VALUE, message, param=what)
    raise ApiError(
        ErrorCode.NOT_FOUND, f"{what} = {shown(name)}: unknown; there are: {', '.join(ids) or 'none'}", param=what
    )


log = logging.getLogger("raylane.controls")

_ANSWER_S = 5.0
_MAX_BYTES = 64 << 10


@dataclass(eq=False)
class OrderPages:
    """`order` has an act written down and put in force by the directory. `feeds` are those of the cell's replicas, by
    their ids."""

    service: Service
    feeds: Mapping[str, ReplicaFeed]
    announced: Announced
    session: aiohttp.ClientSession
    order: Callable[[Act], Awaitable[Orders]]

    def routes(self) -> list[Route]:
        return [
            self._route("/raylane/controls", self.controls, ("GET", "HEAD", "POST")),
            self._route("/raylane/release", self.release),
            self._route("/raylane/cordon", self.cordon),
            self._route("/raylane/drain", self.drain),
            self._route("/raylane/ladder", self.ladder),
        ]

    async def controls(self, request: Request) -> Response:
        """What is in force; POST holds or pins the number of a model's replicas."""
        if request.method != "POST":
            return JSONResponse(_plain(self.announced.orders))
        form = read_form(ControlForm, await body_of(request, _MAX_BYTES))
        maximum = self._model(form.model).replicas.max
        if maximum is not None and form.replicas > maximum:
            message = f"replicas = {form.replicas}: allowed: at most {maximum}, the model's replicas.max"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="replicas")
        now = time.time()
        act = Act(
            now,
            ActKind(form.kind),
            form.model,
            form.by,
            form.why,
            replicas=form.replicas,
            until_unix_s=now + form.for_s,
        )
        return await self._in_force(act)

    async def release(self, request: Request) -> Response:
        """Ends what holds or pins a model; `ended`: what there was."""
        form = read_form(ReleaseForm, await body_of(request, _MAX_BYTES))
        self._model(form.model)
        before = self.announced.orders.of(form.model, time.time())
        return await self._in_force(
            Act(time.time(), ActKind.RELEASE, form.model, form.by, form.why), ended=to_plain(before)
        )

    async def cordon(self, request: Request) -> Response:
        """Keeps new work off a replica, or no more."""
        form = read_form(CordonForm, await body_of(request, _MAX_BYTES))
        models = {cordon.replica_id: cordon.model for cordon in self.announced.orders.cordons}
        if not form.undo:
            models = {replica_id: feed.facts.model for replica_id, feed in self.feeds.items()}
        replica_id = chosen("replica", form.replica, models)
        kind = ActKind.UNCORDON if form.undo else ActKind.CORDON
        return await self._in_force(
            Act(time.time(), kind, models[replica_id], form.by, form.why, replica_id), replica=replica_id
        )

    async def ladder(self, request: Request) -> Response:
        """Says how far a model's ladder goes, or leaves it to itself."""
        form = read_form(LadderForm, await body_of(request, _MAX_BYTES))
        model = self.service.dispatcher_of(form.model).model
        names = [one.name for one in ladder_of(self.service.spec, model)]
        if form.step and form.step not in names:
            message = f"step = {shown(form.step)}: allowed: {', '.join(names) or 'none, the model has no ladder'}"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param="step")
        order = LadderOrder(form.mode, form.step)
        act = Act(time.time(), ActKind.LADDER, model.name, form.by, form.why, ladder=order)
        return await self._in_force(act, model=model.name)

    async def drain(self, request: Request) -> Response:
        """Has replicas drain: they finish what they have, take nothing new, and are replaced."""
        form = read_form(DrainForm, await body_of(request, _MAX_BYTES))
        there = [feed.facts for feed in self.feeds.values()]
        if form.replica is not None:
            desired = chosen("replica", form.replica, (facts.replica_id for facts in there))
            meant = [facts for facts in there if facts.replica_id == desired]
        else:
            desired = chosen("node", form.node or "", (facts.node_id for facts in there))
            meant = [facts for facts in there if facts.node_id == desired]
        answers = await asyncio.gather(*(self._drain(facts, form.reason) for facts in meant))
        failed = {facts.replica_id: error for facts, error in zip(meant, answers, strict=True) if error is not None}
        draining = [facts for facts in meant if facts.replica_id not in failed]
        audited = await self._audited(form, draining)
        return JSONResponse(
            {"draining": [facts.replica_id for facts in draining], "failed": failed, "audited": audited}
        )

    async def _drain(self, facts: ReplicaFacts, reason: DrainReason) -> str | None:
        """Tells one replica; what went wrong, if anything."""
        try:
            async with (
                asyncio.timeout(_ANSWER_S),
                self.session.post(facts.url + DRAIN_PATH, json={"reason": reason}) as response,
            ):
                return None if response.status == 202 else f"it answered {response.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"it does not answer: {error!r}"

    async def _audited(self, form: DrainForm, drained: list[ReplicaFacts]) -> bool:
        try:
            for facts in drained:
                await self._reported(
                    Act(
                        time.time(), ActKind.DRAIN, facts.model, form.by, form.why, facts.replica_id, reason=form.reason
                    )
                )
        except ApiError as error:
            log.warning("a drain by %s was not written down: %s", form.by, error.message)
            return False
        return True

    async def _in_force(self, act: Act, **more: Any) -> Response:
        return JSONResponse({**_plain(await self._reported(act)), **more})

    async def _reported(self, act: Act) -> Orders:
        async with directory_answers(ORDER_S):
            return await self.order(act)

    def _model(self, group_key: str) -> Model:
        """The view that an order names: a model, or where it has several groups, one of these."""
        views = {view.group_key: view for name in self.service.dispatchers for view in self.service.views_of(name)}
        if group_key not in views:
            raise not_served(group_key, views)
        return views[group_key]

    def _route(self, path: str, handler: Handler, methods: tuple[str, ...] = ("POST",)) -> Route:
        return Route(path, OwnPage(handler, self.service, methods))


def _plain(orders: Orders) -> dict[str, Any]:
    controls = [{"model": model, **to_plain(control)} for model, control in orders.controls]
    return {"controls": controls, "cordons": to_plain(orders.cordons), "ladders": to_plain(orders.ladders)}
