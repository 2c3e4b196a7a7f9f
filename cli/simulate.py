"""`raylane simulate`: what a spec would do with recorded traffic, by the scheduler that runs in production and a
calibrated cost of engine steps."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autoscaling.from_spec import FIXED
from autoscaling.policies.settings import PolicyError
from cli.console import console, fail
from cli.options import (
    AsJson,
    Costs,
    FitLengths,
    FromS,
    Limit,
    LoadScale,
    ModelName,
    PricePerGpuHour,
    Report,
    Seed,
    SpecFile,
    StartUp,
    TimeScale,
    ToS,
    TraceFile,
    TrafficOptions,
    chosen_model,
    chosen_requests,
    engine_costs,
    length_limits,
    replica_count,
    show_changes,
)
from cli.simulation_report import check_report, facts_of, save_report
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile, CostFileError
from planning.simulation import Simulation, simulation_of
from planning.simulator.outcome import Figures, SimulationOutcome, rejections_of
from planning.simulator.sampler import Sampler
from planning.simulator.workload import Workload, WorkloadError, workload_of
from planning.workload.changes import rejections
from planning.workload.trace import TraceError

SCHEMA_VERSION = 1
_COUNTS = ("rejected", "expired", "failed", "promoted")

Replicas = Annotated[
    int | None, typer.Option(min=1, help="Overrides the spec's count; for a model that scales: at the start.")
]
Fixed = Annotated[
    bool, typer.Option("--fixed", help="Keep the number of replicas fixed; ignore the spec's autoscaling.")
]
PublishedErrorFile = Annotated[
    Path | None, typer.Option(help="The simulator's measured error (`raylane rehearse`), for the report.")
]
FailAt = Annotated[list[float] | None, typer.Option(min=0, help="Fail a replica at this second; may be repeated.")]


def simulate(
    spec_file: SpecFile,
    trace: TraceFile,
    costs: Costs = None,
    model: ModelName = None,
    replicas: Replicas = None,
    fixed: Fixed = False,
    from_s: FromS = 0.0,
    to_s: ToS = None,
    limit: Limit = None,
    time_scale: TimeScale = 1.0,
    load_scale: LoadScale = 1.0,
    fit_lengths: FitLengths = False,
    seed: Seed = None,
    report: Report = None,
    price_per_gpu_hour: PricePerGpuHour = None,
    published_error: PublishedErrorFile = None,
    fail_at: FailAt = None,
    start_up_s: StartUp = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a spec on a trace: TTFT by lane, rejections, promotions, SLO attainment, replicas over time."""
    check_report(report, published_error)
    spec, chosen = chosen_model(spec_file, model)
    traffic = TrafficOptions(from_s, to_s, limit, time_scale, load_scale, seed)
    gathered = _gathered(spec, chosen, costs, trace, traffic, fit_lengths)
    case = _case(spec_file, spec, chosen, gathered, replicas, fixed, start_up_s, fail_at or [])
    sampler = None if report is None else Sampler()
    out = _run(case, sampler)
    if report is not None and sampler is not None:
        policy = case.in_words() if case.scales else None
        files, changes = (trace, gathered.cost_path), case.work.changes
        prices = (price_per_gpu_hour, published_error)
        facts = facts_of(spec, chosen, gathered.cost, files, case.replicas, load_scale, *prices, changes, policy)
        save_report(report, facts, out, case.work, case.lanes, sampler.samples())
    _tell(case, gathered.cost, out, as_json)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What the files hold."""

    cost_path: Path
    cost: CostFile
    work: Workload


def _gathered(
    spec: ClusterSpec, model: Model, costs: Path | None, trace: Path, traffic: TrafficOptions, fit_lengths: bool
) -> _Gathered:
    """Reads it all. Ends the command where something cannot be used."""
    try:
        cost_path, cost = engine_costs(spec, model, costs)
        requests = chosen_requests(trace, traffic)
    except (CostFileError, TraceError) as error:
        fail(str(error), code=2)
    try:
        limits = length_limits(model, cost, fit_lengths)
        return _Gathered(cost_path, cost, workload_of(requests, spec, model, limits))
    except WorkloadError as error:
        fail(f"{trace}: {error}", code=2)


def _case(
    spec_file: Path,
    spec: ClusterSpec,
    model: Model,
    gathered: _Gathered,
    replicas: int | None,
    fixed: bool,
    start_up_s: float | None,
    fail_at: list[float],
) -> Simulation:
    """The simulation. Ends the command where the spec's policy cannot be made, or too many replicas fail."""
    scales = not fixed and spec.autoscaling_of(model).policy != FIXED
    count = model.replicas.count if scales and replicas is None else replica_count(model, replicas)
    if len(fail_at) > count:
        fail(f"--fail-at: {len(fail_at)} failures; allowed: at most {count}, one for each replica", code=2)
    try:
        return simulation_of(spec, model, gathered.cost, gathered.work, count, scales, start_up_s, fail_at)
    except PolicyError as error:
        fail(f"{spec_file}: models.{model.name}: autoscaling: {error}", code=2)


def _run(case: Simulation, sampler: Sampler | None) -> SimulationOutcome:
    columns = (TextColumn("[progress.description]{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{len(case.work):,} requests on {case.replicas} replicas", total=1.0)
        return case.run(lambda share: progress.update(task, completed=share), sampler)


def _tell(case: Simulation, cost: CostFile, out: SimulationOutcome, as_json: bool) -> None:
    lines = case.figures(out)
    scaled = case.scaled_figures(out) if case.scales else None
    if as_json:
        shown = _report(case, cost, out, lines) | ({} if scaled is None else {"autoscaling": scaled})
        console.print_json(json.dumps(shown))
        return
    show_changes(case.work.changes)
    _show(f"{case.model.name}{', ' if case.scales else ' on '}{case.in_words()}", cost, out, lines)
    if scaled is not None:
        show_scaling(scaled)


def show_scaling(reported: Mapping[str, Any]) -> None:
    """One line of the figures."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in reported["reasons"].items())
    console.print(
        f"replicas: {reported['mean_replicas']:.2f} on average, {reported['max_replicas']} at most, "
        f"{reported['replica_hours']:.2f} replica-hours; "
        f"{reported['changes']} changes{f' ({reasons})' if reasons else ''}, {reported['flaps']} flaps"
    )


def _report(case: Simulation, cost: CostFile, out: SimulationOutcome, lines: list[Figures]) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "replicas": case.replicas,
        "changes": [change.as_json() for change in case.work.changes],
        "rejections": rejections(case.work.changes) | rejections_of(out),
        "costs": {"basis": cost.basis, "hardware": cost.hardware, "error": cost.error},
        "simulated_s": out.ended_s,
        "preemptions": out.preemptions,
        "itl_s": {f"p{100 * share:g}": value for share, value in out.itl_s.items()},
        "lanes": [line.as_json() for line in lines],
    }


def _show(what: str, cost: CostFile, out: SimulationOutcome, lines: list[Figures]) -> None:
    table = Table(title=f"model {what}: {out.ended_s:.0f} s simulated", title_justify="left", title_style="bold")
    reported = [
        name for name in _COUNTS if any(getattr(line, name) for line in lines)
    ]  # what never happened needs no column
    for column in ("lane", "requests", *reported, "TTFT p50", "p90", "p99", "TPOT p50", "mean wait", "in time"):
        table.add_column(column, justify="left" if column == "lane" else "right")
    for line in lines:
        times = (line.ttft_p50_ms, line.ttft_p90_ms, line.ttft_p99_ms, line.tpot_p50_ms, line.queued_mean_ms)
        counts = (str(getattr(line, name)) for name in ("requests", *reported))
        in_time = "-" if np.isnan(line.answered_in_time) else f"{line.answered_in_time:.2%}"
        table.add_row(line.name, *counts, *("-" if np.isnan(value) else f"{value:.0f} ms" for value in times), in_time)
    console.print(table)
    rests = {
        "measured": "measured on this engine",
        "profile": "from a profile of the model's layers",
        "roofline": "[yellow]NOT measured: a roofline[/]",
    }
    error = "" if cost.error is None else f", its step times off by {cost.error:.1%} on average"
    console.print(f"costs: {rests[cost.basis]} ({cost.hardware}){error}")
