"""`raylane tune`: looks for settings of the scaling law that keep the promises for less, on recorded traffic, and proposes a change of the spec."""

import json
import shlex
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from cli.console import console, errors, fail
from cli.engine_costs import Costs
from cli.outputs import check_outputs
from cli.simulation_report import price_of
from cli.simulation_scaling import StartUp
from cli.traffic_options import Choice, FromS, Limit, LoadScale, TimeScale, ToS, TraceFile
from cli.tune.inputs import Inputs, gathered, trusted
from cli.tune.show import show
from cluster.files import write_whole
from cluster.spec import SpecError
from deployments.garbage import calm_garbage_collector
from deployments.scheduling.recorder import code_hash
from planning.report.facts import Basis
from planning.report.file import ReportFileError, write_report
from planning.tune.advice import MOST_CAPACITY, MOST_TTFT, Advice, advise
from planning.tune.player import Player
from planning.tune.search import Budget, Search, SearchError
from planning.tune.spec_edit import EditError
from planning.tune.suggestion import Suggestion, suggest
from planning.tune.trial import Trial

NOTHING_KEEPS = 1
"""The exit code where no settings kept every promise."""


def tune(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec.")],
    trace: TraceFile,
    costs: Costs = None,
    error: Annotated[Path | None, typer.Option(help="The published error (`raylane rehearse`); default: the spec's gateway.simulator_error.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model of the spec; default: the first.")] = None,
    minutes: Annotated[float, typer.Option(min=0.01, max=1_440, help="How long to search.")] = 10.0,
    trials: Annotated[int | None, typer.Option(min=1, max=10_000, help="At most so many settings; repeatable, where time is enough.")] = None,
    start_up_s: StartUp = None,
    history: Annotated[Path | None, typer.Option(help="A trace of the days before, for a seasonal forecast; it ends where --trace begins.")] = None,
    from_s: FromS = 0.0,
    to_s: ToS = None,
    limit: Limit = None,
    time_scale: TimeScale = 1.0,
    load_scale: LoadScale = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the search, of --load-scale and of a traffic file's draws.")] = 0,
    price_per_gpu_hour: Annotated[float | None, typer.Option(min=0, help="US dollars; default: the pool's price in the spec.")] = None,
    most_error: Annotated[float, typer.Option(min=0, max=10, help="How far the simulator's TTFT p90 may have been off.")] = MOST_TTFT,
    most_capacity_error: Annotated[float, typer.Option(min=0, max=10, help="How far its capacity may have been off.")] = MOST_CAPACITY,
    anyway: Annotated[bool, typer.Option("--anyway", help="Propose even where the simulator's error is unknown, or larger.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the spec with the proposal in it to this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report: one file, readable offline.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find settings of the scaling law that keep the promises for less, and propose a change of the spec."""
    trust = trusted(spec_file, model, error, (most_error, most_capacity_error), anyway)
    check_outputs(out=out, report=report)
    inputs = gathered(spec_file, model, costs, trace, Choice(from_s, to_s, limit, time_scale, load_scale, seed), start_up_s, history)
    calm_garbage_collector()
    began_s, case = time.perf_counter(), inputs.case
    player = Player(case, time.perf_counter)
    tried = _searched(inputs, player, Budget(60 * minutes, trials), seed)
    price, seconds = price_of(inputs.spec, inputs.model, price_per_gpu_hour), time.perf_counter() - began_s
    advice = advise(inputs.model.name, case.setup.law.name, case.setup.attainment, case.span_s, tried, price, trust, seconds)
    suggestion = _suggestion(inputs, advice)
    diff = None if suggestion is None else suggestion.diff
    if as_json:
        console.print_json(json.dumps(advice.as_json() | {"diff": diff}))
    else:
        show(advice, inputs, diff)
    problems = [] if out is None else _write_spec(out, inputs, suggestion)
    problems += [] if report is None else _save_report(report, inputs, player, advice, trace, diff)
    if problems:
        fail("; ".join(problems))
    if not advice.keeps:
        raise typer.Exit(NOTHING_KEEPS)


def _searched(inputs: Inputs, player: Player, budget: Budget, seed: int) -> list[Trial]:
    promises = {name: inputs.case.setup.attainment[name] for name in player.classes}
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("playing all of the traffic with the spec's own settings", total=1.0)

        def tell(text: str, share: float) -> None:
            progress.update(task, description=text, completed=share)

        try:
            return Search(player, inputs.space, promises, budget, time.perf_counter, tell, seed).run(inputs.own, inputs.defaults)
        except SearchError as problem:
            fail(str(problem), mend="a higher --minutes, or less traffic by --from and --to or --limit", code=2)


def _write_spec(out: Path, inputs: Inputs, suggestion: Suggestion | None) -> list[str]:
    """The spec with the proposal in it, else as it is: whoever applies the file next must not find an older one there. What is wrong, if anything."""
    try:
        write_whole(out, inputs.text if suggestion is None else suggestion.text)
    except OSError as problem:
        return [f"--out {out}: cannot be written: {problem.strerror}"]
    if suggestion is None:
        errors.print(f"{out}: the spec as it is, unchanged")
    return []


def _suggestion(inputs: Inputs, advice: Advice) -> Suggestion | None:
    """The change of the spec's file; None where there is none to make, or it can not be made safely, which is said."""
    candidate = advice.chosen.trial.candidate
    if candidate is None or not advice.worth_it:
        return None
    try:
        return suggest(inputs.text, inputs.spec_file, inputs.spec, inputs.model, candidate)
    except (EditError, SpecError) as problem:
        values = ", ".join(f"{name}: {value}" for name, value in candidate.settings.items())
        errors.print(f"[yellow]no diff:[/] {problem}. Proposed: {{{values}}}, replicas.min: {candidate.least}", markup=True)
        return None


def _save_report(path: Path, inputs: Inputs, player: Player, advice: Advice, trace: Path, diff: str | None) -> list[str]:
    """What is wrong, if anything."""
    from planning.report.tuning import Facts, render  # plotly takes a second to import, which only reports need

    cost, case = inputs.cost, inputs.case
    facts = Facts(
        spec=inputs.spec.name,
        trace=trace.name,
        requests=len(case.work),
        basis=Basis(inputs.costs.name, cost.basis, cost.hardware, cost.error, cost.note),
        diff=diff or "",
        version=f"{version('raylane')}, scheduler {code_hash()}",
        command=shlex.join(["raylane", *sys.argv[1:]]),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    try:
        write_report(path, render(advice, player.load, facts))
    except ReportFileError as problem:
        return [str(problem)]
    errors.print(f"report: {path}")
    return []
