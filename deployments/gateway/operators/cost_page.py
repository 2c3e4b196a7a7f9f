"""The bill, for `raylane cost`, and the settled hours as metrics."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.accounting.bill import Bill, Dimension
from deployments.gateway.own_page import OwnPage, invalid
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.wire import to_plain

COST_PATH = "/raylane/cost"
_ANSWER_S = 60.0
READ_EVERY_S = 60.0


class BillQuestion(BaseModel):
    """Of a bill: the time (from an hour's begin on), and by what its lines are to differ."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    since_ns: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    until_ns: Annotated[int, Field(ge=0, lt=1 << 62)] | None = None
    by: Annotated[str, Field(pattern=f"^({'|'.join(Dimension)}|,)*$")] = ",".join(Dimension)

    @property
    def dimensions(self) -> list[Dimension]:
        return [Dimension(name) for name in self.by.split(",") if name]


class CostPages:
    """`directory`: the handle of the cell's directory, None before there is one."""

    def __init__(self, service: Service, directory: Callable[[], Any]) -> None:
        self._service = service
        self._directory = directory

    def route(self) -> Route:
        return Route(COST_PATH, OwnPage(self._page, self._service, quiet=True))

    async def _page(self, request: Request) -> Response:
        """`?since_ns=...&until_ns=...&by=tenant,hour`: the bill of that time, as `cell/cost_calls.py` has it."""
        try:
            asked = BillQuestion.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise invalid(error) from None
        return JSONResponse(await self.bill(asked))

    async def bill(self, asked: BillQuestion) -> Any:
        """The bill as plain values. Raises ApiError."""
        directory = self._directory()
        try:
            async with asyncio.timeout(_ANSWER_S):
                found = await directory.cost_bill.remote(asked.since_ns, asked.until_ns, asked.dimensions)
        except Exception as error:  # any failure of Ray
            raise ApiError(ErrorCode.NO_DIRECTORY, f"the directory does not answer: {error!r}") from error
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
