"""`raylane tune`: looks for settings of the scaling policy that meet the SLOs for less, on recorded traffic, and
proposes a change of the spec."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import TimeRemainingColumn

from cli.console import AsJson, Table, console, errors, fail, plain_table, print_json, progress_bar
from cli.option_groups import with_groups
from cli.options import (
    Costs,
    ModelName,
    PricePerGpuHour,
    Report,
    SpecFile,
    StartOptions,
    TraceFile,
    TrafficOptions,
    WithRange,
    check_outputs,
    show_changes,
    show_unmodelled,
    write_page,
)
from cli.simulation_output import costs_line
from cli.simulation_report import price_of
from cli.tune_inputs import Inputs, gathered, trusted
from cluster.files import write_whole
from cluster.spec import SpecError
from deployments.engine_model.cost_model import slowed
from deployments.garbage import calm_garbage_collector
from planning.report.tuning_text import cards, check_line, columns, gain_lines, headline, mark, notes, rows
from planning.tune.advice import Advice, Check, trial_range
from planning.tune.choice import choose
from planning.tune.gains import gains
from planning.tune.search import Budget, Search
from planning.tune.spec_edit import EditError
from planning.tune.suggestion import Suggestion, suggest
from planning.tune.trial import Candidate, TrialResult, TuningTrial
from planning.tune.trial_runner import TrialRunner
from planning.uncertainty import cost_range
from planning.unmodelled import unmodelled

NOTHING_KEEPS = 1
"""The exit code where no settings met every SLO."""
MISSED = 4
"""The exit code where the settings missed an SLO on `--check`."""


@with_groups
def tune(
    spec_file: SpecFile,
    trace: TraceFile,
    traffic: TrafficOptions,
    starts: StartOptions,
    costs: Costs = None,
    error: Annotated[
        Path | None,
        typer.Option(
            help="The simulator's measured error (`raylane rehearse`). Default: the spec's gateway.simulator_error."
        ),
    ] = None,
    model: ModelName = None,
    group: Annotated[
        str | None, typer.Option(help="The group to tune; required if the model has several. Others stay.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, max=1_440, help="How long to search.")] = 10.0,
    trials: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Try at most this many settings. Reproducible if --minutes suffices."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="A trace of the days before --trace, for a seasonal forecast.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Another trace, on which the outcome is run once: the exit code is 4 if it misses an SLO there."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed of the search, of --load-scale and of a traffic file. Default: 0, and the file's own."
        ),
    ] = None,
    price_per_gpu_hour: PricePerGpuHour = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Propose even if the simulator's error is unknown or larger.")
    ] = False,
    with_range: WithRange = True,
    out: Annotated[Path | None, typer.Option(help="Write the changed spec to this file.")] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Search scaling settings that meet the SLOs with fewer replica-hours; propose a change of the spec."""
    trust = trusted(spec_file, model, error, anyway)
    check_outputs(out=out, report=report)
    inputs = gathered(spec_file, model, costs, trace, traffic, starts, history, group, seed, check)
    calm_garbage_collector()
    began_s, case = time.perf_counter(), inputs.case
    runner = TrialRunner(case, time.perf_counter)
    tried = _searched(inputs, runner, Budget(60 * minutes, trials), seed or 0)
    price, seconds = price_of(inputs.spec, inputs.model, price_per_gpu_hour), time.perf_counter() - began_s
    slos = case.setup.attainment
    chosen = choose(tried, slos)
    name = inputs.model.group_key
    advice = Advice(name, case.setup.policy.name, slos, case.span_s, tried, chosen, price, trust, seconds)
    advice = _checked(inputs, _weighed(inputs, runner, advice), check)
    suggestion = _suggestion(inputs, advice)
    diff = None if suggestion is None else suggestion.diff
    advice = _ranged(inputs, advice) if with_range else advice
    if as_json:
        print_json(advice.as_json() | inputs.as_json() | {"diff": diff})
    else:
        show(advice, inputs, diff)
    problems = [] if out is None else _write_spec(out, inputs, suggestion)
    problems += [] if report is None else _save_report(report, inputs, runner, advice, trace, diff)
    if problems:
        fail("; ".join(problems))
    if not advice.keeps:
        raise typer.Exit(NOTHING_KEEPS)
    if advice.check is not None and advice.check.missed(advice.slos):
        raise typer.Exit(MISSED)


def _searched(inputs: Inputs, runner: TrialRunner, budget: Budget, seed: int) -> list[TuningTrial]:
    slos = {name: inputs.case.setup.attainment[name] for name in runner.classes}
    own = "simulating all traffic with the spec's own settings"
    with progress_bar(own, 1.0, TimeRemainingColumn()) as tell:
        search = Search(runner, inputs.space, slos, budget, time.perf_counter, tell, seed)
        return search.run(inputs.own, inputs.defaults)


def _weighed(inputs: Inputs, runner: TrialRunner, advice: Advice) -> Advice:
    """The advice without the changes that gain nothing, and with what the others gain."""
    if not advice.worth_it:
        return advice

    def run(candidate: Candidate) -> TrialResult:
        return runner.exact(candidate, math.inf, to_the_end=True)

    with console.status("what each change gains"):
        found = gains(advice.chosen, inputs.own or inputs.defaults, advice.trials, advice.slos, run)
    return replace(advice, trials=[*advice.trials, *found.runs], chosen=found.chosen, gains=found.found)


def _checked(inputs: Inputs, advice: Advice, trace: Path | None) -> Advice:
    """The advice with what comes of it on the other trace: of the proposal, or of the spec's own settings where they
    stay."""
    case = inputs.check
    if trace is None or case is None:
        return advice
    runner, outcome = TrialRunner(case, time.perf_counter), advice.chosen.trial if advice.worth_it else advice.before
    with console.status(f"the outcome on {trace}"):
        before = runner.exact(inputs.own, math.inf, to_the_end=True)
        same = outcome.candidate == inputs.own
        after = before if same else runner.exact(outcome.candidate, math.inf, to_the_end=True)
    return replace(advice, check=Check(trace.name, case.span_s, before, after))


def _ranged(inputs: Inputs, advice: Advice) -> Advice:
    """The advice with the range of its figures: the spec's own settings and those chosen, with all of the traffic and
    the costs at both ends of their range."""
    pool = inputs.spec.pool_of(inputs.model, inputs.spec.regions_of(inputs.model)[0])
    costs = cost_range(inputs.cost, inputs.model, pool)
    trials = {trial.name: trial for trial in (advice.before, advice.chosen.trial)}
    runs: dict[str, list[TrialResult]] = {name: [] for name in trials}
    planned = [(name, end) for name in trials for end in (costs.low, costs.high)]
    with progress_bar("the range of the figures", len(planned)) as tell:
        for number, (name, end) in enumerate(planned):
            tell(f"the range of the figures: {name}, costs times {end:g}", number)
            runner = TrialRunner(replace(inputs.case, cost=slowed(inputs.case.cost, end)), time.perf_counter)
            runs[name].append(runner.exact(trials[name].candidate, math.inf, to_the_end=True))
    ranges = {name: trial_range(trial, runs[name]) for name, trial in trials.items()}
    return replace(advice, costs=costs, ranges=ranges)


def _write_spec(out: Path, inputs: Inputs, suggestion: Suggestion | None) -> list[str]:
    """The spec with the proposal in it, else as it is: whoever applies the file next must not find an older one there.
    What is wrong, if anything."""
    try:
        write_whole(out, inputs.text if suggestion is None else suggestion.text)
    except OSError as problem:
        return [f"--out {out}: cannot be written: {problem.strerror}"]
    if suggestion is None:
        errors.print(f"{out}: the spec, unchanged")
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
        errors.print(
            f"[yellow]no diff:[/] {problem}. Proposed: {{{values}}}, replicas.min: {candidate.minimum}", markup=True
        )
        return None


def _save_report(
    path: Path, inputs: Inputs, runner: TrialRunner, advice: Advice, trace: Path, diff: str | None
) -> list[str]:
    """What is wrong, if anything."""
    from planning.report.tuning import TuningFacts, render  # plotly takes a second to import, which only reports need

    cost, case = inputs.cost, inputs.case
    facts = TuningFacts(
        spec=inputs.spec.name,
        trace=trace.name,
        requests=len(case.work),
        costs=inputs.costs.name,
        cost=cost,
        diff=diff or "",
        changes=case.work.changes,
        unmodelled=unmodelled(inputs.model, cost, inputs.spec),
    )
    return write_page(path, render(advice, runner.load, facts))


def show(advice: Advice, inputs: Inputs, diff: str | None) -> None:
    """Everything; `diff` is None where the spec could not be edited."""
    show_unmodelled(unmodelled(inputs.model, inputs.cost, inputs.spec))
    show_changes(inputs.case.work.changes)
    show_changes(inputs.history_changes, "--history")
    line, story = headline(advice)
    hours = advice.span_s / 3600
    console.print(
        f"model {advice.model}, policy {advice.policy}: {len(inputs.case.work):,} requests in {hours:.1f} h; "
        f"{advice.looked_at} settings looked at, {len(advice.finished)} run through in {advice.seconds / 60:.1f} "
        "minutes"
    )
    console.print(_table(advice))
    console.print(f"[bold {'green' if advice.keeps else 'red'}]{escape(line)}[/]")
    console.print(escape(story))
    for card in cards(advice):
        console.print(f"  {card.name}: [bold]{card.value}[/]{f'  ({card.note})' if card.note else ''}")
    if advice.costs is not None:
        console.print(f"  the ranges: {advice.costs}; all of the traffic with the costs at both ends")
    for line in gain_lines(advice):
        console.print(f"[bold]change:[/] {escape(line)}")
    if advice.check is not None:
        console.print(f"[bold {'red' if advice.check.missed(advice.slos) else 'green'}]{escape(check_line(advice))}[/]")
    for part in inputs.held_fixed:
        console.print(f"[yellow]held fixed:[/] {escape(part)}")
    for note in notes(advice):
        console.print(f"[yellow]note:[/] {escape(note)}")
    console.print(f"the simulator's error here: {escape(advice.trust.error)}; {costs_line(inputs.cost)}")
    for doubt in advice.trust.doubts:
        console.print(f"[bold yellow]read before use:[/] {escape(doubt)}")
    if diff:
        console.print()
        for line in diff.splitlines():
            console.print(escape(line), style={"+": "green", "-": "red"}.get(line[0]))


def _table(advice: Advice) -> Table:
    title = "settings that no others beat, the cheapest first (what they are: --report, --json)"
    table = plain_table(*columns(advice, settings=False), left=1, title=title)
    for trial, row in rows(advice, settings=False):
        chosen = trial is advice.chosen.trial
        table.add_row(f"{row[0]}{f' <- {mark(advice)}' if chosen else ''}", *row[1:], style="bold" if chosen else None)
    return table
