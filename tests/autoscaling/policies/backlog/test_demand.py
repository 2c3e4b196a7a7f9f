"""How much work arrives, by counts that only grow, begin anew with their owner, or fall."""

import pytest

from autoscaling.policies.backlog.demand import Demand
from tests.autoscaling.scaler.moments import moment


@pytest.mark.parametrize(("epoch", "rate"), [(1, 1_000.0), (2, 1_500.0)])
def test_counts_that_fall_are_new_work_only_where_their_owner_is_new(epoch: int, rate: float) -> None:
    demand = Demand()
    for second in range(101):
        demand.look(moment(float(second), arrived_work=1_000.0 * second), 10.0)
    assert demand.rate == pytest.approx(1_000.0)
    for second in range(101, 111):
        demand.look(moment(float(second), arrived_work=50_000.0 + 1_000.0 * (second - 101), epoch=epoch), 10.0)
    assert demand.rate == pytest.approx(rate, rel=0.1)
