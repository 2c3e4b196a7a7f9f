"""The report of a proposal: whole, of one file, with its figures, its diff and the simulator's error on it."""

import json
import re
import time
from pathlib import Path

import pytest

from planning.report.facts import Price
from planning.report.tuning import TuningFacts, render
from planning.report.tuning_text import cards, columns, headline, notes, rows
from planning.tune.advice import Advice, judge
from planning.tune.case import own_and_defaults, space_of
from planning.tune.choice import choose
from planning.tune.search import Budget, Search
from planning.tune.suggestion import suggest
from planning.tune.trial_runner import TrialRunner
from tests.planning.report.pages import loads_nothing, whole_figure
from tests.planning.tune import cases

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def tuned() -> tuple[TrialRunner, Advice, str]:
    """A short search, and its diff."""
    return searched(8)


def searched(maximum: int) -> tuple[TrialRunner, Advice, str]:
    """A search of so many trials at most, and the diff of what it proposes."""
    case, spec = cases.case(span_s=600.0), cases.spec()
    runner = TrialRunner(case, time.monotonic)
    own, defaults = own_and_defaults(spec, spec.models[0])
    trials = Search(
        runner, space_of(case, own, defaults), case.setup.attainment, Budget(1e6, maximum), time.monotonic
    ).run(own, defaults)
    advice = Advice(
        "demo",
        case.setup.policy.name,
        case.setup.attainment,
        case.span_s,
        trials,
        choose(trials, case.setup.attainment),
        Price("GPU", 2, 2.0),
        judge(None, "demo"),
        60.0,
    )
    chosen = advice.chosen.trial.candidate
    assert chosen is not None
    return runner, advice, suggest(cases.TEXT, Path("small.yaml"), spec, spec.models[0], chosen).diff


def facts(diff: str) -> TuningFacts:
    return TuningFacts(
        "a <b>spec</b>",
        "trace</script>.jsonl",
        1_000,
        "costs.json",
        cases.costs().model_copy(update={"basis": "roofline"}),
        diff,
    )


@pytest.fixture(scope="module")
def page(tuned: tuple[TrialRunner, Advice, str]) -> str:
    runner, advice, diff = tuned
    return render(advice, runner.load, facts(diff))


def test_nothing_is_loaded_from_outside_and_names_are_escaped(page: str) -> None:
    loads_nothing(page)
    assert "a &lt;b&gt;spec&lt;/b&gt;" in page


def test_the_figures_are_whole_and_every_colour_has_its_dark_one(page: str) -> None:
    figures = re.findall(
        r'class="figure" data-plot="(.*?)-plot" data-axis="(.*?)">(.*?)</script>', page, flags=re.DOTALL
    )
    assert [(name, axis) for name, axis, _ in figures] == [("front", "own"), ("day", "time")]
    for name, _, text in figures:
        whole_figure(name, text)
    drawn = {trace["name"] for trace in json.loads(figures[0][2])["data"]}
    assert {"the spec now", "not beaten by any"} <= drawn


def test_the_diff_the_doubts_and_the_error_are_on_it(page: str, tuned: tuple[TrialRunner, Advice, str]) -> None:
    _, _, diff = tuned
    assert '<span class="minus">-    utilisation: 0.7' in page
    assert diff.splitlines()[2] in page
    assert "Do not set this unseen" in page
    assert "unknown: never rehearsed" in page
    assert "NOT MEASURED" in page


def test_words_and_figures_agree(tuned: tuple[TrialRunner, Advice, str]) -> None:
    _, advice, _ = tuned
    assert f"{advice.hours_a_day(advice.before):,.0f} GPU-hours a day" in headline(advice)[0]
    named = {card.name: card.value for card in cards(advice)}
    assert named["GPU-hours a day"].startswith(f"{advice.hours_a_day(advice.before):,.1f} -> ")
    assert "US dollars a day" in named
    assert len(columns(advice)) == len(rows(advice)[0][1])
    assert len(columns(advice, settings=False)) == len(rows(advice, settings=False)[0][1])
    assert advice.chosen.trial in [trial for trial, _ in rows(advice)]
    assert not any("of the policy's decisions" in note for note in notes(advice))


def test_the_json_is_plain_and_holds_the_front(tuned: tuple[TrialRunner, Advice, str]) -> None:
    _, advice, _ = tuned
    reported = json.loads(json.dumps(advice.as_json()))
    assert reported["chosen"] in reported["trials"]
    assert set(reported["front"]) <= set(reported["trials"])
    assert reported["trials"]["spec"]["settings"]["utilisation"] == 0.7
    assert reported["usd_per_hour"] == 2.0
    hours = reported["trials"]["spec"]["hours_a_day"]
    assert reported["trials"]["spec"]["usd_a_day"] == pytest.approx(2 * hours)
