"""A plan as plain values, for `--json`. What does not exist or is not finite is None."""

import math
from dataclasses import asdict, is_dataclass
from typing import Any

from planning.plans.answer import PlannedGroup, WorksheetPlan
from planning.plans.check import CellCheck
from planning.plans.result import PlanResult

SCHEMA_VERSION = 2


def as_json(result: PlanResult) -> dict[str, Any]:
    """Everything that the page says."""
    plan = result.plan
    found: dict[str, Any] = _plain(
        {
            "schema": SCHEMA_VERSION,
            "worksheet": plan.case.sheet.name,
            "time_zone": plan.case.sheet.time_zone,
            "hours": plan.case.hours,
            "headline": result.headline,
            "feasible": plan.feasible,
            "slos": None if result.verdict is None else result.verdict.name.lower(),
            "placement": _placement(plan),
            "totals": _totals(plan) if plan.feasible else None,
            "groups": [_group(plan, group) for group in plan.groups],
            "checks": [_check(check) for check in result.checks],
            "tokens": [asdict(one) for one in result.tokens],
            "elsewhere": [_without_offer(one) | one.offer.model_dump() for one in result.elsewhere],
            "side_by_side": [
                _without_offer(one) | {"model": one.offer.model, "group": one.offer.group, "gpu": one.offer.gpu}
                for one in result.side_by_side
            ],
            "limits": [asdict(one) for one in plan.savings],
            "clashes": list(plan.clashes),
            "rates": _rates(plan),
            "rejected": [asdict(one) for one in plan.case.rejected],
            "simulator_error": dict(result.errors),
            "costs": [_costs(offer) for offer in plan.case.offers],
            "notes": list(plan.notes),
        }
    )
    return found


def _placement(plan: WorksheetPlan) -> dict[str, Any]:
    found = plan.placement
    return {"outcome": found.outcome.value, "gap": found.gap, "bound_usd": found.bound_usd, "seconds": found.seconds}


def _totals(plan: WorksheetPlan) -> dict[str, Any]:
    return {
        "usd_per_hour": plan.usd_per_hour,
        "usd_by_hour": [plan.usd(hour) for hour in plan.hours],
        "replicas_by_hour": [plan.count(hour) for hour in plan.hours],
        "gpu_hours_per_day": plan.gpu_hours_per_day,
        "utilisation": plan.mean_utilisation,
        "planned_utilisation": plan.utilisation,
        "spot_share": plan.spot_share,
        "warm_replica_hours_per_day": plan.warm_replica_hours_per_day,
    }


def _group(plan: WorksheetPlan, group: PlannedGroup) -> dict[str, Any]:
    return {
        "model": group.offer.model,
        "group": group.offer.group,
        "gpu": group.offer.gpu,
        "gpus_per_replica": group.offer.gpus,
        "region": group.region,
        "replicas": {kind.value: list(counts) for kind, counts in group.replicas.items()},
        "prices": {kind.value: asdict(one) for kind, one in group.prices.items()},
        "load": [group.load(hour) for hour in group.hours],
        "warm": [group.warm(hour, plan.utilisation) for hour in group.hours],
        "usd_by_hour": [group.usd(hour) for hour in group.hours],
        "gpu_hours": group.gpu_hours,
        "requests_per_s": [
            {"requests": band, "from": origin, "by_hour": list(rates)} for (band, origin), rates in group.served.items()
        ],
    }


def _check(check: CellCheck) -> dict[str, Any]:
    return {
        "model": check.model,
        "region": check.region,
        "hour": check.hour,
        "replicas": dict(check.replicas),
        "streams": [asdict(one) | {"verdict": one.verdict.name.lower()} for one in check.streams],
    }


def _rates(plan: WorksheetPlan) -> list[dict[str, Any]]:
    return [
        {"model": model, "group": group, "requests": band, "from_other_regions": far} | asdict(rate)
        for (model, group, band, far), rate in plan.rates.items()
    ]


def _costs(offer: Any) -> dict[str, Any]:
    return {
        "model": offer.model,
        "group": offer.group,
        "costs": offer.costs_file,
        "basis": offer.cost.basis,
        "range": offer.cost_range.as_json(),
        "not_modelled": [one.as_json() for one in offer.unmodelled],
    }


def _without_offer(one: Any) -> dict[str, Any]:
    """A dataclass as plain values, without the group or offer that it is of."""
    fields = ((name, getattr(one, name)) for name in one.__dataclass_fields__ if name != "offer")
    return {name: asdict(value) if is_dataclass(value) else value for name, value in fields}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below) for below in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
