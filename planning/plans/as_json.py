"""A plan as plain values, for `--json`. What does not exist or is not finite is None."""

from typing import Any

from deployments.wire import to_json
from planning.plans.answer import PlannedGroup, WorksheetPlan
from planning.plans.check import CellCheck
from planning.plans.compare import SideBySide
from planning.plans.offers import GroupOffer
from planning.plans.result import PlanResult

SCHEMA_VERSION = 2


def as_json(result: PlanResult) -> dict[str, Any]:
    """Everything that the page says."""
    plan, placement = result.plan, result.plan.placement
    found: dict[str, Any] = to_json(
        {
            "schema": SCHEMA_VERSION,
            "worksheet": plan.case.sheet.name,
            "time_zone": plan.case.sheet.time_zone,
            "hours": plan.case.hours,
            "headline": result.headline,
            "feasible": plan.feasible,
            "slos": result.verdict,
            "placement": {name: getattr(placement, name) for name in ("outcome", "gap", "bound_usd", "seconds")},
            "totals": _totals(plan) if plan.feasible else None,
            "groups": [_group(plan, group) for group in plan.groups],
            "checks": [_check(check) for check in result.checks],
            "tokens": result.tokens,
            "elsewhere": [_without_offer(one) | one.offer.model_dump() for one in result.elsewhere],
            "side_by_side": [_side(one) for one in result.side_by_side],
            "limits": plan.savings,
            "clashes": plan.clashes,
            "rates": [
                {"model": model, "group": group, "requests": band, "from_other_regions": far} | to_json(rate)
                for (model, group, band, far), rate in plan.rates.items()
            ],
            "rejected": plan.case.rejected,
            "simulator_error": result.errors,
            "costs": [_costs(offer) for offer in plan.case.offers],
            "notes": plan.notes,
        }
    )
    return found


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
        **_named(group.offer),
        "gpus_per_replica": group.offer.gpus,
        "region": group.region,
        "replicas": group.replicas,
        "prices": group.prices,
        "load": [group.load(hour) for hour in group.hours],
        "warm": [group.warm(hour, plan.utilisation) for hour in group.hours],
        "usd_by_hour": [group.usd(hour) for hour in group.hours],
        "gpu_hours": group.gpu_hours,
        "requests_per_s": [
            {"requests": band, "from": origin, "by_hour": rates} for (band, origin), rates in group.served.items()
        ],
    }


def _check(check: CellCheck) -> dict[str, Any]:
    found: dict[str, Any] = to_json(check)
    return found | {"streams": [to_json(one) | {"verdict": one.verdict} for one in check.streams]}


def _side(one: SideBySide) -> dict[str, Any]:
    return _without_offer(one) | _named(one.offer)


def _named(offer: GroupOffer) -> dict[str, str]:
    return {"model": offer.model, "group": offer.group, "gpu": offer.gpu}


def _costs(offer: GroupOffer) -> dict[str, Any]:
    return {
        "model": offer.model,
        "group": offer.group,
        "costs": offer.costs_file,
        "basis": offer.cost.basis,
        "range": offer.cost_range,
        "not_modelled": offer.unmodelled,
    }


def _without_offer(one: Any) -> dict[str, Any]:
    """A dataclass by fields, without the group or offer that it is of."""
    return {name: getattr(one, name) for name in one.__dataclass_fields__ if name != "offer"}
