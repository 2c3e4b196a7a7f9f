"""The report of a simulated run: one HTML file that stands alone, and tells a platform engineer on call what happened,
when and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.spec import TrafficClass
from planning.answer import NEIGHBOUR_COLUMNS, Answer, neighbour_rows, with_range
from planning.report.decision_panel import events_panel
from planning.report.facts import NOT_MODELLED, RunFacts, basis_line, change_rows
from planning.report.figures import Panel, clock_for
from planning.report.layout import in_script, laid_out
from planning.report.simulated_run import WAITED_FOR, ReportedRun, Slice, held_up_by
from planning.report.simulation_panels import capacity_panel, latency_panel, queue_panel, service_panel
from planning.report.token_panel import tokens_panel
from planning.report.words import Card, at, attained, bound, duration, percent
from planning.simulator.outcome import ClassShare, Figures
from planning.uncertainty import Range
from planning.workload.changes import rejections


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """`kept`: every class had its share in time. `line`: the judgement; `story`: what there is to know next."""

    kept: bool
    line: str
    story: str


def verdict(run: ReportedRun, facts: RunFacts) -> RunVerdict:
    """The judgement of a run."""
    slos = {one.name: one for one in facts.classes}
    judged = [(share, slos[share.name]) for share in run.classes if share.name in slos]
    kept = all(share.in_time >= slo.attainment for share, slo in judged)
    line = (
        ("Keeps its SLO: " if kept else "Misses its SLO: ")
        + "; ".join(_judged(share, slo) for share, slo in judged)
        + "."
    )
    return RunVerdict(kept, line, _calm(run) if kept else _trouble(run, facts))


def _judged(share: ClassShare, slo: TrafficClass) -> str:
    slo_share = f"SLO: {100 * slo.attainment:g} %"
    return (
        f"{attained(share.in_time)} of {share.requests:,} {share.name} requests had their first token within "
        f"{bound(slo.ttft_ms / 1e3)} ({slo_share})"
    )


def _calm(run: ReportedRun) -> str:
    if not run.worst:
        return "No request missed it."
    slice_ = run.worst[0]
    kv = percent(float(run.line.cell.kv_max.max()))
    worst = (
        f"Worst: from {at(slice_.from_s)} on, {slice_.missed:,} of {slice_.arrived:,} missed it, most in lane "
        f"{slice_.lane}."
    )
    return f"{worst} The fullest KV cache reached {kv}."


def _trouble(run: ReportedRun, facts: RunFacts) -> str:
    minutes, minimum = run.minutes, min(one.attainment for one in facts.classes)
    arrived = sum((lane.arrived for lane in minutes.lanes), np.zeros(minutes.bins.count))
    missed = sum((lane.missed for lane in minutes.lanes), np.zeros(minutes.bins.count))
    under = np.flatnonzero(missed > (1 - minimum) * arrived)
    slices = "minutes" if minutes.bins.width_s == 60 else f"slices of {minutes.bins.width_s:g} s"
    busy = int((arrived > 0).sum())
    first = f", the first at {at(float(minutes.bins.edges_s[under[0]]))}" if len(under) else ""
    parts = [f"{len(under):,} of {busy:,} {slices} with arrivals were under the SLO{first}"]
    late, queued = (
        sum(float(getattr(lane, name).sum()) for lane in minutes.lanes) for name in ("ttft_sum_s", "queued_sum_s")
    )
    if late:
        parts.append(
            f"late requests spent {percent(queued / late)} of their TTFT waiting in a lane, the rest in the engine"
        )
    reason = held_up_by(run.line.waits)
    if reason is not None:
        parts.append(f"what held the lanes up most: {WAITED_FOR[reason]}")
    return _sentence("; ".join(parts))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


LANE_COLUMNS = (
    "lane",
    "requests",
    "in SLO",
    "TTFT p50",
    "p90",
    "p99",
    "TPOT p50",
    "mean wait",
    "rejected",
    "expired",
    "promoted",
)
WORST_COLUMNS = (
    "from",
    "arrived",
    "missed SLO",
    "rejected or expired",
    "busiest lane",
    "its TTFT p95",
    "its queue, most",
    "KV, most",
    "what happened",
)


def cards(run: ReportedRun, facts: RunFacts) -> tuple[Card, ...]:
    """The headline."""
    whole, out = run.whole, run.outcome
    answered = int((~np.isnan(out.finished_s)).sum())
    hours = out.replica_s / 3600 * facts.price.per_replica
    usd = None if facts.price.usd_per_hour is None else hours * facts.price.usd_per_hour
    millions = float(run.line.cell.output_tokens.sum()) / 1e6
    return (
        Card("Requests", f"{whole.requests:,}", f"{answered:,} answered"),
        Card("In SLO", attained(whole.answered_in_time), f"of the {len(out.arrived_s):,} that the scheduler was given"),
        Card("Rejected", f"{whole.rejected:,}", _rejected_note(whole, rejections(facts.changes))),
        Card(
            "TTFT p50 / p90 / p99",
            " / ".join(duration(v / 1e3) for v in (whole.ttft_p50_ms, whole.ttft_p90_ms, whole.ttft_p99_ms)),
            "of the answered",
        ),
        Card(
            "TPOT p50",
            duration(whole.tpot_p50_ms / 1e3),
            f"time between tokens p99 {duration(out.itl_s.get(0.99, np.nan))}",
        ),
        Card(
            "Output tokens",
            f"{millions:,.2f} million",
            f"{out.preemptions:,} preemptions; prefix hits: {percent(out.prefix_hits, 1)} of the prompt tokens",
        ),
        Card(facts.price.hours, f"{hours:,.2f}", f"{at(run.line.length_s)} simulated"),
        Card("Cost", "no price given", "--price-per-gpu-hour")
        if usd is None
        else Card("Cost", f"${usd:,.2f}", f"${usd / millions:,.2f} per million output tokens" if millions else ""),
    )


def _rejected_note(whole: Figures, before: Mapping[str, int]) -> str:
    too_long = f"{sum(before.values()):,} of them too long; " if before else ""
    return f"{too_long}{whole.expired:,} more expired in a lane"


_LANE_FIGURES = ("answered_in_time", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "tpot_p50_ms", "queued_mean_ms")
_LANE_COUNTS = ("rejected", "expired", "promoted")


def lane_rows(run: ReportedRun, answer: Answer | None = None) -> list[tuple[tuple[str, str], ...]]:
    """A row of `LANE_COLUMNS` a lane, the last for all: each cell and its range, which is empty where there is none."""
    ranges = answer.ranges if answer is not None else [{} for _ in run.figures]
    return [
        (
            (one.name, ""),
            (f"{one.requests:,}", ""),
            *(with_range(name, one, of) for name in _LANE_FIGURES),
            *(with_range(name, one, of) if name in of else (f"{getattr(one, name):,}", "") for name in _LANE_COUNTS),
        )
        for one, of in zip(run.figures, ranges, strict=True)
    ]


def ranged_cards(run: ReportedRun, facts: RunFacts) -> tuple[Card, ...]:
    """The headline; the notes of what has a range hold it."""
    answer = facts.answer
    if answer is None or answer.costs is None:
        return cards(run, facts)
    of = answer.ranges[-1]
    notes = {
        "In SLO": _range_of(("answered_in_time",), run, of),
        "TTFT p50 / p90 / p99": _range_of(("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"), run, of),
        "TPOT p50": _range_of(("tpot_p50_ms",), run, of),
    }
    found = tuple(
        replace(card, note=f"{note}; {card.note}") if (note := notes.get(card.name)) else card
        for card in cards(run, facts)
    )
    capacity = answer.capacity
    if capacity is None or not capacity.is_near:
        return found
    near = Card("Near the capacity", f"{capacity.per_s:.3g} requests/s", f"{capacity}; a tail of the TTFT says nothing")
    return tuple(near if card.name.startswith("TTFT") else card for card in found)


def _range_of(names: Sequence[str], run: ReportedRun, of: Mapping[str, Range]) -> str:
    return " / ".join(with_range(name, run.whole, of)[1] for name in names if name in of)


def worst_rows(worst: Sequence[Slice]) -> list[tuple[Slice, tuple[str, ...]]]:
    """A row of `WORST_COLUMNS` a slice, with the slice."""
    return [(one, _worst_row(one)) for one in worst]


def _worst_row(one: Slice) -> tuple[str, ...]:
    missed = f"{one.missed:,} ({percent(one.missed / one.arrived, 1)})"
    figures = (f"{one.turned_away:,}", one.lane, duration(one.ttft_p95_s), f"{one.waiting_max:,}", percent(one.kv_max))
    return (
        at(one.from_s),
        f"{one.arrived:,}",
        missed,
        *figures,
        "; ".join(one.happened) or "nothing out of the ordinary",
    )


def panels(run: ReportedRun, facts: RunFacts) -> tuple[Panel, ...]:
    """The figures, in the order in which they are asked for."""
    line, clock = run.line, clock_for(run.line.length_s)
    present = {share.name for share in run.classes}
    return (
        latency_panel(line, [one for one in facts.classes if one.name in present], clock),
        queue_panel(line, clock),
        service_panel(line, clock),
        tokens_panel(line, facts.classes, clock),
        capacity_panel(line, facts, clock),
        events_panel(line, run.decided, clock),
    )


def render(run: ReportedRun, facts: RunFacts) -> str:
    """The whole file."""
    clock = clock_for(run.line.length_s)
    return laid_out(
        "simulation.html",
        facts=facts,
        run=run,
        verdict=verdict(run, facts),
        basis_line=basis_line,
        cards=ranged_cards(run, facts),
        costs_range=None if facts.answer is None else facts.answer.costs,
        neighbour_columns=NEIGHBOUR_COLUMNS,
        neighbour_rows=[] if facts.answer is None else neighbour_rows(facts.answer),
        change_rows=change_rows(facts.changes),
        lane_columns=LANE_COLUMNS,
        lane_rows=lane_rows(run, facts.answer),
        worst_columns=WORST_COLUMNS,
        worst_rows=worst_rows(run.worst),
        slice_s=run.minutes.bins.width_s,
        panels=[(panel, in_script(panel.as_json())) for panel in panels(run, facts)],
        clock=clock,
        not_modelled=NOT_MODELLED,
    )
