"""Shows this gateway's books of the models that it owns to their autoscaler (`cell/scaling_books.py`); on the port for the cell."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deployments.cell.latency import LONGEST_SPAN_S
from deployments.cell.scaling_books import SCALING_PATH, Books
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.ownership.desk import Desk


class ScalingPage:
    """Asked some times a second for each model: nothing here waits, or looks at more than the scheduler's own sums."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._desks: Mapping[str, Desk] = service.desks

    def route(self) -> Route:
        """Its route, on the server for the cell."""
        return Route(SCALING_PATH + "/{model:path}", OwnPage(self.books, self._service, quiet=True))

    async def books(self, request: Request) -> Response:
        """The books of one model."""
        name = request.path_params["model"]
        desk = self._desks.get(name)
        if desk is None:
            message = f"model = {shown(name)}: not served here; allowed: {', '.join(self._desks)}"
            raise ApiError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
        span_s = _span_s(request)
        if (own := desk.own) is None:
            raise ApiError(ErrorCode.NOT_OWNER, f"model {name!r}: this gateway does not own it")
        attainment = {one.name: one.attainment for one in self._service.spec.classes}
        books = Books(name, own.epoch, 0.0, own.snapshot(etas=False), attainment, own.latencies(span_s) if span_s > 0 else None)
        return Response(books.encode(), media_type="application/json")


def _span_s(request: Request) -> float:
    given = request.query_params.get("latency_span_s", "0")
    try:
        span_s = float(given)
    except ValueError:
        span_s = -1.0
    if not 0 <= span_s <= LONGEST_SPAN_S:
        raise ApiError(ErrorCode.INVALID_VALUE, f"latency_span_s = {shown(given)}: allowed: 0 to {LONGEST_SPAN_S:g}", param="latency_span_s")
    return span_s
