"""`raylane simulate`: what a spec would do with recorded traffic, by the scheduler that runs in production and a
calibrated cost of engine steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TimeRemainingColumn

from autoscaling.from_spec import FIXED
from autoscaling.policies.settings import PolicyError
from cli.console import AsJson, fail, progress_bar
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
from planning.workload.trace import Trace


@with_groups
def simulate(
    spec_file: SpecFile,
    trace: TraceFile,
    traffic: TrafficOptions,
    starts: StartOptions,
    costs: Costs = None,
    model: ModelName = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Overrides the spec's count; for a model that scales: at the start.")
    ] = None,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="Keep the number of replicas fixed; ignore the spec's autoscaling.")
    ] = False,
    seed: Seed = None,
    report: Report = None,
    price_per_gpu_hour: PricePerGpuHour = None,
    published_error: Annotated[
        Path | None, typer.Option(help="The simulator's measured error (`raylane rehearse`), for the report.")
    ] = None,
    lose: Annotated[
        list[str] | None,
        typer.Option(help=f"Of regions that help each other: lose one, a zone or a link. {FORMS}. May be repeated."),
    ] = None,
    with_range: WithRange = True,
    neighbours: Annotated[
        bool,
        typer.Option(help="Also simulate one replica fewer and one more (two more runs, each as long as the first)."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Simulate a spec on a trace: TTFT by lane, rejections, promotions, SLO attainment, replicas over time."""
    check_report(report, published_error)
    spec, chosen = chosen_model(spec_file, model)
    several = is_several(spec, chosen)
    files = group_costs(spec, chosen, costs, several)
    costs_of = {group: one for group, (_, one) in files.items()}
    work = _work(spec, chosen, costs_of, trace, chosen_requests(trace, traffic, seed), traffic.fit_lengths)
    if several:
        refused = {"--report": report, "--published-error": published_error, "--replicas": replicas}
        for option, value in refused.items():
            if value is not None:
                fail(f"{option} {value}: allowed: for one region; this spec's regions help each other", code=2)
    elif lose:
        fail(f"--lose {lose[0]}: allowed: for a model without groups in several regions with `peering`", code=2)
    cases = _cases(spec_file, spec, chosen, costs_of, work, replicas, fixed, starts, price_per_gpu_hour)
    if several:
        held = simulate_regions(spec, chosen, cases, lose or [], next(iter(costs_of.values())), as_json)
        raise typer.Exit(0 if held else 1)
    (case,) = cases.values()
    sampler = None if report is None else Sampler()
    likely = _likely(spec, chosen, costs_of) if with_range else None
    out, answer = _run(case, likely, neighbours, sampler)
    tell = print_answer if as_json else show_answer
    tell(case, costs_of, out, answer)
    if report is not None and sampler is not None:
        facts = facts_of(case, files, trace, traffic.load_scale, price_per_gpu_hour, published_error, answer, out)
        save_report(report, facts, out, case.work, case.lanes, sampler.samples())


def _likely(spec: ClusterSpec, model: Model, costs: Mapping[str, CostFile]) -> CostRange:
    """How far the costs may be off; of several groups the widest range, since one factor moves them all."""
    region = spec.regions_of(model)[0]
    views = spec.groups_of(model, region)
    found = [cost_range(costs[view.group], view, spec.pool_of(view, region)) for view in views]
    return max(found, key=lambda one: one.high - one.low)


def _work(
    spec: ClusterSpec, model: Model, costs: Mapping[str, CostFile], file: Path, requests: Trace, fit_lengths: bool
) -> Workload:
    """The model's requests. Ends the command where the spec cannot serve them."""
    try:
        return workload_of(requests, spec, model, length_limits(model, costs, fit_lengths))
    except WorkloadError as error:
        fail(f"{file}: {error}", code=2)


def _cases(
    spec_file: Path,
    spec: ClusterSpec,
    model: Model,
    costs: Mapping[str, CostFile],
    work: Workload,
    replicas: int | None,
    fixed: bool,
    starts: StartOptions,
    price_per_gpu_hour: float | None,
) -> dict[str, Simulation]:
    """The simulation of the model's first region, or those of all regions where they help each other. Ends the command
    where the spec's policy cannot be made."""
    several = is_several(spec, model)
    regions = spec.regions_of(model)[: None if several else 1]
    views = spec.groups_of(model, regions[0])
    for option, value in (("--replicas", replicas), ("--price-per-gpu-hour", price_per_gpu_hour)):
        if len(views) > 1 and value is not None:
            fail(f"{option} {value}: allowed: for a model with one group; the spec says it for each", code=2)
    scales = not fixed and any(spec.autoscaling_of(view).policy != FIXED for view in views)
    for view in () if scales or several else views:
        replica_count(view, replicas)
    began_s = starts.unix_s(model) if scales or starts.start_at is not None else 0.0
    past = starts.past(model.name)
    common = (spec, model, costs, work, replicas, scales, starts.start_up_s, past, began_s)
    try:
        return {region.name: simulation_of(*common, region, price_per_gpu_hour) for region in regions}
    except PolicyError as error:
        fail(f"{spec_file}: models.{model.name}: autoscaling: {error}", code=2)


def _run(
    case: Simulation, costs: CostRange | None, neighbours: bool, sampler: Sampler | None
) -> tuple[SimulationOutcome, Answer]:
    """Runs it as the spec says, and the other runs that the answer takes."""
    planned = variants(case, costs, neighbours)
    runs: dict[Variant, RunFigures] = {}
    requests = f"{len(case.work):,} requests"
    with progress_bar(requests, len(planned), TimeRemainingColumn()) as tell:
        for number, (variant, one) in enumerate(planned.items()):
            text = f"{requests}, run {number + 1} of {len(planned)}: {variant}"
            tell(text, number)

            def tell_share(share: float, text: str = text, done: int = number) -> None:
                tell(text, done + share)

            found = one.run(tell_share, sampler if variant is Variant.THIS else None)
            runs[variant] = one.figures(found)
            if variant is Variant.THIS:
                out = found
    return out, Answer(runs, costs, capacity_of(case, costs, out))
