"""A drill with what it showed: what the terminal, the JSON and the page are made of. Pure."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from planning.drill.drill import Drill, DrillTraffic, StartTimes
from planning.drill.findings import (
    NOT_BEFORE_THE_END,
    DrillFindings,
    DrillSlo,
    PhaseFigures,
    PredictedFigure,
    compare,
)
from planning.drill.record import DrillRecord

SCHEMA_VERSION = 1
MAX_ERROR = 0.25
"""By how much the simulated drill may be off in the time until the SLO holds again."""


@dataclass(frozen=True, slots=True)
class DrillRun:
    """One run: request by request, and in figures."""

    record: DrillRecord
    findings: DrillFindings


@dataclass(frozen=True, slots=True)
class DrillResult:
    """A drill of a model. `simulated`: with the traffic as it was sent, where there was a live run, too. `rtt_s`: the
    round trips, by pair. `near_s`: the time until the SLO holds again with engines a little faster and slower.
    `started`: how long the live cell took to come back, and the simulated one, too."""

    cluster: str
    model: str
    slo: DrillSlo
    drill: Drill
    traffic: DrillTraffic
    rtt_s: Mapping[frozenset[str], float]
    simulated: DrillRun
    near_s: tuple[float | None, ...] = ()
    live: DrillRun | None = None
    late_s: float | None = None
    started: StartTimes | None = None

    @property
    def seen(self) -> DrillRun:
        """The live run, or the simulated one where that is all."""
        return self.live or self.simulated

    @property
    def compared(self) -> tuple[PredictedFigure, ...]:
        """What the simulation predicted beside what was seen live; nothing without a live run."""
        if self.live is None:
            return ()
        middle_s = self.predicted_s[0]
        first, *others = compare(self.simulated.findings, self.live.findings)
        return (replace(first, predicted=middle_s if math.isfinite(middle_s) else None), *others)

    @property
    def predicted_s(self) -> tuple[float, float, float]:
        """The time until the SLO holds again, in the simulations at all costs: median, lowest and highest; infinite
        where it does not before the end."""
        found = (self.simulated.findings.recovery_s, *self.near_s)
        ordered = sorted(math.inf if one is None else one for one in found)
        return statistics.median_low(ordered), ordered[0], ordered[-1]

    @property
    def prediction(self) -> str:
        """The same in words: the median, and the range where there is one."""
        middle, low, high = (recovery(None if math.isinf(one) else one) for one in self.predicted_s)
        return middle if low == high else f"{middle} ({low} to {high})"

    @property
    def good(self) -> bool:
        """Whether the SLO held again before the end, no answer had too much, and everybody got an answer."""
        found = self.seen.findings
        return found.recovery_s is not None and not found.twice and "unanswered" not in found.lost

    @property
    def came_back(self) -> str:
        """How a lost cell did; empty where it did not, or where that is not known."""
        if self.started is None or not self.drill.phases.get("after"):
            return ""
        boot_s, replicas_s = self.started.boot_s, self.started.replicas_s
        return (
            f"{self.drill.cell} was started at second {self.drill.heals_s:g}: its gateway answered {boot_s:.1f} s "
            f"later, its replicas after {replicas_s:.1f} s more; the simulated one takes as long"
        )

    @property
    def headline(self) -> str:
        """One line of text."""
        found = self.seen.findings
        if found.recovery_s is None:
            held = "the SLO did not hold again before the end"
        elif found.recovery_s == 0:
            held = "the SLO held throughout"
        else:
            held = f"the SLO held again after {recovery(found.recovery_s)}"
        lost = found.lost_requests
        whole = "all answers whole" if not lost else f"{lost:,} of {found.requests:,} requests without a whole answer"
        return f"{self.drill.kind} of {self.drill.cell}: {held}; {whole}"

    def rates(self) -> Mapping[str, float]:
        """Requests a second, by cell."""
        count = [int((self.traffic.homes == number).sum()) for number in range(len(self.traffic.cells))]
        return {name: one / self.drill.length_s for name, one in zip(self.traffic.cells, count, strict=True)}

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        drill = self.drill
        return {
            "schema_version": SCHEMA_VERSION,
            "cluster": self.cluster,
            "model": self.model,
            "drill": {
                "kind": drill.kind.value,
                "cell": drill.cell,
                "others": list(drill.others),
                "at_s": drill.at_s,
                "heals_s": drill.heals_s if drill.phases.get("after") else None,
                "length_s": drill.length_s,
            },
            "slo": {"ttft_s": self.slo.ttft_s, "attainment": self.slo.share},
            "requests_per_s": {name: round(rate, 4) for name, rate in self.rates().items()},
            "rtt_ms": {":".join(sorted(pair)): round(1e3 * rtt_s, 3) for pair, rtt_s in self.rtt_s.items()},
            "simulated": self.simulated.findings.as_json(),
            "recovery_s_near": list(self.near_s),
            "live": None if self.live is None else self.live.findings.as_json(),
            "client_late_s": self.late_s,
            "started_s": None if self.started is None else asdict(self.started),
            "compared": [one.as_json() for one in self.compared],
        }


PHASE_COLUMNS = ("clients of", "when", "requests", "SLO met", "TTFT p50", "TTFT p99", "handed over")


def phase_rows(findings: DrillFindings) -> list[list[str]]:
    """A row for each cell and phase; the last rows are of all cells together."""
    ordered = sorted(findings.phases, key=lambda one: one.cell == "")
    cells = list(dict.fromkeys(one.cell for one in ordered))
    return [_phase_row(one) for cell in cells for one in ordered if one.cell == cell]


def _phase_row(one: PhaseFigures) -> list[str]:
    return [
        one.cell or "all cells",
        one.phase,
        f"{one.requests:,}",
        percents(one.met),
        seconds(one.ttft_p50_s),
        seconds(one.ttft_p99_s),
        f"{one.handed_over:,}",
    ]


LINE_COLUMNS = ("", "figure")


def finding_rows(findings: DrillFindings, drill: Drill) -> list[list[str]]:
    """What was lost, how long it took, what it cost: a name and a value each."""
    rows = [["time until the SLO held again", recovery(findings.recovery_s)]]
    if len(findings.recovery_by_cell_s) > 1:
        rows += [[f"  for the clients of {name}", recovery(one)] for name, one in findings.recovery_by_cell_s.items()]
    if findings.heals:
        rows.append(["the same after the fault was over", recovery(findings.after_healing_s)])
    rows += [[f"requests that ended: {end}", f"{count:,}"] for end, count in findings.lost.items()]
    rows.append(["answers with more than what was asked for", f"{findings.twice:,}"])
    if findings.next_answer_s is not None:
        p50_s, p99_s, max_s = findings.next_answer_s
        rows.append(
            ["next answer of a client whose cell was gone", f"p50 {p50_s:.2f} s, p99 {p99_s:.2f} s, max {max_s:.2f} s"]
        )
    if findings.last_hop_s is not None:
        rows.append([f"last hand-over to {drill.cell} after its loss", f"{findings.last_hop_s:.2f} s"])
    rows.append(
        ["handed over", f"{findings.handed_over:,} ({percents(findings.handed_over / max(1, findings.requests))})"]
    )
    if findings.heals:
        peaks = f"{findings.peak_after_healing:,} in a second after healing, {findings.peak_before:,} before"
        rows.append(["largest number handed over", peaks])
    if findings.replica_s:
        total = sum(findings.replica_s.values())
        price = "" if findings.usd is None else f", ${findings.usd:,.2f}"
        rows.append(["replica-seconds", f"{total:,.0f}{price}"])
    return rows


COMPARED_COLUMNS = ("figure", "simulated", "live", "error")


def compared_rows(figures: tuple[PredictedFigure, ...]) -> list[list[str]]:
    """A row for each figure that both runs have."""
    return [
        [
            one.name,
            one.missing if one.predicted is None else f"{one.predicted:,.4g} {one.unit}".strip(),
            one.missing if one.seen is None else f"{one.seen:,.4g} {one.unit}".strip(),
            "-" if one.error is None else f"{100 * one.error:+.0f} %",
        ]
        for one in figures
    ]


def recovery(value_s: float | None) -> str:
    """A time until the SLO held again."""
    if value_s is None:
        return NOT_BEFORE_THE_END
    return "it always held" if value_s == 0 else f"{value_s:.2f} s" if value_s < 1 else f"{value_s:.1f} s"


def percents(share: float) -> str:
    """A share, or a dash."""
    return "-" if share != share else f"{100 * share:.1f} %"


def seconds(value_s: float) -> str:
    """Seconds, or a dash."""
    return "-" if value_s != value_s else f"{value_s:.2f} s"
