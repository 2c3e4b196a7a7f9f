"""What `raylane simulate` prints: what is not modelled and what was changed, the figures with their range, and the same
with one replica fewer and one more; as text, or as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.markup import escape

from cli.console import Table, console, plain_table, print_json
from cli.options import show_changes, show_unmodelled
from deployments.engine_model.cost_file import CostFile
from deployments.wire import to_json
from planning.answer import NEIGHBOUR_COLUMNS, TAIL, Answer, Variant, neighbour_rows, with_range
from planning.report.words import attained, duration
from planning.simulation import GroupFigures, Simulation
from planning.simulator.outcome import SimulationOutcome, rejections_of
from planning.unmodelled import Unmodelled, unmodelled_of
from planning.workload.changes import rejections

Costs = Mapping[str, CostFile]
"""The cost files, by group."""
SCHEMA_VERSION = 1
_COUNTS = ("rejected", "expired", "failed", "promoted")
_RANGED = (
    ("TTFT p50", "ttft_p50_ms"),
    ("p90", "ttft_p90_ms"),
    ("p99", "ttft_p99_ms"),
    ("TPOT p50", "tpot_p50_ms"),
    ("in time", "answered_in_time"),
)

_RESTS = {
    "measured": "measured on this engine",
    "profile": "from a profile of the model's layers",
    "roofline": "[yellow]NOT measured: a roofline[/]",
}


def show_answer(case: Simulation, costs: Costs, out: SimulationOutcome, answer: Answer) -> None:
    """As text. What the figures leave out comes before them."""
    show_unmodelled(_unmodelled(case, costs))
    show_changes(case.work.changes)
    _show_lines(f"{case.model.name}{', ' if case.scales else ' on '}{case.in_words()}", costs, out, answer)
    if case.scales or len(case.views) > 1:
        console.print(_groups_table(case.group_figures(out)))
    rows = neighbour_rows(answer)
    if rows:
        console.print(_table("with one replica fewer or more", NEIGHBOUR_COLUMNS, rows))


def print_answer(case: Simulation, costs: Costs, out: SimulationOutcome, answer: Answer) -> None:
    """As JSON."""
    several = case.scales or len(case.views) > 1
    groups = {"groups": to_json(case.group_figures(out))} if several else {}
    print_json(_as_json(case, costs, out, answer) | groups)


def _as_json(case: Simulation, costs: Costs, out: SimulationOutcome, answer: Answer) -> dict[str, Any]:
    by_group = {
        group: {"basis": one.basis, "hardware": one.hardware, "error": one.error} for group, one in costs.items()
    }
    rests = next(iter(by_group.values())) if len(by_group) == 1 else {"groups": by_group}
    return {
        "schema": SCHEMA_VERSION,
        "replicas": case.replicas,
        "not_modelled": to_json(_unmodelled(case, costs)),
        "changes": [change.as_json() for change in case.work.changes],
        "rejections": rejections(case.work.changes) | rejections_of(out),
        "costs": rests | {"range": to_json(answer.costs)},
        "simulated_s": out.ended_s,
        "preemptions": out.preemptions,
        "itl_s": {f"p{100 * share:g}": value for share, value in out.itl_s.items()},
        "prefix_hits": to_json(out.prefix_hits),
        "classes": to_json(answer.runs[Variant.THIS].classes),
        "capacity": to_json(answer.capacity),
        "lanes": answer.lanes_as_json(),
        "replica_hours": {"value": out.replica_s / 3600, "range": None if answer.hours is None else list(answer.hours)},
        "neighbours": answer.neighbours_as_json(),
    }


def _unmodelled(case: Simulation, costs: Costs) -> tuple[Unmodelled, ...]:
    return unmodelled_of((view.model for view in case.views), costs, case.spec)


def _groups_table(groups: Sequence[GroupFigures]) -> Table:
    columns = ("group", "replica-hours", "USD", "mean", "at most", "requests", "in time", "changes")
    rows: list[tuple[str, ...]] = []
    for one in groups:
        changes = ", ".join(f"{reason} {count}" for reason, count in one.changes.items())
        figures = (f"{one.replica_hours:.2f}", f"{one.usd:.2f}" if one.usd else "-", f"{one.mean_replicas:.2f}")
        rows.append(
            (one.group, *figures, str(one.max_replicas), f"{one.requests:,}", attained(one.in_time), changes or "-")
        )
    if len(groups) > 1:
        hours, usd = sum(one.replica_hours for one in groups), sum(one.usd for one in groups)
        rows.append(("all", f"{hours:.2f}", f"{usd:.2f}" if usd else "-", "", "", "", "", ""))
    return _table("replicas by group", columns, rows)


def _show_lines(what: str, costs: Costs, out: SimulationOutcome, answer: Answer) -> None:
    lines = answer.lines
    reported = [name for name in _COUNTS if any(getattr(line, name) for line in lines)]
    columns = ("lane", "requests", *reported, "TTFT p50", "p90", "p99", "TPOT p50", "mean wait", "in time")
    rows = []
    for line in lines:
        times = (line.ttft_p50_ms, line.ttft_p90_ms, line.ttft_p99_ms, line.tpot_p50_ms, line.queued_mean_ms)
        counts = (str(getattr(line, name)) for name in ("requests", *reported))
        shown = ("-" if np.isnan(value) else f"{value:.0f} ms" for value in times)
        rows.append((line.name, *counts, *shown, attained(line.answered_in_time)))
    console.print(_table(f"model {what}: {out.ended_s:.0f} s simulated", columns, rows))
    if answer.costs is not None:
        console.print(escape(f"all requests: {_ranged(answer)}"))
        console.print(f"  the range: {answer.costs}; the same traffic with the costs at both ends")
    if answer.capacity is not None:
        near = "near the [yellow]capacity[/], where a tail of the TTFT says nothing" * answer.capacity.is_near
        console.print(f"{near or 'capacity'}: {answer.capacity}")
    _show_tokens(out, answer)
    console.print("\n".join(dict.fromkeys(map(costs_line, costs.values()))))


def costs_line(cost: CostFile) -> str:
    """On what the figures rest."""
    error = "" if cost.error is None else f", its step times off by {cost.error:.1%} on average"
    return f"costs: {_RESTS[cost.basis]} ({cost.hardware}){error}"


def _show_tokens(out: SimulationOutcome, answer: Answer) -> None:
    """The time between tokens, what of it was within the classes' `itl_ms`, and prefix hits."""
    quantiles = ", ".join(f"p{100 * share:g} {duration(value)}" for share, value in out.itl_s.items())
    classes = (one for one in answer.runs[Variant.THIS].classes if not np.isnan(one.itl_in_time))
    within = "".join(f"; within itl_ms: {one.name} {attained(one.itl_in_time)}" for one in classes)
    hits = f"; prefix hits: {out.prefix_hits:.1%} of the prompt tokens" if out.cached_tokens.any() else ""
    if quantiles:
        console.print(f"time between tokens: {quantiles}{within}{hits}")


def _ranged(answer: Answer) -> str:
    """The figures of all requests, each with its range."""
    whole, of = answer.lines[-1], answer.ranges[-1]
    found = []
    is_near = answer.capacity is not None and answer.capacity.is_near
    for title, name in _RANGED:
        if is_near and name in TAIL:
            continue
        value, range_ = with_range(name, whole, of)
        found.append(f"{title} {value}{f' ({range_})' if range_ else ''}")
    if of and answer.hours is not None and answer.hours[0] != answer.hours[1]:
        found.append(f"replica-hours {answer.hours[0]:,.2f} to {answer.hours[1]:,.2f}")
    return ", ".join(found)


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = plain_table(*columns, left=1, title=title)
    for row in rows:
        table.add_row(*row)
    return table
