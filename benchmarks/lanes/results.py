"""What a side did to each lane, and how it compares with first-in-first-out on the same arrivals. Pure.

Rejections count as misses in the tails."""

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
    return [_lane(str(lane["name"]), ttft_s[lanes == index]) for index, lane in enumerate(LANES)]


def _lane(name: str, ttft: FloatArray) -> LaneResult:
    answered = np.isfinite(ttft)
    if not len(ttft):
        return LaneResult(name, 0, 0, math.nan, math.nan, math.nan)
    p50, p99 = np.quantile(ttft, (0.5, 0.99), method="higher")
    mean = float(ttft[answered].mean()) if answered.any() else math.nan
    return LaneResult(name, len(ttft), int((~answered).sum()), float(p50), float(p99), mean)


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


@dataclass(frozen=True, slots=True)
class LaneVerdict:
    """One pair of runs. `short_gain`: how many times the short lane's p99 is better; `throughput`: the share of
    first-in-first-out's output tokens a second; `queue_steps`: the p99 of the engine's own queue in median steps;
    `coverage`: the share of waits inside the estimated p95, by lane."""

    short_gain: float
    throughput: float
    queue_steps: float
    coverage: dict[str, float]


def judge(side: SideResult, fifo: SideResult) -> LaneVerdict:
    """A side against first-in-first-out."""
    return LaneVerdict(
        fifo.lanes[0].ttft_p99_s / side.lanes[0].ttft_p99_s,
        side.output_tokens_per_s / fifo.output_tokens_per_s,
        side.engine_queue.steps,
        {lane.lane: lane.within_p95 for lane in side.wait_estimates},
    )


def verdict_table(title: str, named: Sequence[tuple[str, LaneVerdict]]) -> Table:
    """A line for each verdict, and the median of all."""
    table = Table(title=title, title_justify="left")
    names = sorted({lane for _, verdict in named for lane in verdict.coverage})
    heads = ("", "short p99 fifo / this", "throughput", "engine queue p99, steps")
    for column in (*heads, *(f"{lane} within p95" for lane in names)):
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    rows = [(name, _figures(verdict, names)) for name, verdict in named]
    if len(rows) > 1:
        rows.append(("median", [median(column) for column in zip(*(figures for _, figures in rows), strict=True)]))
    for name, figures in rows:
        table.add_row(
            name,
            *(f"{figure:.{digits}f}" for figure, digits in zip(figures, (1, 3, 1, *[3] * len(names)), strict=True)),
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
    return [verdict.short_gain, verdict.throughput, verdict.queue_steps, *coverage]
