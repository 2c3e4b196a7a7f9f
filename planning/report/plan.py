"""The page of `raylane plan`: one HTML file that stands alone, with replicas and costs by hour, the simulated SLOs, and
what else one could buy."""

import math

import numpy as np
import plotly.graph_objects as go

from planning.plans.answer import WorksheetPlan
from planning.plans.compare import Elsewhere
from planning.plans.result import PlanResult
from planning.plans.tables import basis_lines, cards, tables
from planning.report.figures import (
    BLUE,
    GREEN,
    HEIGHT_PX,
    INK,
    ORANGE,
    RED,
    Look,
    Panel,
    Tone,
    draw,
    empty_figure,
    lane_tone,
    line_of,
    name_axis,
    rows_figure,
)
from planning.report.layout import in_script, laid_out

_ROW_PX = 190
NOT_MODELLED = (
    "Changes of the rate within an hour, beyond a Poisson process: the headroom is for them.",
    "The time that replicas take to start: plan the number of the next hour if starts take long, or write the spec "
    "with its schedule, which starts replicas early.",
    "Help between regions: each region is simulated with the requests that the plan sends there.",
    "GPUs that are not to be had, and spot capacity that is taken away, beyond the failures that the worksheet names.",
    "Whole nodes: GPUs are counted one by one. Disks, gateways and traffic to clients are not in the price.",
)


def render(result: PlanResult, file: str) -> str:
    """The whole file; `file`: the worksheet's name."""
    plan = result.plan
    panels = _panels(result)
    return laid_out(
        "plan.html",
        sheet=plan.case.sheet,
        file=file,
        spec=plan.case.spec.name,
        hours=plan.case.hours,
        good=result.good,
        headline=result.headline,
        clashes=plan.clashes,
        notes=plan.notes,
        errors=list(result.errors.items()),
        cards=cards(result),
        panels=panels,
        figures=[(panel.key, in_script(panel.as_json())) for panel in panels],
        tables=tables(result),
        basis=basis_lines(result),
        not_modelled=NOT_MODELLED,
    )


def _panels(result: PlanResult) -> list[Panel]:
    found = [replicas_panel(result.plan), cost_panel(result.plan)] if result.plan.groups else []
    return found + [elsewhere_panel(one, number) for number, one in enumerate(result.elsewhere) if len(one.curve) > 1]


def _group_tones(plan: WorksheetPlan) -> dict[str, Tone]:
    names = dict.fromkeys(f"{group.offer.model}, {group.offer}" for group in plan.groups)
    return {name: lane_tone(number) for number, name in enumerate(names)}


def replicas_panel(plan: WorksheetPlan) -> Panel:
    """Replicas by hour, a row a region: bars by group, and the load as a line."""
    regions, tones = list(dict.fromkeys(group.region for group in plan.groups)), _group_tones(plan)
    figure, height_px = rows_figure([f"{region}: replicas" for region in regions], [_ROW_PX] * len(regions))
    hours = np.array(plan.hours)
    for row, region in enumerate(regions, start=1):
        own = [group for group in plan.groups if group.region == region]
        for group in own:
            name = f"{group.offer.model}, {group.offer}"
            bar = go.Bar(
                name=name,
                x=hours,
                y=[group.count(hour) for hour in plan.hours],
                marker={"color": tones[name].line},
                legendgroup=name,
                showlegend=group is next(one for one in plan.groups if f"{one.offer.model}, {one.offer}" == name),
                hovertemplate="%{y} replicas",
            )
            draw(figure, row, bar)
        load = np.array([sum(group.load(hour) for group in own) for hour in plan.hours])
        look = Look(width=2.2, named=row == 1)
        draw(figure, row, line_of("load, in replicas' worth", hours, load, INK, ".1f replicas", look))
    figure.update_layout(barmode="stack", bargap=0.15)
    _hour_axis(figure, plan, len(regions))
    caption = (
        "What stands above the line is headroom, spares for failures and lost regions, and the rest of the last "
        "replica. A replica's worth of load is what one replica holds within the SLOs."
    )
    return Panel("replicas", "Replicas by region, group and hour", caption, figure, height_px)


def cost_panel(plan: WorksheetPlan) -> Panel:
    """US dollars by hour, by price kind; and requests."""
    figure, height_px = rows_figure(["US dollars an hour", "Requests a second"], [_ROW_PX] * 2)
    hours = np.array(plan.hours)
    kinds = list(dict.fromkeys(kind for group in plan.groups for kind in group.replicas))
    for number, kind in enumerate(kinds):
        usd = [
            sum(
                group.replicas[kind][hour] * group.prices[kind].usd_per_replica_hour
                for group in plan.groups
                if kind in group.replicas
            )
            for hour in plan.hours
        ]
        bar = go.Bar(
            name=kind.replace("_", " "),
            x=hours,
            y=usd,
            marker={"color": (BLUE, ORANGE, GREEN)[number].line},
            hovertemplate="$%{y:.2f}",
        )
        draw(figure, 1, bar)
    for number, stream in enumerate(plan.case.streams):
        rate = np.array([sum(rates[hour] for rates in stream.rates.values()) for hour in plan.hours])
        draw(figure, 2, line_of(stream.name, hours, rate, lane_tone(number + 3), ".2f /s"))
    figure.update_layout(barmode="stack", bargap=0.15)
    _hour_axis(figure, plan, 2)
    return Panel("cost", "Cost and demand by hour", "The sum of all regions.", figure, height_px)


def elsewhere_panel(one: Elsewhere, number: int) -> Panel:
    """What a day costs by volume: by the plan, and bought."""
    figure = empty_figure("million tokens a day", "US dollars a day")
    volume, usd = (np.array(column) for column in zip(*one.curve, strict=True))
    per_mtok = one.bought_usd_per_day / one.mtok_per_day
    look = Look(points=True)
    figure.add_trace(line_of("served by the plan", volume, usd, BLUE, ",.0f USD", look))
    figure.add_trace(line_of("bought elsewhere", volume, per_mtok * volume, ORANGE, ",.0f USD"))
    if 0 < one.break_even_mtok_per_day < math.inf:
        figure.add_vline(x=one.break_even_mtok_per_day, line={"color": RED.line, "dash": "dash", "width": 1.4})
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"})
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    caption = "Other volumes have the same mix of requests and hours; both axes are logarithmic."
    return Panel(f"elsewhere-{number}", f"Buying {one.offer.model}'s tokens elsewhere", caption, figure, HEIGHT_PX)


def _hour_axis(figure: go.Figure, plan: WorksheetPlan, rows: int) -> None:
    zone = plan.case.sheet.time_zone
    what = "hour of the day" if plan.case.hours == 24 else "hour of the week, from Monday"
    name_axis(figure, f"{what}, {zone}", rows)
