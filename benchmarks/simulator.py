"""`python -m benchmarks.simulator`: requests a second of CPU time, memory, and the scheduler core's share of it, at
growing sizes.

Arrivals are Poisson at a share of what the engines can take, lengths log-normal. The core is the production scheduler,
unchanged; its share is timed around its calls, which costs some percent and is done in a run of its own.
"""

import resource
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import JsonFile, console, plain_table, run_facts, write_json
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.garbage import calm_garbage_collector
from deployments.scheduling import LanePolicy, SchedulerContract, SchedulingPolicy
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import Workload, plain_workload

_COST = CostModel(line(0.006, 1.2e-5), line(0.0, 2e-6), plain_attention(1.2e-9, 2e-12))
"""About an 8B model on one GPU of the H100 class: for speed only, not for advice."""
_LIMITS = EngineModelLimits(sequences=128, step_tokens=8_192, kv_tokens=450_000)
_LANES = (
    LanePolicy("short", 512, weight=8, max_wait_s=30, cap_s=600),
    LanePolicy("medium", 4_096, weight=3, max_wait_s=60, cap_s=600),
    LanePolicy("long", None, weight=1, max_wait_s=120, cap_s=600),
)
_RATE_PER_REPLICA = 12.0
"""Requests a second: about 0.8 of what an engine takes of this mix."""
_TIMED = ("submit", "step", "first_token", "release", "learn", "next_wakeup")


@dataclass(frozen=True, slots=True)
class SimulatorResult:
    """One run. `core_share`: None where it was not timed."""

    requests: int
    replicas: int
    cpu_s: float
    simulated_s: float
    peak_mib: float
    finished: int
    ttft_p99_s: float
    core_share: float | None

    @property
    def us_per_request(self) -> float:
        """CPU time."""
        return 1e6 * self.cpu_s / self.requests


def workload(requests: int, rate: float, seed: int) -> Workload:
    """Poisson arrivals, log-normal lengths."""
    rng = np.random.default_rng(seed)
    prompt = np.minimum(rng.lognormal(6.0, 1.2, requests).astype(np.int64) + 1, 30_000)
    output = np.minimum(rng.lognormal(5.0, 0.8, requests).astype(np.int64) + 1, 4_000)
    return plain_workload(np.cumsum(rng.exponential(1 / rate, requests)), prompt, output, bounded=False)


def simulate(requests: int, replicas: int, seed: int, timed: bool) -> SimulatorResult:
    """One run, alone in this process for what its peak memory says."""
    work = workload(requests, replicas * _RATE_PER_REPLICA, seed)
    cell = CellSimulator(CellSettings(replicas, _LIMITS, SchedulingPolicy(_LANES, max_waiting=1_000_000)), _COST, work)
    spent = _Stopwatch(cell.scheduler) if timed else None
    calm_garbage_collector()
    began = time.process_time()
    out = cell.run()
    cpu_s = time.process_time() - began
    finished = ~np.isnan(out.finished_s)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    p99 = float(np.percentile(out.ttft_s[finished], 99))
    return SimulatorResult(
        requests,
        replicas,
        cpu_s,
        out.ended_s,
        peak_mib,
        int(finished.sum()),
        p99,
        spent.seconds / cpu_s if spent else None,
    )


class _Stopwatch:
    """Times the calls of a scheduler."""

    def __init__(self, scheduler: SchedulerContract) -> None:
        self.seconds = 0.0
        for name in _TIMED:
            setattr(scheduler, name, self._timed(getattr(scheduler, name)))

    def _timed(self, call: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = call(*arguments)
            self.seconds += time.perf_counter() - began
            return result

        return timed


def main(
    requests: Annotated[int, typer.Option(min=1_000, help="Requests in the largest run.")] = 1_000_000,
    replicas: Annotated[int, typer.Option(min=1)] = 64,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json_file: JsonFile = None,
) -> None:
    """Time the simulator."""
    results = []
    for count, timed in ((requests // 100, True), (requests // 10, False), (requests, False)):
        console.print(f"{count:,} requests on {replicas} replicas ...", style="dim")
        results.append(simulate(count, replicas, seed, timed))
    columns = (
        "requests",
        "replicas",
        "CPU s",
        "us / request",
        "x real time",
        "core's share",
        "peak MiB",
        "finished",
        "TTFT p99 ms",
    )
    table = plain_table("The simulator, one core", *columns, left=0)
    for result in results:
        share = "-" if result.core_share is None else f"{result.core_share:.0%}"
        speed = f"{result.simulated_s / result.cpu_s:.0f}"
        cells = (
            f"{result.cpu_s:.1f}",
            f"{result.us_per_request:.0f}",
            speed,
            share,
            f"{result.peak_mib:.0f}",
            f"{result.finished:,}",
        )
        table.add_row(f"{result.requests:,}", str(result.replicas), *cells, f"{1e3 * result.ttft_p99_s:.0f}")
    console.print(table)
    write_json({**run_facts(), "runs": [asdict(result) for result in results]}, json_file)


if __name__ == "__main__":
    typer.run(main)
