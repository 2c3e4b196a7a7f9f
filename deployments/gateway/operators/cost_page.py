"""The bill, for `raylane cost`, and the settled hours as metrics."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Annotated, Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.accounting.bill import Bill, Dimension, LineKey
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import shown
from deployments.telemetry.metrics import MAX_TENANTS
from deployments.wire import to_plain

COST_PATH = "/raylane/cost"
_ANSWER_S = 60.0
READ_EVERY_S = 60.0
_LABELS = ("model", "group", "region", "tenant", "class", "share")


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
            problem = error.errors(include_url=False)[0]
            key = str(problem["loc"][0])
            message = f"{key} = {shown(problem['input'])}: {problem['msg']}"
            raise ApiError(ErrorCode.INVALID_VALUE, message, param=key) from None
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
