"""Three cells of the real stack that help each other: `python -m benchmarks.regions`.

Each cell is `raylane up` of one region of `infra/specs/three-regions.yaml` (or `--spec`): a Ray, a gateway and
simulated engines of its own. Links with 40 and 80 ms lie between them (`tests/live/drill/links.py`). Engines are slow,
so that a busy machine does not distort their times. Rates are shares of the capacity that the simulator finds for a
cell.

    help       one cell at 1.5 times its capacity, its peers at half, with and without hand-over, in turns; without: all
               links are cut
    overload   all cells at 1.5 times their capacity: what share of the requests is handed over
    loss       a cell is killed: what its clients and its peers see
    partition  the links of the overloaded cell are cut, and heal

`--json FILE` adds to what the file holds of the same part, so that pairs can be measured one by one.
"""

import itertools
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.harness import JsonFile, console, in_turns, plain_table, run_facts, run_program
from cluster.files import shipped
from cluster.spec import load_spec
from planning.simulator.faults import FaultKind
from planning.workload.lengths import LogNormal
from tests.live.drill.case import DrillCase, read_case, round_trips
from tests.live.drill.drill import Drill, DrillTraffic, RequestShape, drawn_traffic, drill_on
from tests.live.drill.findings import findings_of
from tests.live.drill.links import CellLink
from tests.live.drill.live import LiveClients, LivedDrill, live_drill
from tests.live.drill.local_cells import LocalCells, local_cells
from tests.live.drill.record import ENDS, DrillRecord

OVERLOADED, HALF = 1.5, 0.5
LOST, LEFT = 0.7, 0.4
"""Loads where a cell is killed: its own, and those of the others, which get its clients."""
RTT_MS = {"near": 40.0, "far": 80.0}
_SHAPE = (LogNormal(900, 0.9), LogNormal(200, 0.6))
_PROMPTS = itertools.count()
"""No two runs have the same prompts."""
_HOME = 0
"""The number of the cell that is overloaded, lost or cut off."""
_FAULT_AT, _CUT_FOR_S = 1 / 3, 15.0
"""When a fault begins, as a share of the run; and how long a link is cut."""


@dataclass(frozen=True, slots=True)
class CellsBench:
    """One case, with its traffic drawn by loads."""

    case: DrillCase
    shape: RequestShape
    capacity: float
    seconds: float

    def traffic(self, home_load: float, peer_load: float, seed: int) -> DrillTraffic:
        """The overloaded cell at one share of its capacity, its peers at another one."""
        loads = dict.fromkeys(self.case.cells, peer_load) | {self.case.cells[_HOME]: home_load}
        rates = {name: load * self.capacity for name, load in loads.items()}
        return drawn_traffic(rates, self.seconds, self.shape, seed)


def figures(record: DrillRecord) -> dict[str, Any]:
    """Of one run: TTFT by the cell whose clients asked, and how requests ended."""
    ttft = {}
    for number, name in enumerate(record.cells):
        known = record.ttft_s[(record.home == number) & ~np.isnan(record.ttft_s)]
        ttft[name] = {"count": len(known), **{f"p{q}": round(float(np.percentile(known, q)), 4) for q in (50, 99)}}
    ends = {end.value: int(count) for end in ENDS if (count := record.of(end).sum())}
    return {
        "ttft_s": ttft,
        "ends": ends,
        "requests": len(record),
        "handed_over": int(record.handed_over.sum()),
        "twice": int(record.twice.sum()),
    }


async def run_traffic(bench: CellsBench, cells: LocalCells, traffic: DrillTraffic, apart: bool) -> dict[str, Any]:
    """One run without a fault; `apart`: no cell reaches another one."""
    for link in cells.links.between.values():
        link.cut() if apart else link.heal()
    await cells.settled()
    lived = await live_drill(bench.case, None, traffic, cells, LiveClients(prompts=next(_PROMPTS)))
    await cells.settled()
    cells.links.heal()
    return figures(lived.record) | {"client_late_ms": round(1e3 * lived.late_s, 1)}


async def help_part(bench: CellsBench, cells: LocalCells, seed: int) -> dict[str, Any]:
    """A pair."""
    traffic = bench.traffic(OVERLOADED, HALF, seed)
    found = {}
    for side in in_turns(("apart", "together"), seed):
        found[side] = await run_traffic(bench, cells, traffic, side == "apart")
        console.print(f"pair {seed}, {side}: {found[side]}", highlight=False)
    p99 = {side: {name: one["p99"] for name, one in run["ttft_s"].items()} for side, run in found.items()}
    ratios = {name: round(p99["together"][name] / p99["apart"][name], 4) for name in bench.case.cells}
    return {"seed": seed, **found, "p99_ratio": ratios}


async def overload_part(bench: CellsBench, cells: LocalCells, seed: int) -> dict[str, Any]:
    run = await run_traffic(bench, cells, bench.traffic(OVERLOADED, OVERLOADED, seed), False)
    return {"seed": seed, **run, "share_handed_over": round(run["handed_over"] / run["requests"], 4)}


async def drilled(bench: CellsBench, cells: LocalCells, drill: Drill, traffic: DrillTraffic) -> dict[str, Any]:
    """A live drill."""
    lived: LivedDrill = await live_drill(bench.case, drill, traffic, cells, LiveClients())
    found = findings_of(drill, lived.record, bench.case.slo).as_json()
    console.print(f"{drill.in_words()}: the SLO held again after {found['recovery_s']} s", highlight=False)
    return {"live": found, "client_late_s": lived.late_s}


async def loss_part(bench: CellsBench, cells: LocalCells, seed: int) -> dict[str, Any]:
    home = bench.case.cells[_HOME]
    drill = drill_on(FaultKind.REGION_LOSS, home, (), _FAULT_AT * bench.seconds, math.inf, bench.seconds)
    found = await drilled(bench, cells, drill, bench.traffic(LOST, LEFT, seed))
    offers = sum(len(link.hops_s) for (_, target), link in cells.links.between.items() if target == home)
    return {"seed": seed, **found, "offers_to_it": offers}


async def partition_part(bench: CellsBench, cells: LocalCells, seed: int) -> dict[str, Any]:
    home, *others = bench.case.cells
    drill = drill_on(FaultKind.PARTITION, home, others, _FAULT_AT * bench.seconds, _CUT_FOR_S, bench.seconds)
    began_s, links = time.monotonic(), [cells.links.between[home, other] for other in others]
    found = await drilled(bench, cells, drill, bench.traffic(OVERLOADED, HALF, seed))
    return {"seed": seed, **found, "offers": offers_around_cut(links, began_s)}


def offers_around_cut(links: Sequence[CellLink], began_s: float) -> dict[str, float]:
    """What a cell offered over links that were cut at once and healed at once: the most within a second before the cut
    and after the healing, and when the last one in between was made (seconds after the cut; 0: none was)."""
    cut_s, healed_s = links[0].cut_s, links[0].healed_s
    times = np.sort([at_s for link in links for at_s in link.hops_s if at_s >= began_s])
    before, between, after = np.split(times, np.searchsorted(times, [cut_s, healed_s]))
    return {
        "peak_before": _peak_rate(before),
        "peak_after": _peak_rate(after),
        "last_after_cut_s": round(float(between[-1]) - cut_s, 3) if len(between) else 0.0,
    }


def _peak_rate(times_s: NDArray[np.float64]) -> int:
    counts = np.searchsorted(times_s, times_s + 1.0) - np.arange(len(times_s))
    return int(counts.max(initial=0))


Part = Callable[[CellsBench, LocalCells, int], Awaitable[dict[str, Any]]]
PARTS: dict[str, Part] = {
    "help": help_part,
    "overload": overload_part,
    "loss": loss_part,
    "partition": partition_part,
}
NEEDS_NEW_CELLS = ("loss",)


def merged(file: Path | None, part: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of this program with what the file has of the same part before."""
    before = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    parts = before.get("parts", {})
    parts[part] = [*parts.get(part, []), *runs]
    return {"schema": 1, **run_facts(), "parts": parts}


def summary_rows(parts: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """What the runs of each part come to: medians."""
    rows = []
    if pairs := parts.get("help"):
        for name in pairs[0]["p99_ratio"]:
            ratios = [pair["p99_ratio"][name] for pair in pairs]
            rows.append(["help", f"TTFT p99 of {name}, with / without", f"{np.median(ratios):.3f}", f"{len(ratios)}"])
        twice = sum(pair[side]["twice"] for pair in pairs for side in ("apart", "together"))
        rows.append(["help", "answers with more than what was asked for", f"{twice}", f"{len(pairs)}"])
    if runs := parts.get("overload"):
        shares = [run["share_handed_over"] for run in runs]
        rows.append(["overload", "handed over", f"{100 * np.median(shares):.2f} %", f"{len(runs)}"])
    for part in ("loss", "partition"):
        for number, run in enumerate(parts.get(part, ())):
            live = run["live"]
            name = f"run {number + 1}"
            rows.append([part, f"{name}: SLO held again after", f"{live['recovery_s']} s", "1"])
            rows.append([part, f"{name}: lost", f"{live['lost']}", "1"])
            if part == "loss":
                last = f"{live['last_hop_s']} s (of {run['offers_to_it']})"
                rows.append([part, f"{name}: last offer to it after its loss", last, "1"])
                rows.append([part, f"{name}: next answer (p50, p99, longest)", f"{live['next_answer_s']} s", "1"])
            else:
                offers = run["offers"]
                peaks = f"{offers['peak_after']} against {offers['peak_before']}"
                rows.append([part, f"{name}: most offers in a second after healing, and before the cut", peaks, "1"])
                rows.append([part, f"{name}: last offer after the cut", f"{offers['last_after_cut_s']} s", "1"])
    return rows


def main(
    part: Annotated[str, typer.Option(help=f"One of {', '.join(PARTS)}.")] = "help",
    spec: Annotated[Path | None, typer.Option(help="Default: infra/specs/three-regions.yaml.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Pairs or runs.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="Of the first run; each further one has the next.")] = 0,
    seconds: Annotated[float, typer.Option(min=20, help="How long requests arrive in each run.")] = 60.0,
    speed: Annotated[
        float | None, typer.Option(min=0.01, max=10, help="Of the engines, instead of the spec's.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure hand-over between three cells on this machine."""
    if part not in PARTS:
        raise typer.BadParameter(f"{part!r}; allowed: {', '.join(PARTS)}", param_hint="--part")
    if part in NEEDS_NEW_CELLS and runs > 1:
        raise typer.BadParameter(f"{runs}; allowed with --part {part}: 1, since a cell is lost", param_hint="--runs")
    names = [region.name for region in read_spec_regions(spec)]
    trips = round_trips(names, RTT_MS["near"] / 1e3, RTT_MS["far"] / 1e3)
    case = at_speed(read_case(spec or shipped("specs/three-regions.yaml"), trips), speed)
    shape = RequestShape(*_SHAPE, case.slo.ttft_s)
    bench = CellsBench(case, shape, case.capacity(shape), seconds)
    console.print(f"capacity of a cell: {bench.capacity:.2f} requests/s", highlight=False)

    async def work(folder: Path) -> dict[str, Any]:
        async with local_cells(case.spec, case.model.name, case.rtt_s, folder) as cells:
            found = [await PARTS[part](bench, cells, first_seed + number) for number in range(runs)]
        return merged(json_file, part, found)

    result = run_program(work)
    table = plain_table("three cells", "part", "figure", "value", "runs", left=2)
    for row in summary_rows(result["parts"]):
        table.add_row(*row)
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def at_speed(case: DrillCase, speed: float | None) -> DrillCase:
    """The case with engines of that speed; None: of the spec's."""
    simulated = case.model.simulated
    if speed is None:
        return case
    if simulated is None:
        raise typer.BadParameter(f"{case.model.name} is no simulated model", param_hint="--spec")
    model = case.model.model_copy(update={"simulated": simulated.model_copy(update={"speed": speed})})
    models = tuple(model if one.name == model.name else one for one in case.spec.models)
    return replace(case, spec=case.spec.model_copy(update={"models": models}), model=model)


def read_spec_regions(spec: Path | None) -> Sequence[Any]:
    """The three regions."""
    regions = load_spec(spec or shipped("specs/three-regions.yaml")).regions
    if len(regions) != 3:
        raise typer.BadParameter(f"{len(regions)} regions; allowed: three", param_hint="--spec")
    return regions


if __name__ == "__main__":
    typer.run(main)
