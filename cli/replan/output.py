"""A re-plan in words: the diff of the bounds, why, and what it costs."""

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from cli.console import console
from planning.replan import Replan, SiteBounds
from planning.replan.result import PlanCoverage

_COVERAGE = {
    PlanCoverage.ALL: "",
    PlanCoverage.NOT_A_LOSS: "[yellow]the loss of a region would not be survived: replicas are missing[/]",
    PlanCoverage.NOT_ALL: "[red]the expected demand is not covered: replicas are missing[/]",
}


def show(plan: Replan, everything: bool) -> None:
    """`everything`: bounds that stay, too."""
    shown = plan.bounds if everything else plan.changes
    if shown:
        console.print(_table(shown))
    console.print(escape(price_line(plan)))
    for line in _troubles(plan):
        console.print(line)


def price_line(plan: Replan) -> str:
    """What the floors cost an hour."""
    change = plan.usd_after - plan.usd_before
    moved = f"{'+' if change >= 0 else '-'}${abs(change):,.2f}"
    parts = [f"floors: ${plan.usd_before:,.2f} -> ${plan.usd_after:,.2f} an hour ({moved})"]
    if abs(plan.usd_target - plan.usd_after) >= 0.005:
        parts.append(f"${plan.usd_target:,.2f} when the plan is reached")
    return "; ".join(parts)


def why_line(plan: Replan) -> str:
    """The reasons in a line, for the cells' audit."""
    reasons = {one.reason.value: 0 for one in plan.changes}
    for one in plan.changes:
        reasons[one.reason.value] += 1
    return "re-plan: " + (", ".join(f"{reason} ({count})" for reason, count in reasons.items()) or "nothing changes")


def as_json(plan: Replan) -> dict[str, Any]:
    """For `--json`."""
    return {
        "unix_s": plan.unix_s,
        "bounds": [
            {
                "region": one.site.region,
                "model": one.site.group,
                "before": one.before,
                "floor": one.floor,
                "ceiling": one.ceiling,
                "target": one.target,
                "reason": one.reason.value,
                "held": None if one.held is None else one.held.value,
                "usd_per_replica_hour": one.usd_per_hour,
            }
            for one in plan.bounds
        ],
        "usd_per_hour": {"before": plan.usd_before, "after": plan.usd_after, "target": plan.usd_target},
        "coverage": plan.coverage.value,
        "missing": [{"model": model, "region": region, "replicas": n} for (model, region), n in plan.short.items()],
        "unserved": [{"lane": lane, "origin": origin} for lane, origin in plan.unserved],
    }


def _table(bounds: tuple[SiteBounds, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("region", "model", "floor", "ceiling", "target", "$ an hour", "why"):
        table.add_column(column, justify="left" if column in ("region", "model", "why") else "right", overflow="fold")
    for one in bounds:
        floor = str(one.floor) if one.floor == one.before else f"{one.before} -> {one.floor}"
        usd = (one.floor - one.before) * one.usd_per_hour
        why = one.reason.sentence if one.held is None else f"{one.reason.sentence}; {one.held.sentence}"
        cost = f"{'+' if usd > 0 else '-' if usd < 0 else ''}{abs(usd):,.2f}"
        table.add_row(one.site.region, escape(one.site.group), floor, str(one.ceiling), str(one.target), cost, why)
    return table


def _troubles(plan: Replan) -> list[str]:
    lines = [_COVERAGE[plan.coverage]] if _COVERAGE[plan.coverage] else []
    lines += [
        f"[yellow]missing:[/] {count:.1f} replicas of {escape(model)} in {region}"
        for (model, region), count in plan.short.items()
        if region
    ]
    return lines + [
        f"[red]no region that answers may serve[/] {escape(lane)} from {origin}" for lane, origin in plan.unserved
    ]
