"""Three cells of the real stack that help each other: `python -m benchmarks.regions`.

Each cell is `raylane up` of one region of `infra/specs/three-regions.yaml`: a Ray, a gateway and
simulated engines of its own. Links with 40 and 80 ms lie between them (`tests/live/drill/links.py`). Engines are slow,
so that a busy machine does not distort their times. Rates are shares of the capacity that the simulator finds for a
cell.

    help       one cell at 1.5 times its capacity, its peers at half, with and without hand-over, in turns; without: all
               links are cut
    overload   all cells at 1.5 times their capacity: what share of the requests is handed over

Faults under traffic are tests (`tests/live/test_live_drill.py`).
"""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import JsonFile, at_speed, console, in_turns, plain_table, run_facts, run_program, write_json
from cluster.files import shipped
from cluster.spec import load_spec
from planning.workload.lengths import LogNormal
from tests.live.drill.case import DrillCase, read_case, round_trips
from tests.live.drill.drill import DrillTraffic, RequestShape, drawn_traffic
from tests.live.drill.live import live_drill
from tests.live.drill.local_cells import LocalCells, local_cells
from tests.live.drill.record import ENDS, DrillRecord

OVERLOADED, HALF = 1.5, 0.5
RTT_MS = {"near": 40.0, "far": 80.0}
_SHAPE = (LogNormal(900, 0.9), LogNormal(200, 0.6))
_PROMPTS = itertools.count()
"""No two runs have the same prompts."""
_HOME = 0
"""The number of the cell that is overloaded."""


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
    record, late_s = await live_drill(bench.case, None, traffic, cells, next(_PROMPTS))
    await cells.settled()
    cells.links.heal()
    return figures(record) | {"client_late_ms": round(1e3 * late_s, 1)}


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


Part = Callable[[CellsBench, LocalCells, int], Awaitable[dict[str, Any]]]
PARTS: dict[str, Part] = {"help": help_part, "overload": overload_part}


def summary_rows(part: str, runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """What the runs come to: medians."""
    if part == "overload":
        shares = [run["share_handed_over"] for run in runs]
        return [[part, "handed over", f"{100 * np.median(shares):.2f} %", f"{len(runs)}"]]
    rows = []
    for name in runs[0]["p99_ratio"]:
        ratios = [pair["p99_ratio"][name] for pair in runs]
        rows.append([part, f"TTFT p99 of {name}, with / without", f"{np.median(ratios):.3f}", f"{len(ratios)}"])
    twice = sum(pair[side]["twice"] for pair in runs for side in ("apart", "together"))
    return [*rows, [part, "answers with more than what was asked for", f"{twice}", f"{len(runs)}"]]


def main(
    part: Annotated[str, typer.Option(help=f"One of {', '.join(PARTS)}.")] = "help",
    runs: Annotated[int, typer.Option(min=1, help="Pairs or runs.")] = 1,
    seconds: Annotated[float, typer.Option(min=20, help="How long requests arrive in each run.")] = 60.0,
    speed: Annotated[
        float | None, typer.Option(min=0.01, max=10, help="Of the engines, instead of the spec's.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure hand-over between three cells on this machine."""
    if part not in PARTS:
        raise typer.BadParameter(f"{part!r}; allowed: {', '.join(PARTS)}", param_hint="--part")
    file = shipped("specs/three-regions.yaml")
    trips = round_trips([region.name for region in load_spec(file).regions], RTT_MS["near"] / 1e3, RTT_MS["far"] / 1e3)
    case = read_case(file, trips)
    if speed is not None:
        slowed = at_speed(case.spec, speed)
        case = replace(case, spec=slowed, model=slowed.model(case.model.name))
    shape = RequestShape(*_SHAPE, case.spec.classes[0].ttft_ms / 1e3)
    bench = CellsBench(case, shape, case.capacity(shape), seconds)
    console.print(f"capacity of a cell: {bench.capacity:.2f} requests/s", highlight=False)

    async def work(folder: Path) -> dict[str, Any]:
        async with local_cells(case.spec, case.model.name, case.rtt_s, folder) as cells:
            found = [await PARTS[part](bench, cells, number) for number in range(runs)]
        return {"schema": 1, **run_facts(), "part": part, "runs": found}

    result = run_program(work)
    table = plain_table("three cells", "part", "figure", "value", "runs", left=2)
    for row in summary_rows(part, result["runs"]):
        table.add_row(*row)
    console.print(table)
    write_json(result, json_file)


if __name__ == "__main__":
    typer.run(main)
