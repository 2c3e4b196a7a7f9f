from autoscaling.policies.backlog.start_up import StartUps
from tests.autoscaling.scaler.moments import moment


def test_a_start_is_learned_from_its_request_to_its_first_work() -> None:
    starts = StartUps(60.0)
    starts.look(moment(0.0, ready=1))
    starts.look(moment(10.0, ready=1, applied=2))
    assert starts.expected_s == 60.0
    assert starts.due_in_s(30.0) == (40.0,)
    starts.look(moment(35.0, ready=2))
    assert starts.expected_s == 25.0


def test_a_start_that_takes_longer_than_ever_counts_as_it_goes() -> None:
    starts = StartUps(20.0)
    starts.look(moment(0.0, ready=1))
    starts.look(moment(1.0, ready=1, applied=2))
    starts.look(moment(101.0, ready=1, applied=2))
    assert starts.expected_s == 100.0


def test_what_is_taken_back_before_it_started_teaches_nothing() -> None:
    starts = StartUps(20.0)
    starts.look(moment(0.0, ready=1))
    starts.look(moment(1.0, ready=1, applied=3))
    starts.look(moment(5.0, ready=1, applied=1))
    starts.look(moment(6.0, ready=1, applied=1))
    assert starts.due_in_s(6.0) == ()
    assert starts.expected_s == 20.0


def test_a_unresponsive_replica_that_speaks_again_is_no_start() -> None:
    starts = StartUps(20.0)
    starts.look(moment(0.0, ready=2))
    starts.look(moment(100.0, ready=1, applied=2, starting=0))
    starts.look(moment(200.0, ready=2, applied=2))
    assert starts.expected_s == 20.0
