"""Live against simulated: how wrong the simulator is on a deployment, beside how far live runs are from each other.
Pure.

    error(f)     = mean of simulated(f) / mean of live(f) - 1        each run simulated at the speed that the machine
                 had in it
    raw error(f) = the same at the calibrated speed
    spread(f)    = (largest - smallest of live(f)) / mean of live(f)  0 with one run

A figure is within its bound where |error| <= max(bound, spread + 3 points): nobody can be nearer to live runs than
these are to each other (`deployments/telemetry/published_error.py`, which is the file's format and what the gateway
exports). A simulated run gets the requests at the times at which the client of the live run sent them. Requests that
queued, and those that did not, are judged apart: in each run those of that run. Near the capacity, which request finds
room is a matter of milliseconds: those that did in one live run were lucky in it, and are not in the next one either.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deployments.engine_model.cost_model import CostModel
from deployments.telemetry.published_error import Figure
from planning.simulator.bins import Column
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import Workload, plain_workload
from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.scaling import scale_lengths, scale_to_fit
from planning.workload.trace import Trace


def rehearsed(trace: Trace, max_model_len: int, length_scale: float, ttft_slo_s: float) -> Workload:
    """The whole trace with lengths times `length_scale`, or what makes the longest fit the context where that is less.
    Clients bound their output. `changes` of the workload says so."""
    scale = min(length_scale, scale_to_fit(trace.prompt_tokens, trace.output_tokens, max_model_len))
    prompt, output = scale_lengths(trace.prompt_tokens, scale), scale_lengths(trace.output_tokens, scale)
    count = len(trace)
    why = f"asked for: {length_scale:g}; the longest fits {max_model_len:,} tokens"
    shrunk = TraceChange(
        ChangeKind.SHRUNK, count if scale < 1 else 0, count, f"all lengths multiplied by {scale:.4g} ({why})"
    )
    work = plain_workload(trace.arrived_s, prompt, output, ttft_slo_s)
    return replace(work, changes=trace.changed(shrunk, trace.only_lengths(count)).changes)


def at_rate(work: Workload, rate: float, seconds: float) -> Workload:
    """The first `rate * seconds` requests, their times stretched to come at `rate` on average. Raises ValueError where
    there are too few."""
    count = round(rate * seconds)
    if count > len(work):
        raise ValueError(f"{rate:.1f} requests/s for {seconds:g} s are {count} requests; the trace has {len(work)}")
    if count < 20:
        raise ValueError(f"{rate:.2f} requests/s for {seconds:g} s are {count} requests; needed: at least 20")
    head = work.head(count)
    span = float(head.arrived_s[-1] - head.arrived_s[0])
    return head.at((head.arrived_s - head.arrived_s[0]) * (count / rate / span) if span else np.arange(count) / rate)


QUANTILES = (0.5, 0.9, 0.99)
STAGES = ("lane", "engine", "decode")


@dataclass(frozen=True, slots=True)
class RehearsalRun:
    """Columns by the request's number; NaN where it did not happen. Seconds.

    `ttft_s` counts from when the client sent the request; `stages_s` holds what the gateway saw: in the lane, from
    placement to first byte, from first byte to last. `lane` is the number of the lane by length, -1 where unknown.
    `itl_s`: quantiles (`QUANTILES`) and mean of the time between tokens over all requests. `queued`: the scheduler did
    not place the request when it came.
    """

    ttft_s: Column
    stages_s: dict[str, Column]
    lane: NDArray[np.int64]
    itl_s: dict[str, float]
    failed: int
    queued: NDArray[np.bool_]

    def figures(self, lanes: tuple[str, ...]) -> dict[str, float]:
        """All that is compared, by name: `ttft/all/p50`, `ttft/unqueued/p90`, `ttft/short/p99`, `stage/lane/mean`,
        `itl/p50`; NaN where there are too few requests."""
        found: dict[str, float] = {}
        for name, chosen in self._groups(lanes):
            for level in QUANTILES:
                found[f"ttft/{name}/{label(level)}"] = _quantile(self.ttft_s[chosen], level)
        for stage in STAGES:
            found[f"stage/{stage}/mean"] = _mean(self.stages_s[stage])
        return found | {f"itl/{name}": value for name, value in self.itl_s.items()}

    def _groups(self, lanes: tuple[str, ...]) -> list[tuple[str, NDArray[np.bool_]]]:
        every = np.ones(len(self.ttft_s), dtype=np.bool_)
        by_lane = ((name, self.lane == number) for number, name in enumerate(lanes))
        return [("all", every), ("unqueued", ~self.queued), ("queued", self.queued), *by_lane]


def label(level: float) -> str:
    """A quantile's name: p50, p99."""
    return f"p{100 * level:g}"


def _quantile(values: Column, level: float) -> float:
    """NaN where fewer than ten are beyond it: one request more or less would move it."""
    known = values[~np.isnan(values)]
    return float(np.quantile(known, level)) if len(known) * (1 - level) >= 2 else math.nan


def _mean(values: Column) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


EDGE = 0.1
"""The first and the last tenth of a closed loop are left out: it fills up and empties there."""


def simulated_run(settings: CellSettings, cost: CostModel, workload: Workload) -> RehearsalRun:
    """One run, in the columns of a rehearsal."""
    out = CellSimulator(settings, cost, workload).run()
    stages = {
        "lane": out.placed_s - out.arrived_s,
        "engine": out.first_s - out.placed_s,
        "decode": out.finished_s - out.first_s,
    }
    gaps = float(np.nansum(np.where(np.isnan(out.finished_s), np.nan, out.output_tokens - 1)))
    itl = {label(level): value for level, value in out.itl_s.items() if level in QUANTILES}
    itl["mean"] = float(np.nansum(stages["decode"])) / gaps if gaps else float("nan")
    failed = int((out.rejected | out.expired | out.failed).sum())
    queued = ~(out.placed_s <= out.arrived_s)
    return RehearsalRun(out.ttft_s, stages, out.lane.astype(np.int64), itl, failed, queued)


def simulated_capacity(settings: CellSettings, cost: CostModel, workload: Workload, clients: int) -> float:
    """Requests a second that so many clients in a closed loop get through."""
    out = CellSimulator(replace(settings, clients=clients), cost, workload).run()
    ended = np.sort(out.finished_s[~np.isnan(out.finished_s)])
    return throughput(ended)


def throughput(ended_s: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Requests a second, without the edges, of ascending times. Raises ValueError for too few."""
    low, high = int(len(ended_s) * EDGE), int(len(ended_s) * (1 - EDGE))
    if high - low < 10:
        raise ValueError(f"{len(ended_s)} requests ended; needed: more to tell a capacity")
    return float((high - 1 - low) / (ended_s[high - 1] - ended_s[low]))


BOUNDS: Mapping[str, float] = {
    "ttft/all/p50": 0.10,
    "ttft/all/p90": 0.12,
    "ttft/all/p99": 0.15,
    "ttft/unqueued/p50": 0.10,
    "ttft/unqueued/p90": 0.12,
    "itl/mean": 0.07,
    "itl/p50": 0.07,
}
"""What a rehearsal must reach for advice to rest on it."""


def compare(
    live: Sequence[Mapping[str, float]], simulated: Sequence[Mapping[str, float]], raw: Sequence[Mapping[str, float]]
) -> list[Figure]:
    """Each figure that all runs have. `simulated`: of each live run at its speed; `raw`: at the calibrated one."""
    found = []
    for name in raw[0]:
        seen, ours, calibrated = ([run.get(name, math.nan) for run in runs] for runs in (live, simulated, raw))
        if any(math.isnan(value) for value in (*seen, *ours, *calibrated)):
            continue
        mean, mean_ours, mean_raw = (sum(values) / len(live) for values in (seen, ours, calibrated))
        if mean > 0:
            error, raw_error, spread = mean_ours / mean - 1, mean_raw / mean - 1, (max(seen) - min(seen)) / mean
            found.append(
                Figure(
                    name=name,
                    live_s=mean,
                    simulated_s=mean_ours,
                    error=error,
                    raw_error=raw_error,
                    spread=spread,
                    bound=BOUNDS.get(name),
                )
            )
    return found
