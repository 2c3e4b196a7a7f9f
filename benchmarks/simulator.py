"""`python -m benchmarks.simulator`: requests a second of CPU time, memory, and the scheduler core's share of it, at
growing sizes.

Arrivals are Poisson at a share of what the engines can take, lengths log-normal. The core is the production scheduler,
unchanged; its share is timed around its calls, which costs some percent and is done in a run of its own.

`--pairs 3` compares the compiled core (`make install FAST=1`) with the interpreted one, and with `--before FOLDER` both
with another checkout, all sides in turns, each run in a process of its own; it prints the ratios of CPU time.
"""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import JsonFile, console, plain_table, run_facts, write_json
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.garbage import calm_garbage_collector
from deployments.scheduling import LanePolicy, SchedulerContract, SchedulingPolicy
from planning.compiled import ASKED, ROOT, is_current
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


_SIDE = """
import dataclasses, json, sys
import planning
from benchmarks.simulator import simulate
print(json.dumps(dataclasses.asdict(simulate(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), False))))
"""


def _side(root: Path, compiled: bool, *sizes: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(root), ASKED: "1" if compiled else "0"}
    command = [sys.executable, "-c", _SIDE, *map(str, sizes)]
    done = subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _compare(pairs: int, before: Path | None, *sizes: int) -> dict[str, list[dict[str, float]]]:
    """Every side in turns. Raises typer.BadParameter without a current build."""
    if not is_current():
        raise typer.BadParameter(
            "there is no current build; allowed: after `make install FAST=1`", param_hint="--pairs"
        )
    sides = {"interpreted": (ROOT, False), "compiled": (ROOT, True)}
    if before is not None:
        sides["before"] = (before.resolve(), False)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for pair in range(pairs):
        for name, (root, compiled) in sides.items():
            console.print(f"pair {pair + 1} of {pairs}: {name} ...", style="dim")
            runs[name].append(_side(root, compiled, *sizes))
    table = plain_table(
        f"{sizes[0]:,} requests on {sizes[1]} replicas", "side", "CPU s, median", "of interpreted", left=1
    )
    for name, of_side in runs.items():
        cpu_s = median(run["cpu_s"] for run in of_side)
        ratio = median(one["cpu_s"] / other["cpu_s"] for one, other in zip(of_side, runs["interpreted"], strict=True))
        table.add_row(name, f"{cpu_s:.1f}", f"{ratio:.3f}")
    console.print(table)
    if before is not None:
        ratios = [one["cpu_s"] / other["cpu_s"] for one, other in zip(runs["compiled"], runs["before"], strict=True)]
        console.print(f"compiled / before: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    console.print(f"compiled and interpreted runs have the same TTFT p99: {_agree(runs)}")
    return runs


def _agree(runs: dict[str, list[dict[str, float]]]) -> bool:
    return len({run["ttft_p99_s"] for name in ("interpreted", "compiled") for run in runs[name]}) == 1


def main(
    requests: Annotated[int, typer.Option(min=1_000, help="Requests in the largest run.")] = 1_000_000,
    replicas: Annotated[int, typer.Option(min=1)] = 64,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    pairs: Annotated[int, typer.Option(min=0, help="Compare compiled and interpreted runs, so many pairs.")] = 0,
    before: Annotated[Path | None, typer.Option(help="With --pairs: another checkout to compare with.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Time the simulator."""
    if pairs:
        write_json({**run_facts(), "runs": _compare(pairs, before, requests, replicas, seed)}, json_file)
        return
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
