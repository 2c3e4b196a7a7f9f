"""What a side did to each lane, and how it compares with first-in-first-out on the same arrivals. Pure.

Rejections count as misses in the tails. Kleinrock's conservation law: whatever a work-conserving server's order, the
sum over requests of work x wait is the same, as long as the order does not look at the work itself within a lane. So if
short requests wait less than under first-in-first-out, long ones must wait more, by as much:

    bound(long) = (sum of work x wait under fifo, all lanes - sum of work x wait under lanes, the other lanes) / work of
    the long lane

in means of the waits for the first token, weighted by work.

Above capacity the two sides' engines have to be equally fast for their waits to be compared: what waits is what came
less what was done, so at 1.2 times the capacity an engine that is 1 % slower makes all waits 6 % longer. `long_cost`
holds that. `long_cost_alike` takes it off: both sides run the same arrivals until drained, and first-in-first-out's
waits are stretched as the time after the last arrival was, (T - D) / (T_fifo - D). What is left is what the order
costs; what the side really lost in throughput stands in `throughput`.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.lanes.mix import LANES, lane_index
from benchmarks.lanes.wait_coverage import LaneCoverage
from cli.bench.load import LoadResult
from planning.workload.arrivals import FloatArray
from planning.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class EngineQueue:
    """The 99th percentile of the engine's own queue time, and the median step (the time per output token of a request
    is the mean of its steps)."""

    requests: int
    queued_p99_s: float
    step_p50_s: float

    @property
    def steps(self) -> float:
        """The queue time in median steps."""
        return self.queued_p99_s / self.step_p50_s if self.step_p50_s else float("nan")


def engine_queue(lines: Iterable[str], since_unix_s: float) -> EngineQueue:
    """The engine's queue over the requests of a trace file that arrived after a moment and were served."""
    queued, steps = [], []
    for line in lines:
        record: dict[str, Any] = json.loads(line)
        if record["arrived_s"] >= since_unix_s and "engine_queue" in record["stages_s"]:
            queued.append(record["stages_s"]["engine_queue"])
            if record["tpot_s"]:
                steps.append(record["tpot_s"])
    return of_times(queued, steps)


def of_times(queued_s: Sequence[float] | FloatArray, steps_s: Sequence[float] | FloatArray) -> EngineQueue:
    """From each request's time in the engine's queue, and its mean step."""
    if not len(queued_s) or not len(steps_s):
        return EngineQueue(0, 0.0, 0.0)
    return EngineQueue(len(queued_s), float(np.quantile(queued_s, 0.99)), float(np.median(steps_s)))


DECODE_WEIGHT = 4.0
IN_TIME_S = 5.0


@dataclass(frozen=True, slots=True)
class LaneResult:
    """One lane of one run. Times to first token in seconds; a request without one counts as infinitely late in the
    quantiles, not in the mean."""

    lane: str
    requests: int
    missed: int
    ttft_p50_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    work: float
    """In prefill tokens."""


def times_to_first_token(outcome: LoadResult) -> FloatArray:
    """By request, in seconds; infinite for one that failed."""
    return np.array(
        [
            sample.ttft_s if sample.failure is None and sample.ttft_s is not None else math.inf
            for sample in outcome.samples
        ]
    )


def overall(ttft_s: FloatArray) -> tuple[float, float]:
    """Of all requests of a run: the mean time of those that got a first token, and the share within `IN_TIME_S`."""
    return float(ttft_s[np.isfinite(ttft_s)].mean()), float((ttft_s <= IN_TIME_S).mean())


def by_lane(mix: Trace, ttft_s: FloatArray) -> list[LaneResult]:
    """The results of a run, a lane each. `ttft_s`: by request, infinite for one without a first token."""
    lanes = np.array([lane_index(int(p), int(o)) for p, o in zip(mix.prompt_tokens, mix.output_tokens, strict=True)])
    work = mix.prompt_tokens + DECODE_WEIGHT * mix.output_tokens
    return [_lane(str(lane["name"]), ttft_s[lanes == index], work[lanes == index]) for index, lane in enumerate(LANES)]


def _lane(name: str, ttft: FloatArray, work: FloatArray) -> LaneResult:
    answered = np.isfinite(ttft)
    if not len(ttft):
        return LaneResult(name, 0, 0, math.nan, math.nan, math.nan, 0.0)
    p50, p99 = np.quantile(ttft, (0.5, 0.99), method="higher")
    weighted = float(np.average(ttft[answered], weights=work[answered])) if answered.any() else math.nan
    return LaneResult(name, len(ttft), int((~answered).sum()), float(p50), float(p99), weighted, float(work.sum()))


def conserved_long_mean_s(fifo: list[LaneResult], lanes: list[LaneResult], slower: float = 1.0) -> float:
    """What the long lane's mean must be at least, given what the others gained. `slower`: how many times as long
    everybody waits, on average, because this side's engine was slower than that of first-in-first-out."""
    total = sum(lane.ttft_mean_s * lane.work for lane in fifo) * slower
    others = sum(lane.ttft_mean_s * lane.work for lane in lanes[:-1])
    return (total - others) / lanes[-1].work


@dataclass(frozen=True, slots=True)
class SideResult:
    """What one side made of a mix. `late_s`: the most that the client itself was late."""

    lanes: list[LaneResult]
    overall: tuple[float, float]
    wait_estimates: list[LaneCoverage]
    engine_queue: EngineQueue
    output_tokens_per_s: float
    elapsed_s: float
    late_s: float
    failures: dict[str, int]
    arrivals_s: float
    """When the last request arrived."""


@dataclass(frozen=True, slots=True)
class LaneVerdict:
    """One pair of runs. `short_gain`: how many times the short lane's p99 is better; `throughput`: the share of
    first-in-first-out's output tokens a second; `long_cost`: the long lane's mean wait over the conservation bound,
    `long_cost_alike`: at equal speed; `queue_steps`: the p99 of the engine's own queue in median steps; `coverage`: the
    share of waits inside the estimated p95, by lane."""

    short_gain: float
    throughput: float
    long_cost: float
    long_cost_alike: float
    queue_steps: float
    coverage: dict[str, float]


def judge(side: SideResult, fifo: SideResult) -> LaneVerdict:
    """A side against first-in-first-out."""
    slower = (side.elapsed_s - side.arrivals_s) / (fifo.elapsed_s - fifo.arrivals_s)
    return LaneVerdict(
        fifo.lanes[0].ttft_p99_s / side.lanes[0].ttft_p99_s,
        side.output_tokens_per_s / fifo.output_tokens_per_s,
        side.lanes[-1].ttft_mean_s / conserved_long_mean_s(fifo.lanes, side.lanes),
        side.lanes[-1].ttft_mean_s / conserved_long_mean_s(fifo.lanes, side.lanes, slower),
        side.engine_queue.steps,
        {lane.lane: lane.within_p95 for lane in side.wait_estimates},
    )


def verdict_table(title: str, named: Sequence[tuple[str, LaneVerdict]]) -> Table:
    """A line for each verdict, and the median of all."""
    table = Table(title=title, title_justify="left")
    names = sorted({lane for _, verdict in named for lane in verdict.coverage})
    heads = (
        "",
        "short p99 fifo / this",
        "throughput",
        "long mean / bound",
        "at equal speed",
        "engine queue p99, steps",
    )
    for column in (*heads, *(f"{lane} within p95" for lane in names)):
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    rows = [(name, _figures(verdict, names)) for name, verdict in named]
    if len(rows) > 1:
        rows.append(("median", [median(column) for column in zip(*(figures for _, figures in rows), strict=True)]))
    for name, figures in rows:
        table.add_row(
            name,
            *(
                f"{figure:.{digits}f}"
                for figure, digits in zip(figures, (1, 3, 3, 3, 1, *[3] * len(names)), strict=True)
            ),
        )
    return table


def overall_table(title: str, runs: Sequence[dict[str, SideResult]]) -> Table:
    """A line for each side: medians over the runs, with the least and the most."""
    table = Table(title=title, title_justify="left")
    for column in ("side", "mean TTFT, s", f"within {IN_TIME_S:g} s", "short p99, s", "output tokens/s"):
        table.add_column(column, justify="right" if column != "side" else "left")
    for name in runs[0]:
        results = [run[name] for run in runs]
        rows = [(*one.overall, one.lanes[0].ttft_p99_s, one.output_tokens_per_s) for one in results]
        columns = zip(*rows, strict=True)
        table.add_row(name, *(f"{median(all_):.3g} ({min(all_):.3g} to {max(all_):.3g})" for all_ in columns))
    return table


def _figures(verdict: LaneVerdict, lanes: Sequence[str]) -> list[float]:
    coverage = [verdict.coverage.get(lane, float("nan")) for lane in lanes]
    return [
        verdict.short_gain,
        verdict.throughput,
        verdict.long_cost,
        verdict.long_cost_alike,
        verdict.queue_steps,
        *coverage,
    ]
