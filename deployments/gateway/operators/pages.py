"""The operators' pages: metrics, status, one request's record, the spec in force. `entrance.py` says who sees them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.spec import ClusterSpec
from deployments.gateway.operators.live_spec import LIVE, changes_between
from deployments.gateway.operators.other_gateways import OtherGateways
from deployments.gateway.operators.report import STATUS_PATH
from deployments.gateway.operators.status import Status
from deployments.gateway.own_page import ORDER_S, Handler, OwnPage, body_of, directory_answers, invalid
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.telemetry.journal import Recent
from deployments.wire import to_plain

_MAX_SPEC_BYTES = 8 << 20


@dataclass(eq=False)
class OperatorPages:
    """`apply` puts a changed spec in force in the whole cell."""

    service: Service
    cell_status: Status
    recent: Recent
    others: OtherGateways
    registry: CollectorRegistry
    apply: Callable[[ClusterSpec], Awaitable[None]]

    def routes(self) -> list[Route]:
        return [
            self._route("/metrics", self.metrics),
            self._route(STATUS_PATH, self.status),
            self._route("/raylane/http_sd", self.http_sd),
            self._route("/raylane/requests/{request_id:path}", self.request),
            self._route("/raylane/spec", self.spec, ("GET", "HEAD", "PUT")),
        ]

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    async def status(self, request: Request) -> Response:
        """A `CellReport`, or with `?here=1` this gateway's own `GatewayAnswer`."""
        return JSONResponse(to_plain(self.cell_status.here() if _here(request) else await self.cell_status.report()))

    async def http_sd(self, request: Request) -> Response:
        """Every process of the cell that has /metrics, for Prometheus' http_sd_config."""
        return JSONResponse(self.cell_status.targets())

    async def request(self, request: Request) -> Response:
        """The record of one of the last requests, here or at another gateway, and which of its replicas have ended:
        what `raylane why` shows."""
        request_id = request.path_params["request_id"]
        found = self._here(request_id) if _here(request) else await self.find(request_id)
        if found is None:
            message = (
                f"request {shown(request_id)} is not among the last {len(self.recent)} that ended here; older ones "
                "are in the trace file"
            )
            raise ApiError(ErrorCode.NOT_FOUND, message)
        return JSONResponse(found)

    async def find(self, request_id: str) -> dict[str, Any] | None:
        """The record of one of the last requests of the cell."""
        if (found := self._here(request_id)) is not None:
            return found
        answers = await self.others.ask(f"/raylane/requests/{quote(request_id, safe='')}?here=1", dict)
        return answers[0] if answers else None

    def _here(self, request_id: str) -> dict[str, Any] | None:
        ledger = self.recent.get(request_id)
        if ledger is None:
            return None
        placed_on = {str(decision.facts["replica"]) for decision in ledger.decisions if "replica" in decision.facts}
        return {**ledger.record(), "departures": to_plain(self.cell_status.departures_of(placed_on))}

    async def spec(self, request: Request) -> Response:
        """The spec in force; PUT changes what can change without a restart, all of it or nothing. `?dry_run=1` only
        says what would change."""
        if request.method != "PUT":
            return Response(self.service.spec.model_dump_json(), media_type="application/json")
        body = await body_of(request, _MAX_SPEC_BYTES)
        try:
            desired = ClusterSpec.model_validate_json(body)
        except ValidationError as error:
            raise invalid(error) from None
        changes = changes_between(self.service.spec, desired)
        frozen = [change for change in changes if not change.is_live]
        if frozen:
            keys = ", ".join(change.key for change in frozen)
            raise ApiError(
                ErrorCode.NEEDS_RESTART,
                f"{keys}: needs a restart of the cluster; allowed to change while it runs: {', '.join(LIVE)}",
            )
        try:
            self.service.new_cache(desired.gateway.cache)
        except RuntimeError as error:
            raise ApiError(ErrorCode.INVALID_VALUE, str(error), param="gateway.cache.semantic") from error
        if changes and request.query_params.get("dry_run") != "1":
            async with directory_answers(ORDER_S):
                await self.apply(desired)
        return JSONResponse(
            {"changes": [{"key": change.key, "from": change.old, "to": change.new} for change in changes]}
        )

    def _route(self, path: str, handler: Handler, methods: tuple[str, ...] = ("GET", "HEAD")) -> Route:
        return Route(path, OwnPage(handler, self.service, methods, quiet=True))


def _here(request: Request) -> bool:
    """Whether only this gateway is asked, by another one."""
    return request.query_params.get("here") == "1"
