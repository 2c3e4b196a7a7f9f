"""What a side did to each lane. Pure. Rejections count as misses in the tails."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from rich.table import Table

from benchmarks.harness import plain_table
from benchmarks.lanes.mix import LANES, lane_index
from cli.bench.load import LoadResult
from planning.workload.arrivals import FloatArray
from planning.workload.trace import Trace

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


@dataclass(frozen=True, slots=True)
class SideResult:
    """What one side made of a mix. `mean_s`: the mean time to first token of those that got one; `in_time`: the share
    of all within `IN_TIME_S`; `late_s`: the most that the client itself was late."""

    lanes: list[LaneResult]
    mean_s: float
    in_time: float
    output_tokens_per_s: float
    elapsed_s: float
    late_s: float
    failures: dict[str, int]


def result_of(mix: Trace, outcome: LoadResult) -> SideResult:
    """A run in figures."""
    found = [one.ttft_s if one.failure is None and one.ttft_s is not None else math.inf for one in outcome.samples]
    ttft_s, rate = np.array(found), outcome.output_tokens / outcome.elapsed_s
    lanes = np.array([lane_index(int(p), int(o)) for p, o in zip(mix.prompt_tokens, mix.output_tokens, strict=True)])
    return SideResult(
        [_lane(str(lane["name"]), ttft_s[lanes == index]) for index, lane in enumerate(LANES)],
        float(ttft_s[np.isfinite(ttft_s)].mean()),
        float((ttft_s <= IN_TIME_S).mean()),
        rate,
        outcome.elapsed_s,
        outcome.late_s,
        outcome.failures,
    )


def _lane(name: str, ttft: FloatArray) -> LaneResult:
    answered = np.isfinite(ttft)
    if not len(ttft):
        return LaneResult(name, 0, 0, math.nan, math.nan, math.nan)
    p50, p99 = np.quantile(ttft, (0.5, 0.99), method="higher")
    mean = float(ttft[answered].mean()) if answered.any() else math.nan
    return LaneResult(name, len(ttft), int((~answered).sum()), float(p50), float(p99), mean)


def overall_table(title: str, runs: Sequence[dict[str, SideResult]]) -> Table:
    """A line for each side: medians over the runs, with the least and the most."""
    table = plain_table(title, "side", "mean TTFT, s", f"within {IN_TIME_S:g} s", "short p99, s", "output tokens/s")
    for name in runs[0]:
        results = [run[name] for run in runs]
        rows = [(one.mean_s, one.in_time, one.lanes[0].ttft_p99_s, one.output_tokens_per_s) for one in results]
        columns = zip(*rows, strict=True)
        table.add_row(name, *(f"{median(all_):.3g} ({min(all_):.3g} to {max(all_):.3g})" for all_ in columns))
    return table
