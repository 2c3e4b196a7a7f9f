"""What a side did to each lane, and how that compares: tails with rejections as misses, and the work-conserving bound for the long lane. Pure.

Kleinrock's conservation law: whatever a work-conserving server's order, the sum over requests of work x wait is the same, as long as the order does
not look at the work itself within a lane. So if short requests wait less than under first-in-first-out, long ones must wait more, by as much:

    bound(long) = (sum of work x wait under fifo, all lanes - sum of work x wait under lanes, the other lanes) / work of the long lane

in means of the waits for the first token, weighted by work.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.lanes.mix import Mix
from benchmarks.lanes.policies import LANES, lane_index
from cli.bench.load import Played
from planning.workload.arrivals import FloatArray

DECODE_WEIGHT = 4.0


@dataclass(frozen=True, slots=True)
class LaneResult:
    """One lane of one run. Times to first token in seconds; a request without one counts as infinitely late in the quantiles, not in the mean."""

    lane: str
    requests: int
    missed: int
    ttft_p50_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    work: float
    """In prefill tokens."""

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def times_to_first_token(played: Played) -> FloatArray:
    """By request, in seconds; infinite for one that failed."""
    return np.array([sample.ttft_s if sample.failure is None and sample.ttft_s is not None else math.inf for sample in played.samples])


def by_lane(mix: Mix, ttft_s: FloatArray) -> list[LaneResult]:
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
    """What the long lane's mean must be at least, given what the others gained. `slower`: how many times as long everybody waits, on average, because
    this side's engine was slower than that of first-in-first-out."""
    total = sum(lane.ttft_mean_s * lane.work for lane in fifo) * slower
    others = sum(lane.ttft_mean_s * lane.work for lane in lanes[:-1])
    return (total - others) / lanes[-1].work
