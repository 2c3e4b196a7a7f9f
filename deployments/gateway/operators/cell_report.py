"""One report of a cell out of its gateways' own: the books of each model from its owner, the clients' times from all. Pure."""

from typing import Any

import numpy as np

_NO_BOOKS: dict[str, Any] = {
    "epoch": None,
    "reconciled": 0,
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
    return {**here, "gateways": [report["gateway"] for report in reports], "models": [_model(name, reports) for name in names]}


def _model(name: str, reports: list[dict[str, Any]]) -> dict[str, Any]:
    parts = [model for report in reports for model in report["models"] if model["name"] == name]
    owned = [part for part in parts if part["owner"] is not None]
    books = max(owned, key=lambda part: part["epoch"]) if owned else {**_NO_BOOKS, **parts[0]}
    sums = {key: sum(part[key] for part in parts) for key in ("handed_on", "lost_requests", "lost_tokens")}
    kept = {key: value for key, value in books.items() if key != "ttft"}
    return {**kept, **sums, "ttft_ms": _quantiles([part["ttft"] for part in parts])}


def _quantiles(ttfts: list[dict[str, Any]]) -> dict[str, float] | None:
    """Quantiles over all gateways' requests: each one's percentiles stand for an equal part of its requests."""
    known = [ttft for ttft in ttfts if ttft["requests"]]
    if not known:
        return None
    values = np.concatenate([ttft["percentiles_s"] for ttft in known])
    weights = np.concatenate([np.full(len(ttft["percentiles_s"]), ttft["requests"] / len(ttft["percentiles_s"])) for ttft in known])
    p50, p95, p99 = (1e3 * float(value) for value in np.quantile(values, (0.5, 0.95, 0.99), weights=weights, method="inverted_cdf"))
    return {"p50": p50, "p95": p95, "p99": p99, "requests": sum(ttft["requests"] for ttft in known)}
