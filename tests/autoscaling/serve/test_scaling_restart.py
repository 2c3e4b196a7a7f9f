"""What a model's scaling goes on with after a restart, and what it takes back by itself."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autoscaling.log.reader import lines_of, log_files, replay
from tests.autoscaling.serve.played import Played


def test_a_restart_goes_on_where_the_log_ends(play: Callable[..., Played], tmp_path: Path) -> None:
    first = play()
    first.turn()
    first.cell.burst(50)
    for _ in range(5):
        first.turn()
    first.scaling.close()
    learned = first.scaling._pair.scaler.law
    again = play(ready=first.target)
    state = again.scaling._pair.scaler.law
    assert vars(state._demand) == vars(learned._demand)  # type: ignore[attr-defined]
    again.turn()
    files = log_files(tmp_path, "m")
    assert len(files) == 2
    assert replay(lines_of(files)).difference is None
    seconds = [json.loads(line)[0] for line in lines_of(files) if line.startswith("[")]
    assert seconds == sorted(seconds)


def test_a_restart_is_no_promotion(play: Callable[..., Played]) -> None:
    """The spec with which it was deployed names the laws the other way round than the one in force."""
    first = play(policy="backlog", shadow={"policy": "fixed"})
    first.turn()
    first.apply(policy="fixed", shadow={"policy": "backlog"})
    first.turn()
    probation = first.scaling._pair.probation
    assert probation is not None
    first.scaling.close()
    again = play(policy="backlog", shadow={"policy": "fixed"})
    again.cell.spec_json = first.cell.spec_json
    again.turn()
    kept = again.scaling._pair.probation
    assert kept is not None
    assert (again.scaling._pair.choice.name, kept.until_s) == ("fixed", probation.until_s)


@pytest.mark.whole
def test_a_promotion_that_burns_is_taken_back_in_the_spec(play: Callable[..., Played]) -> None:
    given = {"count": 2, "shadow": {"policy": "backlog"}, "rollback": {"within_s": 60, "span_s": 1, "burn": 1}}
    played = play(ready=2, policy="backlog", **{**given, "shadow": {"policy": "fixed"}})
    played.turn()
    played.apply(policy="fixed", **given)
    played.turn()
    played.cell.burst(200)
    deadline = time.monotonic() + 60
    while not played.cell.rollbacks:
        assert time.monotonic() < deadline
        played.cell.answer_late()
        played.turn()
    assert "times as fast as the SLO allows" in played.cell.rollbacks[0]
    assert "rolled_back" in played.cell.states[-1].alarms
    played.apply(policy="backlog", **{**given, "shadow": {"policy": "fixed"}})
    assert played.turn().alarms == ()
