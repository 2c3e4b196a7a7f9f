"""The gauntlet's page: it loads nothing, names every policy and scenario, and is made of anything that results may
hold."""

import json
import re
from dataclasses import replace

from autoscaling.policies.registry import POLICIES
from planning.gauntlet.results import Results
from planning.gauntlet.verdict import judge
from planning.report.gauntlet import GauntletFacts, headline, render
from planning.report.gauntlet_figures import marks_of
from tests.planning.gauntlet.small import contest_like, point_like, results_like

FACTS = GauntletFacts("raylane gauntlet <b>", "0.0", "2026-11-21 12:00 UTC")


def some_results() -> Results:
    frontiers = {
        policy: [
            point_like([0.93 + 0.003 * n, 0.95, 0.94], [1 + 0.1 * n] * 3, knob=0.5),
            point_like([0.99] * 3, [2 + 0.1 * n] * 3),
        ]
        for n, policy in enumerate(POLICIES)
    }
    names = ("ramp", "flapping", "azure_chat", "start_up_0", "start_up_60", "start_up_300")
    return results_like(*(contest_like(frontiers, name) for name in names))


def test_the_page_loads_nothing_and_names_all() -> None:
    page = render(some_results(), "backlog", FACTS)
    assert "raylane gauntlet &lt;b&gt;" in page
    for policy in POLICIES:
        assert policy in page
    figures = re.findall(
        r'<script type="application/json" class="figure" data-plot="([^"]+)" data-axis="own">(.*?)</script>',
        page,
        flags=re.S,
    )
    assert [key for key, _ in figures] == [
        *(
            f"frontier-{name}-plot"
            for name in ("ramp", "flapping", "azure_chat", "start_up_0", "start_up_60", "start_up_300")
        ),
        "regrets-plot",
        "sweep-plot",
    ]
    for key, figure in figures:
        assert json.loads(figure)["data"]
        assert f'id="{key}"' in page
    own = page[: page.index("<script>")]
    assert not re.search(r'(src|href)="(?!#)', own)


def test_one_scenario_without_days_or_sweeps_makes_a_page() -> None:
    page = render(results_like(contest_like({"backlog": [point_like([1.0], [1.0])]}, "idle")), "backlog", FACTS)
    assert "nobody to compare with" in page
    assert "start-up cliff" not in page


def test_it_says_by_which_code_it_was_run() -> None:
    results = replace(
        some_results(),
        about={**some_results().about, "version": "9.8", "world": "w0", "limits": "l0", "policies": {"backlog": "b0"}},
    )
    page = render(results, "backlog", FACTS)
    assert "Run by raylane 9.8; hashes of the code: every run w0, limits l0, backlog b0." in page


def test_the_headline_says_where_it_is_worse() -> None:
    good, bad = point_like([0.99] * 3, [1.0] * 3), point_like([0.96] * 3, [2.0] * 3)
    won = {"ramp": {one.rival: one for one in judge(contest_like({"backlog": [good], "hpa": [bad]}), "backlog")}}
    lost = {"ramp": {one.rival: one for one in judge(contest_like({"backlog": [bad], "hpa": [good]}), "backlog")}}
    assert "every rival" in headline("backlog", won)
    assert headline("backlog", lost).endswith("worse somewhere in: ramp.")
    broken = {
        "ramp": {
            one.rival: one
            for one in judge(contest_like({"backlog": [good], "hpa": [point_like([0.9] * 3, [0.5] * 3)]}), "backlog")
        }
    }
    assert headline("backlog", broken).endswith("in 0 of 1 comparisons, and in 1 more where the rival meets the SLO.")


def test_every_policy_has_a_mark_of_its_own() -> None:
    marks = marks_of(list(POLICIES), "backlog")
    assert len({(mark.tone, mark.symbol) for mark in marks.values()}) == len(POLICIES)
    assert [mark.name for mark in marks.values() if mark.ours] == ["backlog"]
