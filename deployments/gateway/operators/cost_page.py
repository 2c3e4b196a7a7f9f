"""The files of which bills are made, for `raylane cost` on another machine, and the settled hours as metrics."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.accounting.bill import Bill, LineKey
from deployments.gateway.own_page import Handler, OwnPage
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.telemetry.metrics import MAX_TENANTS

COST_PATH = "/raylane/cost"
_ANSWER_S = 10.0
READ_EVERY_S = 60.0
_LABELS = ("model", "group", "region", "tenant", "class", "share")


class CostPages:
    """`directory`: the handle of the cell's directory, None before there is one."""

    def __init__(self, service: Service, directory: Callable[[], Any]) -> None:
        self._service = service
        self._directory = directory

    def routes(self) -> list[Route]:
        return [self._route(COST_PATH, self.names), self._route(COST_PATH + "/{name}", self.part)]

    async def names(self, request: Request) -> Response:
        """The names of the files, and their bytes."""
        return JSONResponse({"files": await self.files()})

    async def part(self, request: Request) -> Response:
        """A part of one file, from `?offset=` on; nothing beyond its end."""
        name, given = request.path_params["name"], request.query_params.get("offset", "0")
        if not (given.isdecimal() and given.isascii() and len(given) < 16):
            raise ApiError(
                ErrorCode.INVALID_VALUE, f"offset = {shown(given)}: allowed: a number of bytes", param="offset"
            )
        return Response(await self.read(name, int(given)), media_type="application/octet-stream")

    async def files(self) -> list[tuple[str, int]]:
        """The names of the files, and their bytes. Raises ApiError."""
        names: list[tuple[str, int]] = await self._ask("cost_names")
        return names

    async def read(self, name: str, offset: int) -> bytes:
        """A part of one file. Raises ApiError."""
        if name not in [one for one, _ in await self.files()]:
            raise ApiError(ErrorCode.NOT_FOUND, f"{shown(name)}: no such file; {COST_PATH} lists them")
        part: bytes = await self._ask("cost_part", name, offset)
        return part

    async def _ask(self, method: str, *arguments: object) -> Any:
        directory = self._directory()
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await getattr(directory, method).remote(*arguments)
        except Exception as error:  # any failure of Ray
            raise ApiError(ErrorCode.NO_DIRECTORY, f"the directory does not answer: {error!r}") from error

    def _route(self, path: str, handler: Handler) -> Route:
        return Route(path, OwnPage(handler, self._service, quiet=True))


class CostMetrics(Collector):
    """What all settled hours cost, read when Prometheus asks. The directory adds up for the whole cell, so one gateway
    tells it: the first of `gateways` by id, of which this one's own comes first."""

    def __init__(self, gateways: Callable[[], list[str]]) -> None:
        self.totals = Bill()
        self._gateways = gateways

    async def run(self, directory: Any) -> None:
        """Reads the totals again and again."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    self.totals = await directory.cost_totals.remote()
            except Exception:  # any failure of Ray: the last totals stay
                pass
            await asyncio.sleep(READ_EVERY_S)

    def collect(self) -> Iterable[Metric]:
        usd = CounterMetricFamily(
            "raylane_cost_usd", "What the settled hours cost, by whose time it was.", labels=_LABELS
        )
        seconds = CounterMetricFamily("raylane_cost_replica_seconds", "...and their replica-seconds.", labels=_LABELS)
        tokens = CounterMetricFamily(
            "raylane_cost_tokens", "...and their tokens, as engines counted them.", labels=(*_LABELS, "kind")
        )
        gateways = self._gateways()
        tenants: dict[str, str] = {}
        sums: defaultdict[tuple[str, ...], list[Any]] = defaultdict(lambda: [Fraction(0), 0, 0, 0])
        for line in self.totals.lines if gateways[0] == min(gateways) else ():
            found = sums[_labels(line.key, tenants)]
            found[0] += line.usd
            for place, name in enumerate(("ns", "prompt_tokens", "output_tokens"), 1):
                found[place] += getattr(line.amounts, name)
        for labels, (dollars, nanoseconds, prompt, output) in sums.items():
            usd.add_metric(labels, float(dollars))
            seconds.add_metric(labels, nanoseconds / 1e9)
            for kind, number in (("prompt", prompt), ("output", output)):
                tokens.add_metric((*labels, kind), number)
        return usd, seconds, tokens


def _labels(key: LineKey, tenants: dict[str, str]) -> tuple[str, ...]:
    if key.tenant not in tenants:
        tenants[key.tenant] = key.tenant if len(tenants) < MAX_TENANTS else "other"
    return key.model, key.group, key.region, tenants[key.tenant], key.traffic_class, key.share.value
