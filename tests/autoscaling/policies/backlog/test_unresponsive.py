from autoscaling.policies.backlog.unresponsive import UnresponsiveReplicas
from tests.autoscaling.policies.moments import moment


def test_a_feed_that_breaks_for_a_moment_counts_on() -> None:
    unresponsive = UnresponsiveReplicas()
    assert [unresponsive.look(moment(at_s, ready=3, unresponsive=1)) for at_s in (0.0, 9.0)] == [0, 0]
    assert unresponsive.look(moment(9.5, ready=4)) == 0
    assert unresponsive.look(moment(15.0, ready=3, unresponsive=1)) == 0


def test_one_that_stays_unresponsive_is_left_out_and_comes_back() -> None:
    unresponsive = UnresponsiveReplicas()
    assert [unresponsive.look(moment(at_s, ready=3, unresponsive=1)) for at_s in (0.0, 10.0)] == [0, 1]
    assert unresponsive.look(moment(11.0, ready=4)) == 0


def test_one_is_always_left() -> None:
    unresponsive = UnresponsiveReplicas()
    assert [unresponsive.look(moment(at_s, unresponsive=3)) for at_s in (0.0, 10.0)] == [0, 2]
