from autoscaling.laws.backlog.silent import Silent
from tests.autoscaling.laws.moments import moment


def test_a_feed_that_breaks_for_a_moment_counts_on() -> None:
    silent = Silent()
    assert [silent.look(moment(at_s, ready=3, silent=1)) for at_s in (0.0, 9.0)] == [0, 0]
    assert silent.look(moment(9.5, ready=4)) == 0
    assert silent.look(moment(15.0, ready=3, silent=1)) == 0


def test_one_that_stays_silent_is_left_out_and_comes_back() -> None:
    silent = Silent()
    assert [silent.look(moment(at_s, ready=3, silent=1)) for at_s in (0.0, 10.0)] == [0, 1]
    assert silent.look(moment(11.0, ready=4)) == 0


def test_one_is_always_left() -> None:
    silent = Silent()
    assert [silent.look(moment(at_s, silent=3)) for at_s in (0.0, 10.0)] == [0, 2]
