"""The gauntlet's page: everything laid out in one HTML file that stands alone."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
from markupsafe import Markup

from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.results import Results, ScenarioResult
from planning.gauntlet.scenario import Scenario
from planning.gauntlet.verdict import REFERENCES, Judgement, Regret, RivalVerdict, judge, regret
from planning.report import gauntlet_tables as tables
from planning.report.gauntlet_figures import (
    KNOWN_RATE,
    ORACLE,
    Mark,
    frontier_figure,
    marks_of,
    regret_figure,
    sweep_figure,
)
from planning.report.layout import in_script, laid_out

_FOLDER = Path(__file__).parent

NOT_MODELLED = (
    "What the simulator does not model (docs/simulator.md): clients that retry or hang up, the network, slow first "
    "steps of a new replica.",
    "One model in one cell; replicas are all alike, and there is room for as many as the scenario allows.",
    "Shared prefixes of recorded traffic; lengths of agents' prompts are scaled down to a small engine.",
    "Other days: the held-out runs of a recording are thinnings of the same half (six of seven requests each), so an "
    "interval covers the thinning. "
    "Only ServeGen's are days of their own.",
    "The oracle is a search, not a proof: the true least may lie a little lower.",
)


@dataclass(frozen=True, slots=True)
class GauntletFacts:
    """What there is to say of how it was made."""

    command: str
    version: str
    made: str


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One scenario on the page."""

    contest: ScenarioResult
    scenario: Scenario
    story: str
    rows: list[tuple[str, ...]]
    figure: str


def render(results: Results, ours: str, facts: GauntletFacts) -> str:
    """The whole file."""
    policies = _policies(results)
    marks = marks_of(policies, ours)
    rivals = [policy for policy in policies if policy != ours and policy not in REFERENCES]
    judged = {contest.scenario: {one.rival: one for one in judge(contest, ours)} for contest in results.contests}
    days = [contest for contest in results.contests if SCENARIOS[contest.scenario].day]
    regrets = [found for policy in policies if (found := regret(days, policy)) is not None]
    steps, swept = _sweep(results)
    sections = [_section(contest, marks) for contest in results.contests]
    figures = [(f"frontier-{one.contest.scenario}", one.figure) for one in sections]
    if regrets:
        figures.append(("regrets", _json(regret_figure(regrets, ours))))
    if steps:
        target = next(contest.target for contest in results.contests if contest.scenario in steps)
        figures.append(("sweep", _json(sweep_figure(results, steps, swept, target, marks))))
    return laid_out(
        "gauntlet.html",
        facts=facts,
        about=results.about,
        left_out=results.left_out,
        ours=ours,
        headline=headline(ours, judged),
        good=not _lost(judged),
        rivals=rivals,
        verdicts=[
            (
                one.contest.scenario,
                one.scenario.title,
                [tables.verdict_cell(judged[one.contest.scenario].get(rival)) for rival in rivals],
            )
            for one in sections
        ],
        regret_columns=tables.REGRET_COLUMNS,
        regret_rows=tables.regret_rows(regrets),
        regret_line=_regret_line(regrets, ours),
        days=[SCENARIOS[contest.scenario].title for contest in days],
        steps=sorted(steps.values()),
        cliff_rows=tables.cliff_rows(results, steps, policies) if steps else [],
        policy_columns=tables.POLICY_COLUMNS,
        sections=sections,
        legend=[*marks.values(), KNOWN_RATE, ORACLE],
        not_modelled=NOT_MODELLED,
        own_style=Markup((_FOLDER / "gauntlet.css").read_text(encoding="utf-8")),
        figures=[(key, in_script(text)) for key, text in figures],
        heights={"regrets": 34 * len(regrets) + 90},
    )


def headline(ours: str, judged: Mapping[str, Mapping[str, Judgement]]) -> str:
    """The one line on top."""
    lost = _lost(judged)
    count = sum(len(rivals) for rivals in judged.values())
    if not count:
        return f"{ours}: nobody to compare with."
    below = sum(one.verdict is RivalVerdict.BELOW for rivals in judged.values() for one in rivals.values())
    only_broken = f", and in {below} more where the rival meets the SLO" if below else ""
    if not lost and not below:
        return f"{ours} is as good as every rival or better, in all {len(judged)} scenarios."
    where = f"; worse somewhere in: {', '.join(sorted({one.scenario for one in lost}))}" if lost else ""
    return (
        f"{ours} is as good as a rival or better in {count - len(lost) - below} of {count} "
        f"comparisons{only_broken}{where}."
    )


def story_of(scenario: Scenario) -> str:
    """What the scenario's file says of it, without its first line."""
    _, _, rest = (inspect.getdoc(sys.modules[scenario.module]) or "").partition("\n\n")
    return " ".join(rest.split())


def _lost(judged: Mapping[str, Mapping[str, Judgement]]) -> list[Judgement]:
    return [one for rivals in judged.values() for one in rivals.values() if one.verdict is RivalVerdict.LOSES]


def _policies(results: Results) -> list[str]:
    seen = {one.policy: None for contest in results.contests for one in contest.contenders}
    return list(seen)


def _section(contest: ScenarioResult, marks: dict[str, Mark]) -> ReportSection:
    scenario = SCENARIOS[contest.scenario]
    story = "" if scenario.tuned_on is not None and scenario.sweep is not None else story_of(scenario)
    return ReportSection(contest, scenario, story, tables.policy_rows(contest), _json(frontier_figure(contest, marks)))


def _sweep(results: Results) -> tuple[dict[str, float], str]:
    """The scenarios of the sweep, with the swept figure; and what that is."""
    found = {
        contest.scenario: sweep
        for contest in results.contests
        if (sweep := SCENARIOS[contest.scenario].sweep) is not None
    }
    return {name: value for name, (_, value) in found.items()}, next((what for what, _ in found.values()), "")


def _regret_line(regrets: list[Regret], ours: str) -> str:
    own = next((one for one in regrets if one.policy == ours), None)
    if own is None:
        return ""
    return (
        f"{ours} has {100 * own.attainment:.2f} % in time with {own.hours:.2f} replica-hours. The "
        f"oracle needs {own.oracle:.2f}, the known-rate baseline {own.unavoidable:.2f} more; {own.ours:+.2f} are the "
        f"policy's own regret ({100 * own.share:+.1f} % of the oracle's hours)."
    )


def _json(figure: go.Figure) -> str:
    return str(figure.to_json())
