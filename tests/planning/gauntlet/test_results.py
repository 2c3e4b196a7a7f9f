"""Results that were written are read again as they were; whatever is not as a gauntlet writes it is named."""

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from planning.gauntlet.results import Results, ResultsFileError, merged, read_results
from planning.scoring import Score
from tests.planning.gauntlet.small import contest_like, point_like, results_like, score_like

POINTS = [point_like([0.96, 0.97], [1.5, 1.6], target_wait=0.3), point_like([0.99, 0.98], [2.5, 2.4])]
RESULTS = results_like(contest_like({"backlog": POINTS, "hpa": POINTS[:1]}, "idle"))
CODE = {"version": "0.1.0", "world": "w", "limits": "l", "policies": {"backlog": "b", "hpa": "h"}}
WRITTEN = {one.name: getattr(score_like(0.9, 1.0), one.name) for one in fields(Score)}

Tree = dict[str, Any]


def policy(reported: Tree) -> Tree:
    found: Tree = reported["contests"][0]["contenders"][0]
    return found


def scores(reported: Tree) -> list[Tree]:
    found: list[Tree] = policy(reported)["points"][0]["scores"]
    return found


def test_results_survive_their_file(tmp_path: Path) -> None:
    other = replace(
        RESULTS, about={**RESULTS.about, **CODE, "trials": 6}, contests=(replace(RESULTS.contests[0], scenario="ramp"),)
    )
    for results in (RESULTS, merged([replace(RESULTS, about={**RESULTS.about, **CODE}), other])):
        (tmp_path / "some.json").write_text(json.dumps(results.as_json()))
        assert read_results(tmp_path / "some.json") == results


SPOILT: list[tuple[str, Callable[[Tree], object]]] = [
    ("contenders.0: .*backlog.pick = 99; allowed: 0 to 1", lambda reported: policy(reported).update(pick=99)),
    ("contenders.0.pick = -1", lambda reported: policy(reported).update(pick=-1)),
    ("contenders.0.pick = '0'", lambda reported: policy(reported).update(pick="0")),
    ("contenders.0.points", lambda reported: policy(reported).update(points=[])),
    ("contenders.0.points.0.scores", lambda reported: scores(reported).clear()),
    (r"backlog.points.0.scores: 1 scores; allowed: 2", lambda reported: scores(reported).pop()),
    ("known_rate: 1 scores; allowed: 2", lambda reported: reported["contests"][0]["known_rate"].pop()),
    ("contests.0.oracle", lambda reported: reported["contests"][0].update(oracle=[])),
    ("scores.0.attainment = nan", lambda reported: scores(reported)[0].update(attainment=math.nan)),
    ("scores.0.attainment = 'x'", lambda reported: scores(reported)[0].update(attainment="x")),
    ("scores.1.attainment = None", lambda reported: scores(reported)[1].update(attainment=None)),
    ("scores.0.by_lane = None", lambda reported: scores(reported)[0].update(by_lane=None)),
    ("scores.0.more = 1", lambda reported: scores(reported)[0].update(more=1)),
    ("scores.0.flaps", lambda reported: scores(reported)[0].pop("flaps")),
    ("contests.0.target = 7", lambda reported: reported["contests"][0].update(target=7)),
    ("contests.0.target = '0.9'", lambda reported: reported["contests"][0].update(target="0.9")),
    ("oracle.0.replica_hours = -5", lambda reported: reported["contests"][0]["oracle"][0].update(replica_hours=-5)),
    ("contests.0.scenario = ", lambda reported: reported["contests"][0].update(scenario=["idle"])),
    ("contests.0.contenders", lambda reported: reported["contests"][0].update(contenders=[])),
    ("contests = {}", lambda reported: reported.update(contests={})),
    ("points.0.settings = ", lambda reported: policy(reported)["points"][0].update(settings=[1])),
    ("about = None", lambda reported: reported.update(about=None)),
    ("about = ", lambda reported: reported.update(about=[])),
    ("about.trials", lambda reported: reported.update(about={})),
    ("world, limits, policies: missing", lambda reported: reported["about"].update(version="0.1.0")),
    ("left_out = None", lambda reported: reported.update(left_out=None)),
    ("left_out.ramp = 5", lambda reported: reported.update(left_out={"ramp": 5})),
    ("left_out = ", lambda reported: reported.update(left_out=["a"])),
    ("schema = 99", lambda reported: reported.update(schema=99)),
]


@pytest.mark.parametrize(("said", "spoil"), SPOILT, ids=[said for said, _ in SPOILT])
def test_what_is_wrong_is_named(said: str, spoil: Callable[[Tree], object], tmp_path: Path) -> None:
    reported = json.loads(json.dumps(RESULTS.as_json()))
    spoil(reported)
    path = tmp_path / "some.json"
    path.write_text(json.dumps(reported))
    with pytest.raises(ResultsFileError, match=rf"some\.json: .*{said}"):
        read_results(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe\x00", b"[" * 100_000, b'{"schema": 1'])
def test_a_file_of_something_else_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ResultsFileError, match=r"some\.json: "):
        read_results(path)


MADE_BY = {"world": "w", "limits": "l", "policies": {"backlog": "b"}, "version": "1"}


def part(scenario: str, **about: object) -> Results:
    one = results_like(contest_like({"backlog": [point_like([1.0], [1.0])]}, scenario))
    return replace(one, about={**one.about, **MADE_BY, **about}, left_out={"azure_chat": "no traces"})


def test_all_scenarios_and_how_each_was_run() -> None:
    found = merged([part("idle"), part("azure_chat", trials=6, held_out=2), part("ramp")])
    assert [one.scenario for one in found.contests] == ["idle", "azure_chat", "ramp"]
    assert (found.about["trials"], found.about["held_out"], found.about["sims"]) == ("4 or 6", "3 or 2", 8)
    assert found.about["policies"] == {"backlog": "b"}
    assert not found.left_out


def test_one_is_itself() -> None:
    assert merged([part("idle")]) == part("idle")


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ValueError, match="in two of them: idle"):
        merged([part("idle"), part("idle")])
    for name, other in (("world", "w2"), ("limits", "l2"), ("policies", {"backlog": "b2"})):
        with pytest.raises(ValueError, match=f"{name}: .* only results of the same code"):
            merged([part("idle"), part("ramp", **{name: other})])
