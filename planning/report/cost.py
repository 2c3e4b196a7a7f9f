"""The page of a bill: what was spent by hour, by tenant and on what, one HTML file that stands alone."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import plotly.graph_objects as go

from deployments.accounting.bill import HOUR_NS, Bill, BillLine, TimeShare, hour_name, rows_by, total_of
from planning.report.figures import BLUE, GREEN, LANES, ORANGE, RED, SLATE, Tone, empty_figure
from planning.report.layout import in_script, laid_out
from planning.report.words import Card, percent

_TONES = {
    TimeShare.WORK: GREEN,
    TimeShare.STARTING: BLUE,
    TimeShare.IDLE: SLATE,
    TimeShare.UNATTRIBUTED: RED,
    TimeShare.EXTERNAL: ORANGE,
}
MAX_BARS = 20
"""Tenants beyond the largest so many are one bar."""


def render(bill: Bill, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """The whole file, with the table as the terminal has it (its last row is the total)."""
    figures = {"hours": _hours_figure(bill.lines), "tenants": _tenants_figure(bill.lines)}
    hours = sorted({line.key.hour_ns for line in bill.lines})
    span = f"{hour_name(hours[0])} to {hour_name(hours[-1] + HOUR_NS)} (UTC)" if hours else "no time"
    return laid_out(
        "cost.html",
        span=span,
        headline=headline(bill),
        cards=_cards(bill),
        columns=columns,
        rows=rows,
        notes=notes,
        figures=[(key, in_script(str(figure.to_json()))) for key, figure in figures.items()],
    )


def headline(bill: Bill) -> str:
    """The one line on top."""
    rows = rows_by(bill.lines, ())
    total, work = total_of(rows), total_of(row for row in rows if row.share is TimeShare.WORK)
    share = float(work.usd / total.usd) if total.usd else 0.0
    return f"${total.shown:,.2f} for {total.amounts.ns / HOUR_NS:,.1f} replica-hours, {percent(share)} of it for work."


def _cards(bill: Bill) -> list[Card]:
    rows = rows_by(bill.lines, ())
    work, total = total_of(row for row in rows if row.share is TimeShare.WORK), total_of(rows)
    cards = []
    for share in TimeShare:
        usd = sum((row.usd for row in rows if row.share is share), Fraction(0))
        cards.append(
            Card(
                share.value.capitalize(),
                f"${float(usd):,.2f}",
                percent(float(usd / total.usd) if total.usd else 0.0, 1),
            )
        )
    for name, price, tokens in (
        ("prompt", work.usd_per_mtok_in, work.amounts.prompt_tokens),
        ("output", work.usd_per_mtok_out, work.amounts.output_tokens),
    ):
        value = "-" if price is None else f"${price:,.4g}"
        cards.append(Card(f"Million {name} tokens", value, f"of work alone; {tokens:,} tokens"))
    return cards


def _hours_figure(lines: Sequence[BillLine]) -> go.Figure:
    """Dollars by hour, stacked by what the time was for."""
    sums: defaultdict[TimeShare, defaultdict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for line in lines:
        sums[line.key.share][line.key.hour_ns] += line.usd
    hours = sorted({line.key.hour_ns for line in lines})
    figure = empty_figure("", "USD")
    for share in TimeShare:
        figure.add_trace(_bar(share.value, hours, sums[share], _TONES[share]))
    return _finished(figure)


def _finished(figure: go.Figure) -> go.Figure:
    """Bars on top of each other, with a legend above them."""
    figure.update_layout(
        barmode="stack",
        showlegend=True,
        margin_t=40,
        height=None,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )
    return figure


def _bar(name: str, hours: Sequence[int], usd: defaultdict[int, Fraction], tone: Tone) -> go.Bar:
    return go.Bar(
        name=name,
        x=[hour_name(hour).replace("T", " ") + ":00" for hour in hours],
        y=[float(usd[hour]) for hour in hours],
        marker={"color": tone.line},
        hovertemplate="%{x}: $%{y:.4f}<extra>" + name + "</extra>",
    )


def _tenants_figure(lines: Sequence[BillLine]) -> go.Figure:
    """Dollars by tenant, stacked by class; what is nobody's has bars of its own."""
    sums: defaultdict[str, defaultdict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    totals: defaultdict[str, Fraction] = defaultdict(Fraction)
    for line in lines:
        is_work = line.key.share is TimeShare.WORK
        who = (line.key.tenant or "(no tenant)") if is_work else f"({line.key.share.value})"
        sums[(line.key.traffic_class or "(no class)") if is_work else "nobody's"][who] += line.usd
        totals[who] += line.usd
    return _stacked(sums, totals)


def _stacked(sums: defaultdict[str, defaultdict[str, Fraction]], totals: defaultdict[str, Fraction]) -> go.Figure:
    shown = sorted(totals, key=lambda who: -totals[who])[:MAX_BARS]
    rest = [who for who in totals if who not in shown]
    names = [*shown, *([f"{len(rest)} others"] if rest else [])]
    figure = empty_figure("USD", "")
    tones = (*LANES, ORANGE, RED)
    for place, (name, by_who) in enumerate(sums.items()):
        values = [float(by_who[who]) for who in shown]
        values += [sum(float(by_who[who]) for who in rest)] if rest else []
        figure.add_trace(
            go.Bar(
                name=name,
                y=names[::-1],
                x=values[::-1],
                orientation="h",
                marker={"color": tones[place % len(tones)].line},
                hovertemplate="%{y}: %{x:,.4~f}<extra>" + name + "</extra>",
            )
        )
    figure.update_yaxes(type="category", automargin=True)
    return _finished(figure)
