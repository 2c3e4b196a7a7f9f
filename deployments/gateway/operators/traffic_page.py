"""The page of the traffic that the cell counted: `raylane plan --against live` asks for it."""

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.gateway.operators.other_gateways import OtherGateways
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.traffic.counts import Period
from deployments.traffic.store import StoreError, TrafficStore
from deployments.wire import to_plain

TRAFFIC_PATH = "/raylane/traffic"


class TrafficPage:
    """Gateways of one node write to one file: the answer names each file by its id, and holds it once."""

    def __init__(self, store: TrafficStore, service: Service, others: OtherGateways) -> None:
        self._store = store
        self._service = service
        self._others = others

    def route(self) -> Route:
        return Route(TRAFFIC_PATH, OwnPage(self.traffic, self._service, quiet=True))

    async def traffic(self, request: Request) -> Response:
        """`?period=minute` or `hour`, of the last `hours`; with `here=1` of this gateway's node alone.

        `missing`: gateways that did not answer, whose node's traffic may be missing.
        """
        query = request.query_params
        period, hours = query.get("period", "hour").upper(), query.get("hours", "24")
        if period not in Period.__members__:
            raise _invalid("period", period.lower(), ", ".join(name.lower() for name in Period.__members__))
        if not (hours.isdecimal() and hours.isascii() and 1 <= int(hours) <= 10_000):
            raise _invalid("hours", hours, "1 to 10000")
        stores = await asyncio.to_thread(self._read, Period[period], time.time() - 3_600 * int(hours))
        missing = 0
        if query.get("here") != "1":
            answers = await self._others.ask(f"{TRAFFIC_PATH}?period={period.lower()}&hours={hours}&here=1", dict)
            missing = len(self._others.urls) - len(answers)
            for answer in answers:
                stores |= answer["stores"]
        return JSONResponse({"stores": stores, "missing": missing})

    def _read(self, period: Period, from_unix_s: float) -> dict[str, Any]:
        """The node's counts, by the id of their file; nothing where there is no file yet."""
        if not self._store.path.exists():
            return {}
        try:
            found = self._store.read(period, from_unix_s, tenants=True)
            return {self._store.identity(): to_plain(found.record())}
        except StoreError as error:
            raise ApiError(ErrorCode.INTERNAL, str(error)) from error


def _invalid(name: str, value: str, allowed: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_VALUE, f"{name} = {shown(value)}: allowed: {allowed}", param=name)
