"""A schedule in the live turns: it bounds the number, a reason names the entry, the log replays, `explain` shows it."""

from pathlib import Path

import pytest

from autoscaling.explain.explanation import explain
from autoscaling.explain.moments import moments
from autoscaling.scaler.decision import ScalingDecision
from deployments.decisions import Input
from deployments.wire import decoder
from tests.autoscaling.serve.scaling_harness import Run
from tests.autoscaling.setups import entries_of, replayed

ALWAYS = {"time_zone": "Asia/Kolkata", "entries": [{"name": "all-day", "min": 3}]}
LOW = {"time_zone": "UTC", "entries": [{"name": "low", "max": 2}]}


@pytest.mark.whole
def test_a_schedule_decides_live_and_in_the_log(run: Run, tmp_path: Path) -> None:
    harness = run(ready=1, schedule=ALWAYS)
    state = harness.turn()
    assert (state.requested, state.reason, state.scheduled, harness.target) == (3, "scheduled_min", "all-day", 3)
    harness.apply(schedule=LOW)
    state = harness.turn()
    assert (state.requested, state.reason) == (2, "scheduled_max")
    log = entries_of(tmp_path)
    recorded = [decoder(ScalingDecision)(one.decision) for one in log if isinstance(one, Input)]
    assert [one.scheduled for one in recorded] == ["all-day", "low"]
    assert replayed(log).difference is None
    explained = [explain(moment) for moment in moments(log)]
    assert "replicas.schedule keeps at least 3 (all-day)" in explained[0].words
    assert explained[0].unbound in (0, 1)
