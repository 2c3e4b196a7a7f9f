"""Which alarms a decision raises."""

import pytest

from autoscaling.laws.law import Concern, Motive
from autoscaling.scaler.decision import Decision, Limit
from autoscaling.serve.scaling import alarms_of


@pytest.mark.parametrize("concern", list(Concern))
def test_what_no_number_mends_is_an_alarm_beside_any_other(concern: Concern) -> None:
    decision = Decision(0.0, 2, 2, 2, 2, Motive.STEADY, None, {}, concern=concern)
    assert alarms_of(decision) == ("out_of_reach",)
    assert alarms_of(Decision(0.0, 2, 2, 2, 3, Motive.DEMAND, Limit.UNSCHEDULABLE, {}, concern=concern)) == ("unschedulable", "out_of_reach")
    assert alarms_of(Decision(0.0, 2, 2, 2, 2, Motive.STEADY, None, {})) == ()
