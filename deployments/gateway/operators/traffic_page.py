"""The page of the traffic that the cell counted: `raylane plan --against live` asks for it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.traffic.counts import Period
from deployments.wire import to_plain

TRAFFIC_PATH = "/raylane/traffic"
_ANSWER_S = 60.0


class TrafficPage:
    """`directory`: the handle of the cell's directory, None before there is one."""

    def __init__(self, service: Service, directory: Callable[[], Any]) -> None:
        self._service = service
        self._directory = directory

    def route(self) -> Route:
        return Route(TRAFFIC_PATH, OwnPage(self.traffic, self._service, quiet=True))

    async def traffic(self, request: Request) -> Response:
        """`?period=minute` or `hour`, of the last `hours`: a `StretchRecord`."""
        query = request.query_params
        period, hours = query.get("period", "hour").upper(), query.get("hours", "24")
        if period not in Period.__members__:
            raise _invalid("period", period.lower(), ", ".join(name.lower() for name in Period.__members__))
        if not (hours.isdecimal() and hours.isascii() and 1 <= int(hours) <= 10_000):
            raise _invalid("hours", hours, "1 to 10000")
        directory, since_s = self._directory(), time.time() - 3_600 * int(hours)
        try:
            async with asyncio.timeout(_ANSWER_S):
                found = await directory.traffic_since.remote(Period[period], since_s)
        except Exception as error:  # any failure of Ray
            raise ApiError(ErrorCode.NO_DIRECTORY, f"the directory does not answer: {error!r}") from error
        return JSONResponse(await asyncio.to_thread(to_plain, found))


def _invalid(name: str, value: str, allowed: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_VALUE, f"{name} = {shown(value)}: allowed: {allowed}", param=name)
