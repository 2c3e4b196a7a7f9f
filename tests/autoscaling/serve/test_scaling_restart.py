"""What a model's scaling goes on with after a restart, and what it takes back by itself."""

import time
from pathlib import Path

import pytest

from autoscaling import log
from tests.autoscaling.serve.scaling_harness import Run
from tests.autoscaling.setups import entries_of, replayed


def test_a_restart_goes_on_where_the_log_ends(run: Run, tmp_path: Path) -> None:
    first = run()
    first.turn()
    first.cell.burst(50)
    for _ in range(5):
        first.turn()
    first.scaling.close()
    learned = first.scaling._pair.scaler.policy
    again = run(ready=first.target)
    state = again.scaling._pair.scaler.policy
    assert vars(state._demand) == vars(learned._demand)  # type: ignore[attr-defined]
    again.turn()
    entries = entries_of(tmp_path)
    found = replayed(entries)
    assert (found.difference, found.gaps, len(list(tmp_path.glob("*.log")))) == (None, 0, 2)
    assert [one.at_s for one in entries] == sorted(one.at_s for one in entries)


def test_after_a_long_break_only_what_a_replica_carries_is_still_known(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(ready=6)
    first.turn()
    for _ in range(6):
        first.cell.burst(20)
        first.turn()
        first.cell.answer_late()
        first.turn()
    learned = first.scaling._pair.scaler.policy.capacity.expected_per_s  # type: ignore[attr-defined]
    assert learned is not None
    first.scaling.close()
    monkeypatch.setattr(log, "YOUNG_S", 0.0)
    again = run(ready=first.target)
    state = again.scaling._pair.scaler.policy
    assert state.capacity.expected_per_s == pytest.approx(learned, rel=0.05)  # type: ignore[attr-defined]
    assert state._demand.rate == 0.0  # type: ignore[attr-defined]
    assert again.turn().reason != "policy_failed"


def test_a_restart_is_no_promotion(run: Run) -> None:
    """The spec with which it was deployed names the policies the other way round than the one in force."""
    first = run(policy="backlog", shadow={"policy": "fixed"})
    first.turn()
    first.apply(policy="fixed", shadow={"policy": "backlog"})
    first.turn()
    probation = first.scaling._pair.probation
    assert probation is not None
    first.scaling.close()
    again = run(policy="backlog", shadow={"policy": "fixed"})
    again.cell.spec_json = first.cell.spec_json
    again.turn()
    kept = again.scaling._pair.probation
    assert kept is not None
    assert (again.scaling._pair.choice.name, kept.until_s) == ("fixed", probation.until_s)


@pytest.mark.whole
def test_a_promotion_that_burns_is_taken_back_in_the_spec(run: Run) -> None:
    given = {"count": 2, "shadow": {"policy": "backlog"}, "rollback": {"within_s": 60, "span_s": 1, "burn": 1}}
    harness = run(ready=2, policy="backlog", **{**given, "shadow": {"policy": "fixed"}})
    harness.turn()
    harness.apply(policy="fixed", **given)
    harness.turn()
    harness.cell.burst(200)
    deadline = time.monotonic() + 60
    while not harness.cell.rollbacks:
        assert time.monotonic() < deadline
        harness.cell.answer_late()
        harness.turn()
    assert "times as fast as the SLO allows" in harness.cell.rollbacks[0]
    assert "rolled_back" in harness.cell.states[-1].alarms
    harness.apply(policy="backlog", **{**given, "shadow": {"policy": "fixed"}})
    assert harness.turn().alarms == ()
