"""`raylane simulate`: what a spec would do with recorded traffic, by the scheduler that runs in production and a
calibrated cost of engine steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from autoscaling.from_spec import FIXED
from autoscaling.policies.settings import PolicyError
from cli.console import AsJson, console, fail
from cli.option_groups import with_groups
from cli.options import (
    Costs,
    ModelName,
    PricePerGpuHour,
    Report,
    Seed,
    SpecFile,
    StartOptions,
    TraceFile,
    TrafficOptions,
    WithRange,
    chosen_model,
    chosen_requests,
    group_costs,
    length_limits,
    replica_count,
)
from cli.simulate_regions import simulate_regions
from cli.simulation_output import print_answer, show_answer
from cli.simulation_report import check_report, facts_of, save_report
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from planning.answer import Answer, Variant, capacity_of, variants
from planning.several_regions import FORMS, is_several
from planning.simulation import RunFigures, Simulation, simulation_of
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.sampler import Sampler
from planning.simulator.workload import Workload, WorkloadError, workload_of
from planning.uncertainty import CostRange, cost_range

Replicas = Annotated[
    int | None, typer.Option(min=1, help="Overrides the spec's count; for a model that scales: at the start.")
]
Fixed = Annotated[
    bool, typer.Option("--fixed", help="Keep the number of replicas fixed; ignore the spec's autoscaling.")
]
PublishedErrorFile = Annotated[
    Path | None, typer.Option(help="The simulator's measured error (`raylane rehearse`), for the report.")
]
Neighbours = Annotated[
    bool, typer.Option(help="Also simulate one replica fewer and one more (two more runs, each as long as the first).")
]
Lose = Annotated[
    list[str] | None,
    typer.Option(help=f"Of regions that help each other: lose one, a zone or a link. {FORMS}. May be repeated."),
]


@with_groups
def simulate(
    spec_file: SpecFile,
    trace: TraceFile,
    traffic: TrafficOptions,
    starts: StartOptions,
    costs: Costs = None,
    model: ModelName = None,
    replicas: Replicas = None,
    fixed: Fixed = False,
    seed: Seed = None,
    report: Report = None,
    price_per_gpu_hour: PricePerGpuHour = None,
    published_error: PublishedErrorFile = None,
    lose: Lose = None,
    with_range: WithRange = True,
    neighbours: Neighbours = True,
    as_json: AsJson = False,
) -> None:
    """Simulate a spec on a trace: TTFT by lane, rejections, promotions, SLO attainment, replicas over time."""
    check_report(report, published_error)
    spec, chosen = chosen_model(spec_file, model)
    gathered = _gathered(spec, chosen, costs, trace, traffic, seed)
    if is_several(spec, chosen):
        _only_for_one_region(report, replicas)
        regions = _regions(spec_file, spec, chosen, gathered, fixed, starts)
        held = simulate_regions(spec, chosen, regions, lose or [], gathered.cost, as_json)
        raise typer.Exit(0 if held else 1)
    if lose:
        fail(f"--lose {lose[0]}: allowed: for a model without groups in several regions with `peering`", code=2)
    case = _case(spec_file, spec, chosen, gathered, replicas, fixed, starts)
    sampler = None if report is None else Sampler()
    likely = _likely(spec, chosen, gathered) if with_range else None
    out, answer = _run(case, likely, neighbours, sampler)
    if report is not None and sampler is not None:
        files, prices = (trace, gathered.cost_path), (price_per_gpu_hour, published_error)
        facts = facts_of(case, gathered.cost, files, traffic.load_scale, *prices, answer, out)
        save_report(report, facts, out, case.work, case.lanes, sampler.samples())
    tell = print_answer if as_json else show_answer
    tell(case, gathered.cost, out, answer)


def _only_for_one_region(report: Path | None, replicas: int | None) -> None:
    for option, value in (("--report", report), ("--replicas", replicas)):
        if value is not None:
            fail(f"{option} {value}: allowed: for one region; this spec's regions help each other", code=2)


def _regions(
    spec_file: Path, spec: ClusterSpec, model: Model, gathered: "_Gathered", fixed: bool, starts: StartOptions
) -> dict[str, Simulation]:
    """Of each region. Ends the command where the spec's policy cannot be made."""
    scales = not fixed and any(spec.autoscaling_of(view).policy != FIXED for view in model.views)
    began_s, past = starts.unix_s(model) if scales else 0.0, starts.past(model.name)
    costs = {group: cost for group, (_, cost) in gathered.costs.items()}
    common = (spec, model, costs, gathered.work, None, scales, starts.start_up_s, past, began_s)
    try:
        return {region.name: simulation_of(*common, region) for region in spec.regions_of(model)}
    except PolicyError as error:
        fail(f"{spec_file}: models.{model.name}: autoscaling: {error}", code=2)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What the files hold. `costs`: by group, with their paths."""

    costs: Mapping[str, tuple[Path, CostFile]]
    work: Workload

    @property
    def cost_path(self) -> Path:
        """The cost file of the only group, or of the first one."""
        return next(iter(self.costs.values()))[0]

    @property
    def cost(self) -> CostFile:
        """The costs of the only group, or of the first one."""
        return next(iter(self.costs.values()))[1]


def _likely(spec: ClusterSpec, model: Model, gathered: _Gathered) -> CostRange:
    """How far the costs may be off; of several groups the widest range, since one factor moves them all."""
    region = spec.regions_of(model)[0]
    found = [
        cost_range(gathered.costs[view.group][1], view, spec.pool_of(view, region))
        for view in spec.groups_of(model, region)
    ]
    return max(found, key=lambda one: one.high - one.low)


def _gathered(
    spec: ClusterSpec, model: Model, costs: Path | None, trace: Path, traffic: TrafficOptions, seed: int | None
) -> _Gathered:
    """Reads it all. Ends the command where something cannot be used."""
    found = group_costs(spec, model, costs)
    requests = chosen_requests(trace, traffic, seed)
    try:
        limits = length_limits(model, {group: cost for group, (_, cost) in found.items()}, traffic.fit_lengths)
        return _Gathered(found, workload_of(requests, spec, model, limits))
    except WorkloadError as error:
        fail(f"{trace}: {error}", code=2)


def _case(
    spec_file: Path,
    spec: ClusterSpec,
    model: Model,
    gathered: _Gathered,
    replicas: int | None,
    fixed: bool,
    starts: StartOptions,
) -> Simulation:
    """The simulation. Ends the command where the spec's policy cannot be made."""
    views = spec.groups_of(model, spec.regions_of(model)[0])
    if len(views) > 1 and replicas is not None:
        fail(f"--replicas {replicas}: allowed: for a model with one group; the spec says how many each has", code=2)
    scales = not fixed and any(spec.autoscaling_of(view).policy != FIXED for view in views)
    for view in () if scales else views:
        replica_count(view, replicas)
    began_s, past = starts.unix_s(model) if scales else 0.0, starts.past(model.name)
    costs = {group: cost for group, (_, cost) in gathered.costs.items()}
    try:
        return simulation_of(spec, model, costs, gathered.work, replicas, scales, starts.start_up_s, past, began_s)
    except PolicyError as error:
        fail(f"{spec_file}: models.{model.name}: autoscaling: {error}", code=2)


def _run(
    case: Simulation, costs: CostRange | None, neighbours: bool, sampler: Sampler | None
) -> tuple[SimulationOutcome, Answer]:
    """Runs it as the spec says, and the other runs that the answer takes."""
    planned = variants(case, costs, neighbours)
    columns = (TextColumn("[progress.description]{task.description}"), BarColumn(), TimeRemainingColumn())
    runs: dict[Variant, RunFigures] = {}
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"{len(case.work):,} requests", total=float(len(planned)))
        for number, (variant, one) in enumerate(planned.items()):
            place = f"run {number + 1} of {len(planned)}: {variant}"
            progress.update(task, description=f"{len(case.work):,} requests, {place}")

            def tell(share: float, done: int = number) -> None:
                progress.update(task, completed=done + share)

            found = one.run(tell, sampler if variant is Variant.THIS else None)
            runs[variant] = one.figures(found)
            if variant is Variant.THIS:
                out = found
    return out, Answer(runs, costs, capacity_of(case, costs, out))
