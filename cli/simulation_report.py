"""`raylane simulate --report`: gathers what a report says about a run, and writes it."""

import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from cli.console import errors, fail
from cli.extras import need_planning
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from deployments.scheduling.recorder import code_hash
from deployments.telemetry.published_error import PublishedError, read_published
from planning.answer import Answer
from planning.report.facts import Basis, Price, RunFacts, Target
from planning.report.file import ReportFileError, check_place, write_report
from planning.report.simulated_run import describe, scalings
from planning.simulation import Simulation
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.sampler import Samples
from planning.simulator.timeline import counts_of
from planning.simulator.workload import Workload
from planning.unmodelled import unmodelled


def check_report(report: Path | None, published_error: Path | None) -> None:
    """Ends the command before the simulation where the report could not be made after it."""
    try:
        if report is not None:
            need_planning("simulate --report")
            check_place(report)
        if published_error is not None:
            read_published(published_error)
    except (ReportFileError, PublishedError) as error:
        fail(str(error), code=2)


def facts_of(
    case: Simulation,
    cost: CostFile,
    files: tuple[Path, Path],
    load_scale: float,
    usd_per_hour: float | None,
    published_error: Path | None,
    answer: Answer,
    out: SimulationOutcome,
) -> RunFacts:
    """`files`: the trace and the cost file. `usd_per_hour`: instead of the price in the model's pool."""
    trace, costs = files
    spec, model = case.spec, case.model
    return RunFacts(
        spec=spec.name,
        model=model.name,
        trace=trace.name,
        replicas=case.replicas,
        load_scale=load_scale,
        basis=Basis(costs.name, cost.basis, cost.hardware, cost.error, cost.note),
        targets=tuple(Target(one.name, one.ttft_ms / 1e3, one.attainment, one.itl_ms) for one in spec.classes),
        sequences=cost.engine.max_num_seqs,
        kv_tokens=cost.engine.kv_tokens,
        price=price_of(spec, model, usd_per_hour) if len(case.views) == 1 else _mean_price(case, out),
        version=f"{version('raylane')}, scheduler {code_hash()}",
        command=shlex.join(["raylane", *sys.argv[1:]]),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        published=None if published_error is None else read_published(published_error),
        scaling=case.in_words() if case.scales or len(case.views) > 1 else None,
        changes=case.work.changes,
        unmodelled=unmodelled(model, cost, spec),
        answer=answer,
    )


def price_of(spec: ClusterSpec, model: Model, usd_per_hour: float | None) -> Price:
    """The price given, else that of the pool which hosts the model in its first region; a CPU pool's is by node, of
    which no share is known."""
    pool = spec.pool_of(model, spec.regions_of(model)[0])
    per_replica = model.settings.ranks
    if pool.accelerator == "cpu" and usd_per_hour is None:
        return Price("replica", 1, None)
    return Price("GPU", per_replica, usd_per_hour if usd_per_hour is not None else pool.price_usd_per_hour or None)


def _mean_price(case: Simulation, out: SimulationOutcome) -> Price:
    """Of a replica-hour of several groups, as they were used in this run."""
    hours = out.replica_s_of
    usd = sum(view.usd_per_hour * hours.get(view.model.group, 0.0) for view in case.views)
    return Price("replica", 1, usd / sum(hours.values()) if usd else None)


def save_report(
    path: Path, facts: RunFacts, out: SimulationOutcome, work: Workload, lanes: list[str], samples: Samples
) -> None:
    """Writes the report of a run."""
    from planning.report.simulation import (
        render,
    )  # plotly takes a second to import, which other commands need not wait for

    itl_s = {target.name: target.itl_ms / 1e3 for target in facts.targets if target.itl_ms is not None}
    run = describe(out, work, lanes, samples, counts_of(out.lifetimes), scalings(out), itl_s)
    try:
        write_report(path, render(run, facts))
    except ReportFileError as error:
        fail(str(error))
    errors.print(f"report: {path}")  # beside --json, which has the output for itself
