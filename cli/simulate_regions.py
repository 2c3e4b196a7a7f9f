"""`raylane simulate` of a spec whose regions help each other: all of them together, and what a loss does."""

from collections.abc import Sequence
from math import isfinite

from rich.markup import escape

from cli.console import console, fail, plain_table, print_json
from cli.options import show_changes, show_unmodelled
from cli.simulation_output import SCHEMA_VERSION
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from deployments.wire import to_json
from planning.report.words import attained
from planning.several_regions import RegionsFigures, SeveralRegions, fault_of, homes_of
from planning.simulation import Simulation
from planning.unmodelled import unmodelled
from planning.workload.changes import rejections


def simulate_regions(
    spec: ClusterSpec,
    model: Model,
    simulations: dict[str, Simulation],
    lose: Sequence[str],
    cost: CostFile,
    as_json: bool,
) -> bool:
    """Runs and prints it. Returns whether the SLO holds at the end in every region. Ends the command for a fault that
    cannot be."""
    work = next(iter(simulations.values())).work
    try:
        faults = tuple(fault_of(text, spec, model) for text in lose)
        for fault in faults:
            if fault.at_s >= work.arrived_s[-1]:
                raise ValueError(
                    f"at {fault.at_s:g} s: allowed: before the last request, at {work.arrived_s[-1]:.0f} s"
                )
        case = SeveralRegions(spec, simulations, homes_of(work, list(simulations)), faults)
        with console.status(f"simulating {len(work):,} requests in {len(simulations)} regions"):
            found = case.figures(case.run())
    except ValueError as problem:
        fail(f"--lose {problem}" if lose else str(problem), code=2)
    missing = unmodelled(model, cost)
    if as_json:
        told = {
            "schema": SCHEMA_VERSION,
            "lose": lose,
            "regions": found.figures,
            "recovery_s": found.recovery_s,
            "replica_hours": found.replica_hours,
            "usd": found.usd,
            "rejections": rejections(work.changes),
            "changes": [change.as_json() for change in work.changes],
            "not_modelled": missing,
        }
        print_json(to_json(told))
    else:
        show_unmodelled(missing)
        show_changes(work.changes)
        _show(found, lose)
    return found.held


def _show(found: RegionsFigures, lose: Sequence[str]) -> None:
    columns = ("clients of", "when", "requests", "in time", "TTFT p50", "p99", "handed over", "lost")
    table = plain_table(*columns, left=2)
    for one in found.figures:
        times = (f"{1e3 * value:.0f} ms" if isfinite(value) else "-" for value in (one.ttft_p50_s, one.ttft_p99_s))
        counts = (f"{value:,}" for value in (one.handed_over, one.lost))
        table.add_row(
            escape(one.region or "all regions"), one.phase, f"{one.requests:,}", attained(one.in_time), *times, *counts
        )
    console.print(table)
    for name, seconds in found.recovery_s.items():
        if seconds is None:
            console.print(f"[bold red]{escape(name)}: the SLO does not hold again before the end[/]")
        else:
            held = "holds throughout" if seconds == 0 else f"holds again after {seconds:.1f} s"
            console.print(f"{escape(name)}: the SLO {held}")
    hours = ", ".join(f"{escape(name)} {value:.2f}" for name, value in found.replica_hours.items())
    console.print(f"replica-hours: {hours}" + (f"; ${found.usd:,.2f}" if found.usd else ""))
    if lose:
        console.print(
            "near the capacity small causes have large effects: repeat it with another --seed or --load-scale"
        )
