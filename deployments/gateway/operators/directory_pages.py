"""What the directory keeps of the cell, as pages: the bill (`raylane cost`), and the traffic that was counted (`raylane
plan --against live`). And the settled hours as metrics."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.accounting.bill import Bill, Dimension
from deployments.gateway.own_page import OwnPage, PageQuestion, directory_answers, read_question
from deployments.gateway.service import Service
from deployments.traffic.counts import Period
from deployments.wire import to_plain

COST_PATH = "/raylane/cost"
TRAFFIC_PATH = "/raylane/traffic"
_ANSWER_S = 60.0
READ_EVERY_S = 60.0


class BillQuestion(PageQuestion):
    """Of a bill: the time (from an hour's begin on), and by what its lines are to differ."""

    since_ns: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    until_ns: Annotated[int, Field(ge=0, lt=1 << 62)] | None = None
    by: Annotated[str, Field(pattern=f"^(({'|'.join(Dimension)})(,|$))*$")] = ",".join(Dimension)

    @property
    def dimensions(self) -> list[Dimension]:
        return [Dimension(name) for name in self.by.split(",") if name]


class TrafficQuestion(PageQuestion):
    """The stretches of traffic of the last `hours`, each of so long a period."""

    period: Literal["minute", "hour"] = "hour"
    hours: Annotated[int, Field(ge=1, le=10_000)] = 24


@dataclass(eq=False)
class DirectoryPages:
    """`directory`: the handle of the cell's directory, None before there is one."""

    service: Service
    directory: Callable[[], Any]

    def routes(self) -> list[Route]:
        pages = {COST_PATH: self._cost, TRAFFIC_PATH: self._traffic}
        return [Route(path, OwnPage(page, self.service, quiet=True)) for path, page in pages.items()]

    async def bill(self, asked: BillQuestion) -> Any:
        """The bill as plain values. Raises ApiError."""
        return await self._told("cost_bill", asked.since_ns, asked.until_ns, asked.dimensions)

    async def _cost(self, request: Request) -> Response:
        """`?since_ns=...&until_ns=...&by=tenant,hour`: the bill of that time, as the directory has it."""
        return JSONResponse(await self.bill(read_question(BillQuestion, dict(request.query_params))))

    async def _traffic(self, request: Request) -> Response:
        """`?period=minute&hours=24`: a `StretchRecord`."""
        asked = read_question(TrafficQuestion, dict(request.query_params))
        since_s = time.time() - 3_600 * asked.hours
        return JSONResponse(await self._told("traffic_since", Period[asked.period.upper()], since_s))

    async def _told(self, method: str, *given: object) -> Any:
        """What the directory answers, as plain values. Raises ApiError."""
        async with directory_answers(_ANSWER_S):
            found = await getattr(self.directory(), method).remote(*given)
        return await asyncio.to_thread(to_plain, found)


class CostTotals:
    """What all settled hours cost, for the metrics."""

    def __init__(self) -> None:
        self.bill = Bill()

    async def run(self, directory: Any) -> None:
        """Reads it again and again."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    self.bill = await directory.cost_totals.remote()
            except Exception:  # any failure of Ray: the last totals stay
                pass
            await asyncio.sleep(READ_EVERY_S)
