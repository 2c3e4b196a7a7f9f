"""A plan as tables of text: for the terminal and for the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planning.plans.answer import MONTH_HOURS, WorksheetPlan
from planning.plans.check import StreamCheck
from planning.plans.compare import Elsewhere, LoadFigures
from planning.plans.offers import GroupOffer
from planning.plans.result import PlanResult
from planning.report.words import Card, attained, duration, percent

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextTable:
    """A title, the columns' names, and rows. `note`: what a reader should know of it."""

    title: str
    columns: Row
    rows: tuple[Row, ...]
    note: str = ""


def tables(result: PlanResult) -> list[TextTable]:
    """All that have rows, in the order in which they are read."""
    plan = result.plan
    found = [groups_table(plan), hours_table(plan), slo_table(result), tokens_table(result), elsewhere_table(result)]
    found += [limits_table(plan), side_table(result), rates_table(plan), prices_table(plan), rejected_table(plan)]
    return [one for one in found if one.rows]


def cards(result: PlanResult) -> list[Card]:
    """The figures of the headline."""
    plan = result.plan
    if not plan.feasible:
        return []
    peak = max(plan.hours, key=plan.usd)
    return [
        Card("cost", f"${plan.usd_per_hour:,.2f} an hour", f"at most ${plan.usd(peak):,.2f}, in hour {peak}"),
        Card("a month", f"${plan.usd_per_hour * MONTH_HOURS:,.0f}", f"{MONTH_HOURS:.0f} hours"),
        Card("GPU-hours", f"{plan.gpu_hours_per_day:,.0f} a day"),
        Card("utilisation", percent(plan.mean_utilisation), f"planned for at most {percent(plan.utilisation)}"),
        Card("spot", percent(plan.spot_share), "of replica-hours"),
        Card("warm", f"{plan.warm_replica_hours_per_day:,.0f} replica-hours a day", "beyond what the load takes"),
        Card("placement", _optimality(plan), f"found in {plan.placement.seconds:.1f} s"),
    ]


def _optimality(plan: WorksheetPlan) -> str:
    gap = plan.placement.gap
    return "the optimum" if gap < 5e-4 else f"within {100 * gap:.1f} % of the optimum"


def groups_table(plan: WorksheetPlan) -> TextTable:
    rows = []
    for group in plan.groups:
        low, high = group.bounds
        hours = len(group.hours)
        used = sum(group.load(hour) for hour in group.hours)
        count = sum(group.count(hour) for hour in group.hours)
        rows.append(
            (
                _name(plan, group.offer),
                group.region,
                f"{low} to {high}" if low < high else str(high),
                ", ".join(kind.replace("_", " ") for kind in group.replicas),
                f"{group.gpu_hours * 24 / hours:,.0f}",
                f"{sum(group.usd(hour) for hour in group.hours) / hours:,.2f}",
                percent(used / count if count else 0.0),
                f"{sum(group.warm(hour, plan.utilisation) for hour in group.hours) * 24 / hours:,.0f}",
            )
        )
    columns = ("group", "region", "replicas", "paid", "GPU-hours/day", "$/h", "used", "warm hours/day")
    note = (
        "Used: of the highest rates at the SLOs, over all hours. Warm: replica-hours that the load does not take, for "
        "failures and lost regions."
    )
    return TextTable("Groups", columns, tuple(rows), note)


def hours_table(plan: WorksheetPlan) -> TextTable:
    """Replicas by hour of the day; of a week, the most of each weekday's hour."""
    rows = []
    for group in plan.groups:
        for kind, counts in group.replicas.items():
            days = range(len(counts) // 24)
            by_hour = (max(counts[24 * day + hour] for day in days) for hour in range(24))
            rows.append((f"{group.region}, {_name(plan, group.offer)}, {kind.replace('_', ' ')}", *map(str, by_hour)))
    zone = plan.case.sheet.time_zone
    week = " The most of the seven days." if plan.case.hours > 24 else ""
    columns = ("where", *map(str, range(24)))
    return TextTable(f"Replicas by hour ({zone})", columns, tuple(rows), f"Hours from midnight.{week}")


def _name(plan: WorksheetPlan, offer: GroupOffer) -> str:
    """A group, with its model where there are several."""
    return str(offer) if len(plan.models) == 1 else f"{offer.model}: {offer}"


def slo_table(result: PlanResult) -> TextTable:
    rows = []
    for check in result.checks:
        for one in check.streams:
            low, high = one.in_time_range
            times = (duration(seconds) if math.isfinite(seconds) else "none" for seconds in one.ttft_s[:2])
            rows.append(
                (
                    one.stream,
                    check.region,
                    str(check.hour),
                    ", ".join(f"{count} {group}" for group, count in check.replicas.items()),
                    f"{percent(one.slo, 1)} in {duration(one.ttft_slo_s)}",
                    attained(one.in_time),
                    "-" if low == high else f"{attained(low)} to {attained(high)}",
                    *times,
                    "-" if one.itl_in_time is None else attained(one.itl_in_time),
                    _by_group(one),
                    one.verdict.value,
                )
            )
    columns = ("stream", "region", "hour", "replicas", "SLO", "in time", "range", "TTFT p50", "p90", "ITL in time")
    note = (
        "All groups of a region are simulated together, in the busiest hours of each. Range: with the costs of steps "
        "at both ends of theirs; unsure: met with the stated costs, missed with them at their high end. Served by: the "
        "share of the requests, and how many of them were in time."
    )
    return TextTable("SLOs, simulated", (*columns, "served by", "verdict"), tuple(rows), note)


def _by_group(one: StreamCheck) -> str:
    whole = sum(part.requests for part in one.parts)
    return ", ".join(f"{part.group} {percent(part.requests / whole)} ({attained(part.kept)})" for part in one.parts)


def tokens_table(result: PlanResult) -> TextTable:
    rows = tuple(
        (
            one.model,
            f"{one.usd_per_day:,.0f}",
            f"{one.input_mtok_per_day:,.1f}",
            f"{one.output_mtok_per_day:,.1f}",
            f"{one.usd_per_input_mtok:.4f}",
            f"{one.usd_per_output_mtok:.4f}",
        )
        for one in result.tokens
    )
    columns = ("model", "$/day", "Mtok in/day", "Mtok out/day", "$/Mtok in", "$/Mtok out")
    note = (
        "The cost of replicas, idle time with it, is shared by the work of prompts and answers in the step model; "
        "cached prompt tokens count as tokens."
    )
    return TextTable("Tokens", columns, rows, note)


def elsewhere_table(result: PlanResult) -> TextTable:
    rows = tuple(
        (
            one.offer.model,
            f"{one.offer.usd_per_input_mtok:g} / {one.offer.usd_per_output_mtok:g}",
            f"{one.own_usd_per_day:,.0f}",
            f"{one.bought_usd_per_day:,.0f}",
            break_even_words(one),
            one.offer.source,
        )
        for one in result.elsewhere
    )
    columns = ("model", "$/Mtok in / out", "own $/day", "bought $/day", "bought tokens are cheaper", "source")
    return TextTable("Buying tokens elsewhere", columns, rows, "Other volumes have the same mix of requests and hours.")


def break_even_words(one: Elsewhere) -> str:
    if math.isnan(one.break_even_mtok_per_day):
        return "placements of other volumes were not found in time"
    if one.break_even_mtok_per_day == 0:
        return "at no volume looked at"
    if math.isinf(one.break_even_mtok_per_day):
        return f"at each volume looked at (to {16 * one.mtok_per_day:,.0f} Mtok a day)"
    return f"below {one.break_even_mtok_per_day:,.0f} Mtok a day (planned: {one.mtok_per_day:,.0f})"


def limits_table(plan: WorksheetPlan) -> TextTable:
    days = plan.case.hours / 24
    rows = tuple(
        (
            one.requirement,
            f"{one.without_usd / days:,.2f}",
            one.step or "-",
            "-" if one.step_usd is None else f"{one.step_usd / days:,.2f}",
        )
        for one in plan.savings
    )
    note = "By the relaxed problem, with fractions of replicas; rates stay as they are."
    return TextTable("Limits that bind", ("limit", "without it, $/day less", "a step", "$/day less"), rows, note)


def side_table(result: PlanResult) -> TextTable:
    rows: list[Row] = []
    for one in result.side_by_side:
        usd = one.fleet_usd_per_hour
        fleet = "cannot" if usd is None else "not found" if math.isnan(usd) else f"{usd:,.2f}"
        name = _name(result.plan, one.offer)
        rows.append((name, "at the same load", f"{one.usd_per_replica_hour:,.2f}", *_figures(one.same), ""))
        rows.append((name, "at its best", f"{one.usd_per_replica_hour:,.2f}", *_figures(one.best), fleet))
    columns = ("group", "", "$/replica-hour", "requests/s", "TTFT p50", "p90", "ITL", "$/Mtok", "all on it, $/h")
    note = (
        "One replica of each: at the load that all of them hold, then at the highest that it holds itself. All on it: "
        "the whole plan of the model on this GPU type."
    )
    return TextTable("GPU types side by side", columns, tuple(rows), note)


def _figures(of: LoadFigures) -> Row:
    times = (duration(one) if math.isfinite(one) else "none" for one in (of.ttft_p50_s, of.ttft_p90_s, of.itl_s))
    return (f"{of.per_s:.2f}", *times, f"{of.usd_per_mtok:.3f}")


def rates_table(plan: WorksheetPlan) -> TextTable:
    offers = {(one.model, one.group): one for one in plan.case.offers}
    rows = []
    for (model, group, band, far), rate in plan.rates.items():
        between = "-" if rate.low == rate.high else f"{rate.low:.2f} to {rate.high:.2f}"
        ttft = duration(rate.ttft_s) if math.isfinite(rate.ttft_s) else "none"
        name = _name(plan, offers[model, group])
        rows.append(
            (name, f"{band}{', from afar' if far else ''}", f"{rate.per_replica:.2f}", between, rate.bound, ttft)
        )
    columns = ("group", "requests", "requests/s", "range", "bound by", "TTFT")
    note = (
        "Of one replica that serves these requests alone. Bound by: what a higher rate breaks. TTFT: of the SLO's "
        "share of requests. From afar: with the longest round trip off the TTFT."
    )
    return TextTable("Highest rates within the SLOs, simulated", columns, tuple(rows), note)


def prices_table(plan: WorksheetPlan) -> TextTable:
    rows = dict.fromkeys(
        (str(offer), site.region, kind.replace("_", " "), f"{one.usd_per_replica_hour:,.3f}", one.source)
        for site, offer, priced in zip(
            plan.question.problem.sites, plan.question.offers, plan.question.prices, strict=True
        )
        for kind, one in priced.items()
    )
    return TextTable("Prices", ("group", "region", "kind", "$/replica-hour", "source"), tuple(rows))


def rejected_table(plan: WorksheetPlan) -> TextTable:
    rows = tuple((one.model, one.group, one.gpu, one.reason) for one in plan.case.rejected)
    return TextTable("Groups that cannot serve", ("model", "group", "GPU", "why"), rows)


def basis_lines(result: PlanResult) -> Sequence[str]:
    """On what the figures rest: the costs of steps by group, what is not modelled, and the simulator's error."""
    lines = []
    for offer in result.plan.case.offers:
        lines.append(f"{offer}: costs of steps: {offer.costs_file} ({offer.cost.basis}); {offer.cost_range}")
        lines += [f"{offer}: not modelled: {one}" for one in offer.unmodelled]
    lines += [f"the simulator's error on {model}: {text}" for model, text in result.errors.items()]
    return [*lines, *result.plan.notes]
