"""`raylane simulate --report`: gathers what a report says about a run, and writes it."""

from collections.abc import Mapping
from pathlib import Path

from cli.console import fail
from cli.extras import need_planning
from cli.options import check_outputs, write_page
from cluster.spec import ClusterSpec, Model
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.engine_model.cost_file import CostFile
from deployments.telemetry.published_error import read_published
from planning.answer import Answer
from planning.report.facts import Price, RunFacts
from planning.report.simulated_run import describe
from planning.simulation import Simulation
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.sampler import Samples
from planning.simulator.workload import Workload
from planning.unmodelled import unmodelled_of


def check_report(report: Path | None, published_error: Path | None) -> None:
    """Ends the command before the simulation where the report could not be made after it."""
    if report is not None:
        need_planning("simulate --report")
        check_outputs(report=report)
    if published_error is not None:
        read_published(published_error)


def facts_of(
    case: Simulation,
    files: Mapping[str, tuple[Path, CostFile]],
    trace: Path,
    load_scale: float,
    usd_per_hour: float | None,
    published_error: Path | None,
    answer: Answer,
    out: SimulationOutcome,
) -> RunFacts:
    """`files`: the cost files, by group. `usd_per_hour`: instead of the price in the model's pool."""
    spec, model = case.spec, case.model
    return RunFacts(
        spec=spec.name,
        model=model.name,
        trace=trace.name,
        replicas=case.replicas,
        load_scale=load_scale,
        costs=dict(files.values()),
        classes=spec.classes,
        price=price_of(spec, case.views[0].model, usd_per_hour) if len(case.views) == 1 else _mean_price(case, out),
        published=None if published_error is None else read_published(published_error),
        scaling=case.in_words() if case.scales or len(case.views) > 1 else None,
        changes=case.work.changes,
        unmodelled=unmodelled_of(
            (one.model for one in case.views), {group: cost for group, (_, cost) in files.items()}, spec
        ),
        answer=answer,
    )


def price_of(spec: ClusterSpec, model: Model, usd_per_hour: float | None) -> Price:
    """The price given, else the spec's in the model's first region; on a CPU pool that is by replica."""
    region = spec.regions_of(model)[0]
    pool = spec.pool_of(model, region)
    by_gpu = usd_per_hour is not None or pool.accelerator != "cpu"
    unit, count = ("GPU", model.settings.ranks) if by_gpu else ("replica", 1)
    if usd_per_hour is None:
        usd_per_hour = float(usd_per_replica_hour(spec, model, pool, region) / count) or None
    return Price(unit, count, usd_per_hour)


def _mean_price(case: Simulation, out: SimulationOutcome) -> Price:
    """Of a replica-hour of several groups, as they were used in this run."""
    hours = out.replica_s_of
    usd = sum(view.usd_per_hour * hours.get(view.model.group, 0.0) for view in case.views)
    return Price("replica", 1, usd / sum(hours.values()) if usd else None)


def save_report(
    path: Path, facts: RunFacts, out: SimulationOutcome, work: Workload, lanes: list[str], samples: Samples
) -> None:
    """Writes the report of a run."""
    from planning.report.simulation import render  # plotly takes a second to import, which only reports need

    itl_s = {one.name: one.itl_ms / 1e3 for one in facts.classes if one.itl_ms is not None}
    run = describe(out, work, lanes, samples, itl_s)
    if problems := write_page(path, render(run, facts)):
        fail(problems[0])
