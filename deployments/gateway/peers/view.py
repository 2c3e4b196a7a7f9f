"""One view of all cells: what a gateway says of its own cell to an operator at another one, and the page where an
operator asks any cell for all of them.

The cell that is asked passes the question on to its peers, all at once, and waits for none longer than `WITHIN_S`; for
a bill, `BILL_WITHIN_S`. A cell that does not answer is shown as such, with what it said last and how old that is by the
clock of who asks. Reading changes nothing anywhere: orders go to the cell itself.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.gateway.operators.directory_pages import BillQuestion, DirectoryPages
from deployments.gateway.operators.report import RegionAnswer, RegionsReport
from deployments.gateway.operators.status import Status
from deployments.gateway.own_page import OwnPage, read_question
from deployments.gateway.peers.client import PeerClient, PeerFailed
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.wire import to_plain

VIEW_PATH = "/raylane/peers/view"
REGIONS_PATH = "/raylane/regions"
WITHIN_S = 2.5
"""A cell asks its own gateways for up to 2 s."""
BILL_WITHIN_S = 60.0

Find = Callable[[str], Awaitable[dict[str, Any] | None]]
"""The record of a request of this cell by its id, as `raylane why` shows it."""


class View(StrEnum):
    """What may be looked at."""

    STATUS = "status"
    """What `raylane status` and `top` show."""
    REQUEST = "request"
    """One request, by its id."""
    COST = "cost"
    """The bill of its replicas."""


class ViewQuestion(BillQuestion):
    """What is asked for, and which request or bill."""

    view: View
    request_id: Annotated[str, Field(max_length=256)] = ""


@dataclass(eq=False)
class CellView:
    """Of this cell: answers peers and the cell's own operators alike."""

    status: Status
    find: Find
    costs: DirectoryPages

    async def answer(self, sender: str, content: Any) -> Any:
        """The answer to a peer's question, as JSON has it. Raises ApiError."""
        return await self.look(read_question(ViewQuestion, content))

    async def look(self, asked: ViewQuestion) -> Any:
        """What is asked for, as JSON has it. Raises ApiError."""
        match asked.view:
            case View.STATUS:
                return to_plain(await self.status.report())
            case View.REQUEST:
                return {"record": await self.find(asked.request_id)}
            case View.COST:
                return await self.costs.bill(asked)


@dataclass(eq=False)
class RegionsPage:
    """`GET REGIONS_PATH?view=...`: all cells, or the one that `region` names. `home`: this cell; `client`: None for one
    without peers."""

    service: Service
    home: str
    own: CellView
    client: PeerClient | None
    _last: dict[str, tuple[float, Any]] = field(init=False, default_factory=dict)
    """By peer, its last status, and when it was asked for."""

    def route(self) -> Route:
        return Route(REGIONS_PATH, OwnPage(self._page, self.service, quiet=True))

    async def _page(self, request: Request) -> Response:
        query = dict(request.query_params)
        region = query.pop("region", None)
        endpoints = {one.name: one.endpoint or "" for one in self.service.spec.regions}
        if self.client is None:
            message = "this cell has no peers; needed: a spec with `peering`"
            raise ApiError(ErrorCode.NOT_FOUND, message)
        if region is not None and region not in endpoints:
            raise ApiError(
                ErrorCode.INVALID_VALUE, f"region = {shown(region)}: unknown; allowed: {', '.join(endpoints)}"
            )
        question, asked = (
            read_question(ViewQuestion, query),
            endpoints if region is None else {region: endpoints[region]},
        )
        answers = await asyncio.gather(*(self._ask(name, asked[name], question) for name in asked))
        return JSONResponse(to_plain(RegionsReport(self.home, tuple(answers))))

    async def _ask(self, name: str, endpoint: str, question: ViewQuestion) -> RegionAnswer[Any]:
        if name == self.home or self.client is None:
            try:
                return RegionAnswer(name, endpoint, True, 0.0, "", await self.own.look(question))
            except ApiError as error:
                return RegionAnswer(name, endpoint, False, None, error.message, None)
        is_status, asked_s = question.view is View.STATUS, time.monotonic()
        within_s = BILL_WITHIN_S if question.view is View.COST else WITHIN_S
        try:
            content = await self.client.post_json(name, VIEW_PATH, question.model_dump(mode="json"), within_s)
            json.dumps(content, allow_nan=False)  # one number that is none would spoil the answers of all
        except (PeerFailed, ValueError) as error:
            known = self._last.get(name) if is_status else None
            if known is None:
                return RegionAnswer(name, endpoint, False, None, str(error), None)
            return RegionAnswer(name, endpoint, False, time.monotonic() - known[0], str(error), known[1])
        if is_status:
            self._last[name] = asked_s, content
        return RegionAnswer(name, endpoint, True, time.monotonic() - asked_s, "", content)
