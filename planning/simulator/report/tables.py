"""The headline of a report and its tables, as cells of text: what a template only has to lay out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planning.simulator.report.facts import Facts
from planning.simulator.report.run import Run
from planning.simulator.words import at, attained, duration, percent
from planning.simulator.worst import Slice

LANE_COLUMNS = ("lane", "requests", "in SLO", "TTFT p50", "p90", "p99", "TPOT p50", "mean wait", "rejected", "expired", "promoted")
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


@dataclass(frozen=True, slots=True)
class Card:
    """One figure of the headline."""

    name: str
    value: str
    note: str = ""


def cards(run: Run, facts: Facts) -> tuple[Card, ...]:
    """The headline."""
    whole, out = run.whole, run.outcome
    answered = int((~np.isnan(out.finished_s)).sum())
    hours = float(run.line.cell.replica_hours[-1]) * facts.price.per_replica
    usd = None if facts.price.usd_per_hour is None else hours * facts.price.usd_per_hour
    millions = float(run.line.cell.output_tokens.sum()) / 1e6
    return (
        Card("Requests", f"{whole.requests:,}", f"{answered:,} answered"),
        Card("In SLO", attained(whole.answered_in_time), f"of all {whole.requests:,}"),
        Card("Rejected", f"{whole.rejected:,}", f"and {whole.expired:,} expired in a lane"),
        Card(
            "TTFT p50 / p90 / p99",
            " / ".join(duration(v / 1e3) for v in (whole.ttft_p50_ms, whole.ttft_p90_ms, whole.ttft_p99_ms)),
            "of the answered",
        ),
        Card("TPOT p50", duration(whole.tpot_p50_ms / 1e3), f"time between tokens p99 {duration(out.itl_s.get(0.99, np.nan))}"),
        Card("Output tokens", f"{millions:,.2f} million", f"{out.preemptions:,} preemptions"),
        Card(facts.price.hours, f"{hours:,.2f}", f"{at(run.line.length_s)} simulated"),
        Card("Cost", "no price given", "--price-per-gpu-hour")
        if usd is None
        else Card("Cost", f"${usd:,.2f}", f"${usd / millions:,.2f} per million output tokens" if millions else ""),
    )


def lane_rows(run: Run) -> list[tuple[str, ...]]:
    """A row of `LANE_COLUMNS` a lane, the last for all."""
    return [
        (
            one.name,
            f"{one.requests:,}",
            attained(one.answered_in_time),
            *(duration(value / 1e3) for value in (one.ttft_p50_ms, one.ttft_p90_ms, one.ttft_p99_ms, one.tpot_p50_ms, one.queued_mean_ms)),
            *(f"{value:,}" for value in (one.rejected, one.expired, one.promoted)),
        )
        for one in run.figures
    ]


def worst_rows(worst: Sequence[Slice]) -> list[tuple[Slice, tuple[str, ...]]]:
    """A row of `WORST_COLUMNS` a slice, with the slice."""
    return [(one, _worst_row(one)) for one in worst]


def _worst_row(one: Slice) -> tuple[str, ...]:
    missed = f"{one.missed:,} ({percent(one.missed / one.arrived, 1)})"
    figures = (f"{one.turned_away:,}", one.lane, duration(one.ttft_p95_s), f"{one.waiting_most:,}", percent(one.kv_most))
    return (at(one.from_s), f"{one.arrived:,}", missed, *figures, "; ".join(one.happened) or "nothing out of the ordinary")
