"""The gauntlet's results in the terminal: where ours stands in each scenario, the recorded days together, the start-up
cliff."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from autoscaling.policies.registry import POLICIES
from cli.console import console
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.results import Point, Results, ScenarioResult
from planning.gauntlet.verdict import RivalVerdict, judge, regret
from planning.report.gauntlet_tables import REGRET_COLUMNS, cliff_rows, regret_rows
from planning.report.words import attained, percent


def show(results: Results, ours: str) -> None:
    """All of it."""
    policies = list(dict.fromkeys(one.policy for contest in results.contests for one in contest.contenders))
    _show_scenarios(results, ours)
    _show_lost(results, ours)
    _show_days(results, policies)
    _show_cliff(results, policies)
    _show_changes(results)


def show_choices() -> None:
    """What may be named."""
    for title, rows in (
        ("policies", [(name, one.about, "") for name, one in POLICIES.items()]),
        ("scenarios", [(name, f"{one.title} ({one.complaint})", _needs(name)) for name, one in SCENARIOS.items()]),
    ):
        table = _table(title, ("name", "what it is", ""))
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)


def _needs(name: str) -> str:
    one = SCENARIOS[name]
    return ", ".join(what for what, holds in (("traces", one.needs_traces), ("long", one.long)) if holds)


def _show_scenarios(results: Results, ours: str) -> None:
    table = _table(
        f"{ours} in each scenario", ("scenario", "SLO", "in time", "hours", "knows rate", "oracle", "flaps", "rivals")
    )
    for contest in results.contests:
        own = contest.of(ours)
        if own is None:
            continue
        known, oracle = Point({}, contest.known_rate), float(contest.oracle_hours.mean())
        figures = (
            f"{own.picked.mean_hours:.3f}",
            f"{known.mean_hours:.3f}",
            f"{oracle:.3f}",
            f"{own.picked.mean_of('flaps'):.1f}",
        )
        table.add_row(
            contest.scenario,
            percent(contest.target),
            attained(own.picked.attainment),
            *figures,
            _verdict(contest, ours),
        )
    console.print(table)
    console.print(
        "rivals: how many it is better than (>), as good as (=), as good as where they meet the SLO (~), and worse "
        "than (<)",
        style="dim",
    )
    if any(len(contest.oracle) == 1 for contest in results.contests):
        console.print(
            'with one run there is no interval, so every verdict is "as good" (use --seeds 2 or more)', style="dim"
        )


def _verdict(contest: ScenarioResult, ours: str) -> str:
    """How many rivals it is better than, as good as, as good as where they meet the SLO, worse than."""
    judged = judge(contest, ours)
    worse, below = (
        sum(one.verdict is verdict for one in judged) for verdict in (RivalVerdict.LOSES, RivalVerdict.BELOW)
    )
    better = sum(one.verdict in (RivalVerdict.DOMINATES, RivalVerdict.ALONE) for one in judged)
    counts = f"{better}>{len(judged) - better - below - worse}={below}~{worse}<"
    return f"[red]{counts}[/]" if worse else f"[green]{counts}[/]"


def _show_lost(results: Results, ours: str) -> None:
    lost = [
        one
        for contest in results.contests
        for one in judge(contest, ours)
        if one.verdict in (RivalVerdict.LOSES, RivalVerdict.BELOW)
    ]
    if not lost:
        return
    columns = ("scenario", "rival", "there", "points in time", "replica-hours")
    table = _table(f"where {ours} has no answer: its nearest point, less the rival's", columns)
    for one in sorted(lost, key=lambda one: one.verdict is RivalVerdict.BELOW):
        assert one.attainment is not None
        assert one.hours is not None
        points = f"{100 * one.attainment.mean:+.2f} ± {100 * one.attainment.half:.2f}"
        kept = "misses the SLO" if one.verdict is RivalVerdict.BELOW else "keeps it"
        table.add_row(one.scenario, one.rival, kept, points, f"{one.hours.mean:+.3f} ± {one.hours.half:.3f}")
    console.print(table)


def _show_days(results: Results, policies: Sequence[str]) -> None:
    days = [contest for contest in results.contests if SCENARIOS[contest.scenario].day]
    if not days:
        return
    table = _table(f"the recorded days together: {', '.join(contest.scenario for contest in days)}", REGRET_COLUMNS)
    for row in regret_rows([found for policy in policies if (found := regret(days, policy)) is not None]):
        table.add_row(*row)
    console.print(table)


def _show_cliff(results: Results, policies: Sequence[str]) -> None:
    steps = {
        contest.scenario: sweep[1]
        for contest in results.contests
        if (sweep := SCENARIOS[contest.scenario].sweep) is not None
    }
    if not steps:
        return
    table = _table(
        "% in time, by the seconds that a start takes",
        ("policy", *(f"{value:g}" for value in sorted(steps.values())), "falls at"),
    )
    for row in cliff_rows(results, steps, policies):
        table.add_row(*row)
    console.print(table)


def _show_changes(results: Results) -> None:
    for contest in results.contests:
        if contest.changes:
            console.print(f"changes to the recording, {contest.scenario}, first run:")
        for change in contest.changes:
            console.print(f"  {escape(change)}", highlight=False)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        left = column in ("scenario", "policy", "rival", "name", "what it is", "")
        table.add_column(
            column, justify="left" if left else "right", no_wrap=column in ("scenario", "policy", "rival", "name")
        )
    return table
