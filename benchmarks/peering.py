"""What cells give each other, in the simulator: `python -m benchmarks.peering --traces FOLDER`.

Three cells of two simulated H100 replicas (`infra/specs/simulated-h100.yaml`), round trips of 40 and 80 ms, the default
settings of peering. One cell gets 1.5 times its capacity and its peers half of theirs, once with hand-over and once
with links that are cut; then all three get 1.5 times their capacity. Each run takes another window of the trace, and
each cell another third of it: real lengths, and real arrivals stretched to the rate. Figures: TTFT p99 and attainment
of the overloaded cell's clients, p99 of the peers' clients as a ratio, requests handed over, and hand-overs between two
cells in both directions within ten seconds. Time is virtual, so that a busy machine changes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.harness import JsonFile, Traces, console, plain_table, run_facts, write_json
from benchmarks.lanes.mix import CHAT
from cluster.files import shipped
from cluster.spec import ClusterSpec, load_spec
from deployments.engine.simulated.costs import read_costs
from planning.simulation import simulation_of
from planning.simulator.cells import CellsSimulator
from planning.simulator.cells_outcome import CellsOutcome
from planning.simulator.peered_cell import CellPlan
from planning.simulator.workload import Workload, plain_workload
from planning.workload.trace import Trace
from planning.workload.traces import read_trace

REGIONS = ("eu", "us", "ap")
RTT_S = {frozenset(("eu", "us")): 0.04, frozenset(("eu", "ap")): 0.08, frozenset(("us", "ap")): 0.08}
OVERLOAD, HALF = 1.5, 0.5
_CAPACITIES = (27.0, 33.0)
"""Readings of a cell's capacity, in requests a second."""
_REPLICAS, _SLO_S = 2, 0.5
NEVER = {"margin_s": 3_600.0}
"""No request waits for so long that it would be handed over."""


def three_regions(spec: ClusterSpec, hand_over: Mapping[str, float]) -> ClusterSpec:
    """The spec's model in three regions that help each other."""
    content = spec.model_dump(mode="json")
    (region,) = content["regions"]
    content["regions"] = [{**region, "name": name, "endpoint": f"https://{name}.example.org"} for name in REGIONS]
    content["peering"] = {"secret": {"kind": "file"}, "hand_over": dict(hand_over)}
    content["classes"] = [{"name": "interactive", "ttft_ms": 1e3 * _SLO_S}]
    return ClusterSpec.model_validate(content)


@dataclass(frozen=True, slots=True)
class Bench:
    """Three equal cells."""

    spec: ClusterSpec
    trace: Trace
    duration_s: float

    def traffic(self, rates: Sequence[float], window: int, mixed: bool = False) -> tuple[Workload, NDArray[np.int64]]:
        """Each cell's part of the trace, from another place in each window, at its rate. `mixed`: the lengths of all
        parts are dealt to all requests at random, so that a cell has the same work as the others at the same rate."""
        parts, third = [], len(self.trace) // len(rates)
        for number, rate in enumerate(rates):
            count = round(rate * self.duration_s)
            first = number * third + (window * 7_919) % max(1, third - count)
            arrived_s = self.trace.arrived_s[first : first + count + 1]
            times = (arrived_s[:-1] - arrived_s[0]) * (self.duration_s / (arrived_s[-1] - arrived_s[0]))
            own = slice(first, first + len(times))
            parts.append((times, self.trace.prompt_tokens[own], self.trace.output_tokens[own]))
        times, prompt, output = (np.concatenate([part[column] for part in parts]) for column in range(3))
        homes = np.repeat(np.arange(len(rates)), [len(part[0]) for part in parts])
        if mixed:
            dealt = np.random.default_rng(window).permutation(len(times))
            prompt, output = prompt[dealt], output[dealt]
        order = np.argsort(times, kind="stable")
        work = plain_workload(times[order], prompt[order], np.maximum(1, output[order]), _SLO_S, bounded=False)
        return work, homes[order]

    def run(self, rates: Sequence[float], window: int, helps: bool, mixed: bool = False) -> CellsOutcome:
        spec = self.spec
        if not helps:
            spec = three_regions(spec.model_copy(update={"regions": spec.regions[:1], "peering": None}), NEVER)
        work, homes = self.traffic(rates, window, mixed)
        (model,) = spec.models
        costs, plans = {model.group: read_costs(model)}, []
        for region in spec.regions:
            one = simulation_of(spec, model, costs, work, _REPLICAS, False, region=region)
            plans.append(CellPlan(region.name, model.name, one.cell_settings(), one.cost))
        return CellsSimulator(spec, plans, work, homes, RTT_S).run()


def ttft_of(out: CellsOutcome, cell: str) -> NDArray[np.float64]:
    """The TTFT of a cell's own clients that got an answer."""
    return np.asarray(out.ttft_s[out.own(cell) & ~np.isnan(out.ttft_s)], dtype=np.float64)


def attainment(out: CellsOutcome, cell: str, slo_s: NDArray[np.float64]) -> float:
    """The share of a cell's own clients that were served in time."""
    return float(out.in_time(slo_s)[out.own(cell)].mean())


def returned(out: CellsOutcome, within_s: float = 10.0) -> int:
    """Hand-overs that follow one in the other direction between the same cells within so long."""
    last_s: dict[tuple[int, int], float] = {}
    found = 0
    for at_s, source, target in out.hops:
        found += at_s - last_s.get((target, source), -math.inf) < within_s
        last_s[source, target] = at_s
    return found


def _p99(values: NDArray[np.float64]) -> float:
    return float(np.percentile(values, 99)) if len(values) else float("nan")


def one_overloaded(bench: Bench, capacity: float, window: int) -> dict[str, Any]:
    """One window with and without hand-over."""
    rates = [OVERLOAD * capacity, HALF * capacity, HALF * capacity]
    alone, helped = (bench.run(rates, window, helps) for helps in (False, True))
    p99 = {cell: (_p99(ttft_of(alone, cell)), _p99(ttft_of(helped, cell))) for cell in REGIONS}
    home, *peers = REGIONS
    return {
        "capacity": capacity,
        "window": window,
        "attained": [attainment(out, home, np.full(len(out.home), _SLO_S)) for out in (alone, helped)],
        "home_p99_s": p99[home],
        "peers_p99_s": [p99[cell] for cell in peers],
        "peers_ratio": [p99[cell][1] / p99[cell][0] for cell in peers],
        "moved": len(helped.hops) / len(helped.home),
        "returned": returned(helped),
        "refusals": dict(helped.refusals),
    }


def all_overloaded(bench: Bench, capacity: float, window: int) -> dict[str, Any]:
    """One window with all cells over their capacity. Where answers are short for a while in one part of the trace, a
    cell with that part alone holds the SLO at this rate, and helps the others: hence the same mix for all."""
    out = bench.run([OVERLOAD * capacity] * 3, window, True, mixed=True)
    moved = len(out.hops) / len(out.home)
    return {"capacity": capacity, "window": window, "moved": moved, "returned": returned(out), "hops": len(out.hops)}


def main(
    traces: Traces,
    windows: Annotated[int, typer.Option(min=1, help="Windows of the trace.")] = 5,
    seconds: Annotated[float, typer.Option(min=10, help="Seconds of each run.")] = 120.0,
    json_file: JsonFile = None,
) -> None:
    """Compare three cells with and without hand-over."""
    spec = three_regions(load_spec(shipped("specs/simulated-h100.yaml")), {})
    bench = Bench(spec, read_trace(traces / CHAT), seconds)
    found: dict[str, list[dict[str, Any]]] = {"one": [], "all": []}
    for capacity in _CAPACITIES:
        helped = [one_overloaded(bench, capacity, window) for window in range(windows)]
        full = [all_overloaded(bench, capacity, window) for window in range(windows)]
        _show(capacity, helped, full)
        found["one"] += helped
        found["all"] += full
    write_json({"schema": 1, **run_facts(), "trace": CHAT, "seconds": seconds, **found}, json_file)


def _show(capacity: float, runs: Sequence[Mapping[str, Any]], full: Sequence[Mapping[str, Any]]) -> None:
    table = plain_table(f"one cell at 1.5 x {capacity:g}/s, peers at half: {len(runs)} windows", "", "without", "with")
    for name, key, unit in (("in time", "attained", "{:.1%}"), ("its p99 s", "home_p99_s", "{:.2f}")):
        sides = [sorted(one[key][side] for one in runs) for side in (0, 1)]
        table.add_row(name, *(f"{unit.format(side[0])} to {unit.format(side[-1])}" for side in sides))
    peers = [[pair[side] for one in runs for pair in one["peers_p99_s"]] for side in (0, 1)]
    table.add_row("peers' p99 s", *(f"{min(side):.3f} to {max(side):.3f}" for side in peers))
    console.print(table)
    ratios, moved = [ratio for one in runs for ratio in one["peers_ratio"]], [one["moved"] for one in runs]
    home = [one["home_p99_s"][1] / one["home_p99_s"][0] for one in runs]
    shares = [one["moved"] for one in full]
    console.print(
        f"p99 with / without: overloaded cell median {np.median(home):.3f}; peers median {np.median(ratios):.3f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}; handed over {min(moved):.1%} to {max(moved):.1%}; in both directions "
        f"{sum(one['returned'] for one in runs)}\n"
        f"all three at 1.5 x {capacity:g}/s: {np.mean(shares):.2%} handed over ({max(shares):.2%} at most), "
        f"in both directions {sum(one['returned'] for one in full)} of {sum(one['hops'] for one in full)}",
        highlight=False,
    )


if __name__ == "__main__":
    typer.run(main)
