"""The other gateways of the cell: asks them for their pages, and makes one report of the cell out of all reports."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np

log = logging.getLogger("raylane.gateway")

_ANSWER_S = 2.0


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

    async def ask(self, path: str) -> list[Any]:
        """The JSON with which the others answer a GET; who does not answer in time, or not with 200, is left out."""
        answers = await asyncio.gather(*(self._ask(url + path) for url in self.urls.values()))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, url: str) -> Any:
        try:
            async with asyncio.timeout(_ANSWER_S), self._session.get(url) as response:
                return await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.info("%s did not answer: %r", url, error)
            return None


_NO_STATE: dict[str, Any] = {
    "epoch": None,
    "reconciled": 0,
    "peers": [],
    "lanes": [],
    "leases": 0,
    "submitted": 0,
    "placed": 0,
    "adopted": 0,
    "endings": {"finished": 0, "cancelled": 0, "failed": 0, "refused": 0},
    "rejections": {},
    "promoted": 0,
    "tokens_per_s": None,
    "output_error": None,
    "other_lane": None,
    "prefix_trust": 0.0,
    "replicas": [],
}
"""What is said of a model while nobody owns it."""


def merged(here: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """The report of the cell, as the gateway sees it that made `here`. `gateways` holds all of their own lines."""
    reports = [here, *others]
    names = [model["name"] for model in here["models"]]
    return {
        **here,
        "gateways": [report["gateway"] for report in reports],
        "models": [_model(name, reports) for name in names],
    }


def _model(name: str, reports: list[dict[str, Any]]) -> dict[str, Any]:
    parts = [model for report in reports for model in report["models"] if model["name"] == name]
    owned = [part for part in parts if part["owner"] is not None]
    scaling_facts = max(owned, key=lambda part: part["epoch"]) if owned else {**_NO_STATE, **parts[0]}
    sums = {key: sum(part[key] for part in parts) for key in ("under_way", "handed_on", "lost_requests", "lost_tokens")}
    kept = {key: value for key, value in scaling_facts.items() if key != "ttft"}
    return {**kept, **sums, "ttft_ms": _quantiles([part["ttft"] for part in parts])}


def _quantiles(ttfts: list[dict[str, Any]]) -> dict[str, float] | None:
    """Quantiles over all gateways' requests: each one's percentiles stand for an equal part of its requests."""
    known = [ttft for ttft in ttfts if ttft["requests"]]
    if not known:
        return None
    values = np.concatenate([ttft["percentiles_s"] for ttft in known])
    weights = np.concatenate(
        [np.full(len(ttft["percentiles_s"]), ttft["requests"] / len(ttft["percentiles_s"])) for ttft in known]
    )
    p50, p95, p99 = (
        1e3 * float(value) for value in np.quantile(values, (0.5, 0.95, 0.99), weights=weights, method="inverted_cdf")
    )
    return {"p50": p50, "p95": p95, "p99": p99, "requests": sum(ttft["requests"] for ttft in known)}
