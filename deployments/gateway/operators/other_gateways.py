"""The other gateways of the cell: asks them for their pages, and makes one report of the cell out of all reports."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from deployments.gateway.operators.report import CellReport, GatewayAnswer, ModelReport, SloReport, Ttfts, TtftSample
from deployments.wire import from_plain

log = logging.getLogger("raylane.gateway")

_ANSWER_S = 2.0
AnswerT = TypeVar("AnswerT")


class OtherGateways:
    """`own_url` is where this gateway listens for the others."""

    def __init__(self, gateway_id: str, session: aiohttp.ClientSession) -> None:
        self.gateway_id = gateway_id
        self.own_url = ""
        self.urls: dict[str, str] = {}
        self._session = session

    @property
    def share_node(self) -> bool:
        """Whether another gateway listens on the same node, and so on the same port for clients."""
        own = urlsplit(self.own_url).hostname
        return any(urlsplit(url).hostname == own for url in self.urls.values())

    def everyone(self) -> list[str]:
        """The ids of all gateways, this one's first."""
        return [self.gateway_id, *self.urls]

    def reported(self, gateways: Iterable[tuple[str, str]]) -> None:
        self.urls = {gateway_id: url for gateway_id, url in gateways if gateway_id != self.gateway_id}

    async def ask(self, path: str, kind: type[AnswerT], method: str = "GET", body: bytes = b"") -> list[AnswerT]:
        """What the others answer, in JSON; who does not answer so in time, or not with 200, is left out."""
        answers = await asyncio.gather(*(self._ask(method, url + path, kind, body) for url in self.urls.values()))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, method: str, url: str, kind: type[AnswerT], body: bytes) -> AnswerT | None:
        try:
            async with asyncio.timeout(_ANSWER_S), self._session.request(method, url, data=body or None) as response:
                return from_plain(await response.json(), kind) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.info("%s did not answer: %r", url, error)
            return None


def merged(answers: Sequence[GatewayAnswer]) -> CellReport:
    """The report of the cell, as the gateway sees it that gave the first answer."""
    reports = [answer.report for answer in answers]
    return replace(
        reports[0],
        gateways=tuple(report.gateway for report in reports),
        models=tuple(_merged_model(model, answers) for model in reports[0].models),
    )


def _merged_model(here: ModelReport, answers: Sequence[GatewayAnswer]) -> ModelReport:
    """What its owner says; the one of the latest epoch, where an older one has not heard of it yet."""
    parts = [model for answer in answers for model in answer.report.models if model.name == here.name]
    samples = [answer.ttfts[here.name] for answer in answers if here.name in answer.ttfts]
    slos = [one for part in parts for one in part.slos]
    return replace(
        max((part for part in parts if part.owner is not None), key=lambda part: part.epoch or 0, default=here),
        under_way=sum(part.under_way for part in parts),
        handed_on=sum(part.handed_on for part in parts),
        lost_requests=sum(part.lost_requests for part in parts),
        lost_tokens=sum(part.lost_tokens for part in parts),
        slos=tuple(_added(one, slos) for one in here.slos),
        ttft_ms=_quantiles([sample for sample in samples if sample.requests]),
    )


def _added(slo: SloReport, reports: Iterable[SloReport]) -> SloReport:
    """What all gateways counted of an SLO."""
    same = [one for one in reports if (one.traffic_class, one.slo) == (slo.traffic_class, slo.slo)]
    return replace(slo, met=sum(one.met for one in same), missed=sum(one.missed for one in same))


def _quantiles(samples: Sequence[TtftSample]) -> Ttfts | None:
    """Quantiles over all gateways' requests: each one's percentiles stand for an equal part of its requests."""
    if not samples:
        return None
    values = np.concatenate([one.percentiles_s for one in samples])
    weights = np.concatenate(
        [np.full(len(one.percentiles_s), one.requests / len(one.percentiles_s)) for one in samples]
    )
    levels = (0.5, 0.95, 0.99)
    p50, p95, p99 = (1e3 * float(one) for one in np.quantile(values, levels, weights=weights, method="inverted_cdf"))
    return Ttfts(p50, p95, p99, sum(one.requests for one in samples))
