"""`raylane simulate`: what a spec would do with recorded traffic, by the scheduler that runs in production and a
calibrated cost of engine steps."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autoscaling.forecast.forecaster import make_forecaster
from autoscaling.from_spec import FIXED, ScalingSetup, cost_of, setup_of
from autoscaling.policies.settings import PolicyError
from cli.console import console, fail
from cli.options import (
    Costs,
    FromS,
    Limit,
    LoadScale,
    Seed,
    StartUp,
    TimeScale,
    ToS,
    TraceFile,
    TrafficOptions,
    chosen_model,
    chosen_requests,
    engine_costs,
    replica_count,
)
from cli.simulation_report import check_report, facts_of, save_report
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile, CostFileError
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling.policy import binding_of, policy_of
from planning.scoring import Score, score
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.fleet import FleetEvent, FleetEventKind
from planning.simulator.outcome import Figures, SimulationOutcome, figures
from planning.simulator.sampler import Sampler
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import Workload, WorkloadError, workload_of
from planning.tune.case import load_on
from planning.workload.trace import TraceError


def scaling_of(setup: ScalingSetup, until_s: float) -> SimulatedScaling:
    """The spec's policy within its bounds. Second 0 of the traffic is midnight, and a forecast has seen nothing before
    it. Raises LawError."""
    forecaster = make_forecaster(setup.forecast)
    return SimulatedScaling(
        setup.autoscaler(),
        until_s,
        setup.attainment,
        start_up_s=(setup.replica_profile.start_up_s,),
        forecaster=forecaster,
    )


def in_words(scaling: SimulatedScaling) -> str:
    """The policy, and within what it decides."""
    bounds = scaling.autoscaler.bounds
    return f"{bounds.minimum} to {bounds.maximum} replicas, scaled by {scaling.autoscaler.policy.name!r}"


def scored(
    scaling: SimulatedScaling,
    out: SimulationOutcome,
    work: Workload,
    setup: ScalingSetup,
    cost: CostModel,
    lanes: Sequence[str],
) -> Score:
    """The score of a run, to the last arrival."""
    target = min(setup.attainment.values(), default=0.99)
    return score(
        out,
        work.ttft_slo_s,
        lanes,
        scaling.until_s,
        target,
        load_on(work, setup.replica_profile, cost, scaling.until_s),
    )


def scaled_figures(scaling: SimulatedScaling, out: SimulationOutcome, scored: Score) -> dict[str, Any]:
    """The policy, what it took, and its decisions that changed something, by reason."""
    return {
        "policy": scaling.autoscaler.policy.name,
        "replica_hours": scored.replica_hours,
        "mean_replicas": scored.mean_replicas,
        "max_replicas": max((one.requested for one in out.scalings), default=0),
        "changes": scored.changes,
        "flaps": scored.flaps,
        "reasons": dict(Counter(one.reason for one in out.scalings if one.changes).most_common()),
    }


def show_scaling(reported: Mapping[str, Any]) -> None:
    """One line of the figures."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in reported["reasons"].items())
    console.print(
        f"replicas: {reported['mean_replicas']:.2f} on average, {reported['max_replicas']} at most, "
        f"{reported['replica_hours']:.2f} replica-hours; "
        f"{reported['changes']} changes{f' ({reasons})' if reasons else ''}, {reported['flaps']} flaps"
    )


SCHEMA_VERSION = 1
_COUNTS = ("rejected", "expired", "failed", "promoted")


def simulate(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec.")],
    trace: TraceFile,
    costs: Costs = None,
    model: Annotated[str | None, typer.Option(help="The model. Default: the spec's first.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Overrides the spec's count; for a model that scales: at the start.")
    ] = None,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="Keep the number of replicas fixed; ignore the spec's autoscaling.")
    ] = False,
    from_s: FromS = 0.0,
    to_s: ToS = None,
    limit: Limit = None,
    time_scale: TimeScale = 1.0,
    load_scale: LoadScale = 1.0,
    seed: Seed = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report (one file, readable offline).")] = None,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(min=0, help="US dollars, for the report. Default: the pool's price in the spec.")
    ] = None,
    published_error: Annotated[
        Path | None, typer.Option(help="The simulator's measured error (`raylane rehearse`), for the report.")
    ] = None,
    fail_at: Annotated[
        list[float] | None, typer.Option(min=0, help="Fail a replica at this second; may be repeated.")
    ] = None,
    start_up_s: StartUp = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate a spec on a trace: TTFT by lane, rejections, promotions, SLO attainment, replicas over time."""
    check_report(report, published_error)
    spec, chosen = chosen_model(spec_file, model)
    scaled = not fixed and spec.autoscaling_of(chosen).policy != FIXED
    count = chosen.replicas.count if scaled and replicas is None else replica_count(chosen, replicas)
    try:
        cost_path, cost = engine_costs(spec, chosen, costs)
        requests = chosen_requests(trace, TrafficOptions(from_s, to_s, limit, time_scale, load_scale, seed))
    except (CostFileError, TraceError) as error:
        fail(str(error), code=2)
    if len(fail_at or ()) > count:
        fail(f"--fail-at: {len(fail_at or ())} failures; allowed: at most {count}, one for each replica", code=2)
    try:
        work = workload_of(requests, spec, chosen)
    except WorkloadError as error:
        fail(f"{trace}: {error}", code=2)
    setup = setup_of(spec, chosen, spec.regions_of(chosen)[0], cost, start_up_s=start_up_s)
    try:
        scaling = scaling_of(setup, float(work.arrived_s[-1])) if scaled else None
    except PolicyError as error:
        fail(f"{spec_file}: models.{chosen.name}: autoscaling: {error}", code=2)
    settings = _settings(spec, chosen, count, work, setup, scaling, fail_at)
    sampler = None if report is None else Sampler()
    out = _run(settings, cost_of(chosen, cost), work, sampler)
    lane_names = [lane.name for lane in spec.lanes]
    if report is not None and sampler is not None:
        policy = None if scaling is None else in_words(scaling)
        facts = facts_of(
            spec, chosen, cost, (trace, cost_path), count, load_scale, price_per_gpu_hour, published_error, policy
        )
        save_report(report, facts, out, work, lane_names, sampler.samples())
    reported = (
        None
        if scaling is None
        else scaled_figures(scaling, out, scored(scaling, out, work, setup, cost_of(chosen, cost), lane_names))
    )
    lanes = [figures(lane.name, out, work.ttft_slo_s, out.lane == index) for index, lane in enumerate(spec.lanes)]
    whole = figures("all", out, work.ttft_slo_s, np.ones(len(work), dtype=np.bool_))
    if as_json:
        console.print_json(
            json.dumps(
                _report(cost, count, out, [*lanes, whole]) | ({} if reported is None else {"autoscaling": reported})
            )
        )
    else:
        _show(
            f"{chosen.name} on {count} replicas" if scaling is None else f"{chosen.name}, {in_words(scaling)}",
            cost,
            out,
            [*lanes, whole],
        )
        if reported is not None:
            show_scaling(reported)


def _settings(
    spec: ClusterSpec,
    model: Model,
    count: int,
    work: Workload,
    setup: ScalingSetup,
    scaling: SimulatedScaling | None,
    fail_at: list[float] | None,
) -> CellSettings:
    return CellSettings(
        count,
        _limits(setup.replica_profile.limits, work.chunk_tokens if model.settings.prefix_caching else 0),
        policy_of(spec),
        binding_of(spec),
        model.settings.max_model_len,
        spec.gateway.timeouts.queue_wait_s,
        setup.replica_profile.start_up_s,
        _failures(fail_at),
        patience_s={one.name: spec.patience_s(one) for one in spec.classes},
        scaling=scaling,
    )


def _limits(limits: EngineModelLimits, chunk_tokens: int) -> EngineModelLimits:
    """The engine's, with its prefix cache where the workload tells of prefixes in whole blocks."""
    return replace(limits, chunk_tokens=chunk_tokens if chunk_tokens % limits.block_tokens == 0 else 0)


def _failures(times_s: list[float] | None) -> tuple[FleetEvent, ...]:
    return tuple(FleetEvent(at_s, FleetEventKind.FAIL, number) for number, at_s in enumerate(sorted(times_s or ())))


def _run(settings: CellSettings, cost: CostModel, work: Workload, sampler: Sampler | None) -> SimulationOutcome:
    columns = (TextColumn("[progress.description]{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{len(work):,} requests on {settings.replicas} replicas", total=1.0)
        sample = None if sampler is None else sampler.take
        return CellSimulator(settings, cost, work, lambda share: progress.update(task, completed=share), sample).run()


def _report(cost: CostFile, replicas: int, out: SimulationOutcome, lines: list[Figures]) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "replicas": replicas,
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
