"""raylane's scaling policy beside others: `python -m benchmarks.policies`, or `--trace FILE` for your own traffic.

Each policy runs with its defaults and with a few values of the setting that trades replica-hours for attainment, the
same for every scenario and chosen for none. Everything runs in virtual time and is drawn from seeds: a busy machine
changes no figure.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from autoscaling.policies.registry import outside_packages
from autoscaling.policies.settings import PolicyError
from benchmarks.harness import JsonFile, console, listed, plain_table, run_facts, write_json
from benchmarks.policies.compare import CURVES, Curve, against, compared, curve_named, hours_at, pick
from benchmarks.policies.run import PolicyFailedError
from benchmarks.policies.scenarios import SCENARIOS, Scenario, file_in, scenario_of_file
from cli.options import show_changes
from planning.workload.trace import TraceError


def table_of(scenarios: Iterable[Scenario], curves: Mapping[str, Mapping[str, Curve]]) -> Table:
    columns = ("scenario, SLO", "policy", "hours, backlog = 100 %", "setting", "attainment", "replica-hours", "flaps")
    title = "The cheapest setting of each policy that meets the SLO"
    table = plain_table(title, *columns, "s below the SLO", "hours at the SLO", left=3)
    for one in scenarios:
        about = [f"{one.name}, {one.target:.0%}", one.title]
        for row, (policy, curve) in enumerate(curves[one.name].items()):
            point, at_slo = pick(curve, one.target), hours_at(curve, one.target)
            share = against(curve, curves[one.name]["backlog"]) if "backlog" in curves[one.name] else None
            missed = point.attainment < one.target
            table.add_row(
                about[row] if row < len(about) else "",
                policy,
                "-" if share is None else f"{share:.0%}",
                f"{curve_named(policy)[0]}: {point.value:g}",
                f"{point.attainment:.2%}{' misses' if missed else ''}",
                f"{point.replica_hours:.2f}",
                f"{point.flaps:.1f}",
                f"{point.recovery_s:.0f}",
                "-" if at_slo is None else f"{at_slo:.2f}",
                style="bold" if policy == "backlog" else None,
                end_section=row == len(curves[one.name]) - 1,
            )
    return table


def as_json(scenarios: Iterable[Scenario], curves: Mapping[str, Mapping[str, Curve]]) -> list[dict[str, Any]]:
    return [
        {
            "scenario": one.name,
            "title": one.title,
            "complaint": one.complaint,
            "target": one.target,
            "policies": {
                policy: {
                    "setting": curve_named(policy)[0],
                    "hours_at_slo": hours_at(curve, one.target),
                    "curve": [asdict(point) for point in curve],
                }
                for policy, curve in curves[one.name].items()
            },
        }
        for one in scenarios
    ]


_SHORT = [name for name, one in SCENARIOS.items() if not one.long]


def main(
    scenarios: Annotated[
        str | None,
        typer.Option(help=f"Of {', '.join(SCENARIOS)}. Default: all that take seconds, if their files exist."),
    ] = None,
    policies: Annotated[
        str, typer.Option(help="Separated by commas; also those that installed packages add.")
    ] = ",".join(CURVES),
    trace: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A trace or a traffic file, instead of scenarios.")
    ] = None,
    load_scale: Annotated[
        float, typer.Option(min=1e-4, max=100, help="With --trace: as many users, times this.")
    ] = 1.0,
    length_scale: Annotated[
        float, typer.Option(min=0.01, max=10, help="With --trace: prompts as long, times this.")
    ] = 1.0,
    ttft_s: Annotated[float, typer.Option(min=0.01, help="With --trace: the SLO of the first token.")] = 2.0,
    target: Annotated[float, typer.Option(min=0.01, max=0.9999, help="With --trace: the share that meets it.")] = 0.95,
    start_up_s: Annotated[float, typer.Option(min=0, help="With --trace: how long a replica takes to start.")] = 60.0,
    traces: Annotated[
        Path | None, typer.Option(help="The folder of recorded traffic.", envvar="RAYLANE_TRACES")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=100, help="Runs of each scenario; a trace is run once.")] = 2,
    jobs: Annotated[int, typer.Option(min=1, max=512, help="Processes.")] = len(os.sched_getaffinity(0)),
    json_file: JsonFile = None,
) -> None:
    """Compare scaling policies: replica-hours, attainment and flaps of each."""
    try:
        if trace is not None:
            chosen = [
                scenario_of_file(
                    trace,
                    load_scale=load_scale,
                    length_scale=length_scale,
                    slo_s=ttft_s,
                    target=target,
                    start_up_s=start_up_s,
                )
            ]
            runs = 1
            show_changes(chosen[0].run(0).workload.changes)
        else:
            named = _SHORT if scenarios is None else listed("--scenarios", scenarios, SCENARIOS)
            chosen = _readable([SCENARIOS[name] for name in named], traces)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("")
            curves = compared(
                chosen,
                listed("--policies", policies, (*CURVES, *outside_packages())),
                runs,
                traces,
                jobs,
                lambda done, total, what: progress.update(task, completed=done, total=total, description=what),
            )
    except (TraceError, PolicyError, PolicyFailedError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    console.print(table_of(chosen, curves))
    write_json({**run_facts(), "runs": runs, "scenarios": as_json(chosen, curves)}, json_file)


def _readable(scenarios: Sequence[Scenario], traces: Path | None) -> list[Scenario]:
    """Those whose recordings are there; says which are skipped. Raises TraceError where none is left."""
    found = []
    for one in scenarios:
        try:
            for name in one.reads:
                file_in(traces, name)
            found.append(one)
        except TraceError as error:
            console.print(f"{one.name} skipped: {error}; the folder: --traces, or RAYLANE_TRACES", style="yellow")
    if not found:
        raise TraceError("no scenario could run")
    return found


if __name__ == "__main__":
    typer.run(main)
