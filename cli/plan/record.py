"""`raylane plan WORKSHEET --against --json`: what has left the worksheet, as plain values."""

from typing import Any

from deployments.traffic.published_drift import PublishedDrift
from planning.drift.comparison import ComparedFigure, Comparison, Drift
from planning.drift.sheet import PlanChange, PriceDrift


def as_record(
    found: Comparison, prices: tuple[PriceDrift, ...], change: PlanChange | None, published: PublishedDrift
) -> dict[str, Any]:
    """Plain values, for a machine."""

    def of(one: Drift | ComparedFigure) -> dict[str, Any]:
        stream = one.stream
        names = {"model": stream.model, "class": stream.traffic_class, "region": stream.region}
        return {**names, "quantity": one.quantity.value, "expected": one.expected, "observed": one.observed}

    return {
        "off": bool(published.alarms),
        "acknowledged": all(one.acknowledged for one in published.alarms),
        "from_unix_s": found.from_unix_s,
        "to_unix_s": found.to_unix_s,
        "watched_s": found.watched_s,
        "drifts": [
            {
                **of(drift),
                "direction": drift.direction.value,
                "since_unix_s": drift.since_unix_s,
                "raised_unix_s": drift.raised_unix_s,
                "ended_unix_s": drift.ended_unix_s,
            }
            for drift in found.drifts
        ],
        "incidents": [
            {
                "model": one.model,
                "drifts": len(one.drifts),
                "raised_unix_s": one.raised_unix_s,
                "ended_unix_s": one.ended_unix_s,
            }
            for one in found.incidents
        ],
        "figures": [of(figure) for figure in found.figures],
        "unplanned": [
            {"model": one.model, "class": one.traffic_class, "region": one.region, "requests_per_s": rate}
            for one, rate in found.unplanned
        ],
        "unseen": [{"model": one.model, "class": one.traffic_class, "region": one.region} for one in found.unseen],
        "prices": [
            {
                "gpu": one.gpu,
                "region": one.region,
                "pool": one.pool,
                "kind": one.kind.value,
                "expected_usd_per_gpu_hour": one.expected_usd,
                "observed_usd_per_gpu_hour": one.observed_usd,
            }
            for one in prices
        ],
        "plan": None if change is None else _plan(change),
    }


def _plan(change: PlanChange) -> dict[str, Any]:
    return {
        "groups": [
            {
                "group": one.group,
                "region": one.region,
                "expected_replicas": one.expected,
                "needed_replicas": one.needed,
            }
            for one in change.groups
        ],
        "expected_usd_per_hour": change.expected_usd_per_hour,
        "needed_usd_per_hour": change.needed_usd_per_hour,
    }
