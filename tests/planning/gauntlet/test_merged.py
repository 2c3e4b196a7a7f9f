"""Results of several runs as one: only where they belong together."""

from dataclasses import replace

import pytest

from planning.gauntlet.merged import merged
from planning.gauntlet.results import Results
from tests.planning.gauntlet.small import contest_like, point_like, results_like

CODE = {"world": "w", "limits": "l", "laws": {"backlog": "b"}, "version": "1"}


def results(scenario: str, **about: object) -> Results:
    one = results_like(contest_like({"backlog": [point_like([1.0], [1.0])]}, scenario))
    return replace(one, about={**one.about, **CODE, **about}, left_out={"azure_chat": "no traces"})


def test_all_scenarios_and_how_each_was_run() -> None:
    found = merged([results("idle"), results("azure_chat", trials=6, held_out=2), results("ramp")])
    assert [one.scenario for one in found.contests] == ["idle", "azure_chat", "ramp"]
    assert (found.about["trials"], found.about["held_out"], found.about["sims"]) == ("4 or 6", "3 or 2", 8)
    assert found.about["laws"] == {"backlog": "b"}
    assert not found.left_out


def test_one_is_itself() -> None:
    assert merged([results("idle")]) == results("idle")


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ValueError, match="in two of them: idle"):
        merged([results("idle"), results("idle")])
    for name, other in (("world", "w2"), ("limits", "l2"), ("laws", {"backlog": "b2"})):
        with pytest.raises(ValueError, match=f"{name}: .* only results of the same code"):
            merged([results("idle"), results("ramp", **{name: other})])
