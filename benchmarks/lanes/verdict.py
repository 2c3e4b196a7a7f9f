"""What lanes gain and what they cost, in the figures that are promised: one side against first-in-first-out on the same arrivals. Pure.

Above capacity the two sides' engines have to be equally fast for their waits to be compared: what waits is what came less what was done, so at 1.2
times the capacity an engine that is 1 % slower makes all waits 6 % longer. `long_cost` holds that. `long_cost_alike` takes it off: both sides play
the same arrivals until drained, and first-in-first-out's waits are stretched as the time after the last arrival was, (T - D) / (T_fifo - D). What
is left is what the order costs; what the side really lost in throughput stands in `throughput`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.lanes.engine_queue import EngineQueue
from benchmarks.lanes.promises import Coverage
from benchmarks.lanes.results import LaneResult, conserved_long_mean_s


@dataclass(frozen=True, slots=True)
class SideResult:
    """What one side made of a mix. `late_s`: the most that the client itself was late."""

    lanes: list[LaneResult]
    promises: list[Coverage]
    engine_queue: EngineQueue
    output_tokens_per_s: float
    elapsed_s: float
    late_s: float
    failures: dict[str, int]
    arrivals_s: float
    """When the last request arrived."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"engine_queue": self.engine_queue.as_json()}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One pair of runs. `short_gain`: how many times the short lane's p99 is better; `throughput`: the share of first-in-first-out's output tokens
    a second; `long_cost`: the long lane's mean wait over the conservation bound, `long_cost_alike`: at equal speed; `queue_steps`: the p99 of the
    engine's own queue in median steps; `coverage`: the share of waits inside the promised p95, by lane."""

    short_gain: float
    throughput: float
    long_cost: float
    long_cost_alike: float
    queue_steps: float
    coverage: dict[str, float]


def judge(side: SideResult, fifo: SideResult) -> Verdict:
    """A side against first-in-first-out."""
    slower = (side.elapsed_s - side.arrivals_s) / (fifo.elapsed_s - fifo.arrivals_s)
    return Verdict(
        fifo.lanes[0].ttft_p99_s / side.lanes[0].ttft_p99_s,
        side.output_tokens_per_s / fifo.output_tokens_per_s,
        side.lanes[-1].ttft_mean_s / conserved_long_mean_s(fifo.lanes, side.lanes),
        side.lanes[-1].ttft_mean_s / conserved_long_mean_s(fifo.lanes, side.lanes, slower),
        side.engine_queue.steps,
        {lane.lane: lane.within_p95 for lane in side.promises},
    )


def verdict_table(title: str, named: Sequence[tuple[str, Verdict]]) -> Table:
    """A line for each verdict, and the median of all."""
    table = Table(title=title, title_justify="left")
    names = sorted({lane for _, verdict in named for lane in verdict.coverage})
    heads = ("", "short p99 fifo / this", "throughput", "long mean / bound", "at equal speed", "engine queue p99, steps")
    for column in (*heads, *(f"{lane} within p95" for lane in names)):
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    rows = [(name, _figures(verdict, names)) for name, verdict in named]
    if len(rows) > 1:
        rows.append(("median", [median(column) for column in zip(*(figures for _, figures in rows), strict=True)]))
    for name, figures in rows:
        table.add_row(name, *(f"{figure:.{digits}f}" for figure, digits in zip(figures, (1, 3, 3, 3, 1, *[3] * len(names)), strict=True)))
    return table


def _figures(verdict: Verdict, lanes: Sequence[str]) -> list[float]:
    coverage = [verdict.coverage.get(lane, float("nan")) for lane in lanes]
    return [verdict.short_gain, verdict.throughput, verdict.long_cost, verdict.long_cost_alike, verdict.queue_steps, *coverage]
