"""The log of a re-planner gives its inputs back exactly, and each re-plan can be made again."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from planning.capacity.problem import Quota
from planning.replan import Observed, ReplanBasis, ReplanSettings, ReplanState, replan
from planning.replan.log import ReplanLog, ReplanLogError, from_tree, replayed, to_tree
from planning.replan.result import Replan
from tests.planning.replan.cases import basis, key, observed

OF = basis({"a": 1.0, "b": 1.3}, survive=True, quotas=(Quota("a", "L4", 9),), peaks={("m", ""): 3.0})
SETTINGS = ReplanSettings(step=1)


def _written(path: Path, turns: int = 4) -> list[str]:
    log, state = ReplanLog(path), ReplanState()
    log.begin(OF, SETTINGS, state)
    there = {key("a"): 2, key("b"): 1}
    for turn in range(turns):
        lost = frozenset("b") if turn == 2 else frozenset[str]()
        usd = {key("b"): 0.5} if turn else {}
        seen = observed({"a": 1.0 + turn, "b": 2.0}, there, unix_s=300.0 * turn, usd=usd, room={key("a"): 3}, lost=lost)
        plan = replan(OF, SETTINGS, state, seen)
        log.add(seen, plan)
        state = plan.state
        there |= {one.site: one.floor for one in plan.bounds}
    return path.read_text().splitlines(keepends=True)


def test_every_replan_can_be_made_again(tmp_path: Path) -> None:
    lines = _written(tmp_path / "replan.jsonl")
    again = list(replayed(lines))
    assert [one.line for one in again] == [2, 3, 4, 5]
    assert all(one.agrees for one in again)
    assert [one.recorded for one in again] == [one.again for one in again]


def test_the_command_knows_such_a_log_by_its_beginning(tmp_path: Path) -> None:
    _written(tmp_path / "replan.jsonl", turns=2)
    result = CliRunner().invoke(app, ["replay", str(tmp_path / "replan.jsonl")])
    assert result.exit_code == 0, result.output
    assert "2 re-plans" in result.stdout


def test_a_log_goes_on_after_a_new_basis(tmp_path: Path) -> None:
    lines = _written(tmp_path / "replan.jsonl")
    state = list(replayed(lines))[-1].recorded.state
    log = ReplanLog(tmp_path / "replan.jsonl")
    log.begin(OF, ReplanSettings(margin=0.5), state)
    seen = observed({"a": 2.0}, {key("a"): 2, key("b"): 2}, unix_s=5_000.0)
    log.add(seen, replan(OF, ReplanSettings(margin=0.5), state, seen))
    assert all(one.agrees for one in replayed((tmp_path / "replan.jsonl").read_text().splitlines(keepends=True)))


def test_inputs_come_back_exactly(tmp_path: Path) -> None:
    content = json.loads(_written(tmp_path / "replan.jsonl")[0])
    given = from_tree(ReplanBasis, content["from"][0]), from_tree(ReplanSettings, content["from"][1])
    assert given == (OF, SETTINGS)
    for line in _written(tmp_path / "other.jsonl")[1:]:
        entry = json.loads(line)
        assert to_tree(from_tree(Observed, entry["observed"])) == entry["observed"]
        assert to_tree(from_tree(Replan, entry["plan"])) == entry["plan"]


def test_a_changed_decision_is_found(tmp_path: Path) -> None:
    lines = _written(tmp_path / "replan.jsonl")
    changed = json.loads(lines[2])
    changed["plan"][1][0][2] += 1  # the floor of the first site
    assert [one.agrees for one in replayed([*lines[:2], json.dumps(changed)])] == [True, False]


def test_a_log_of_another_version_is_refused_with_its_line() -> None:
    with pytest.raises(ReplanLogError, match=r"^line 1: .*: version = 2; allowed: 1$"):
        list(replayed(['{"log": "raylane-replan", "version": 2, "from": []}']))


@pytest.mark.parametrize("line", ["{", "{}", '{"observed": [], "plan": []}', '{"log": "raylane-replan", "from": [1]}'])
def test_what_is_no_replan_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ReplanLogError, match="line 1"):
        list(replayed([line]))
