"""How long replicas start, and which ones count."""

from dataclasses import replace

from autoscaling.policies.backlog.replicas import CapacityEstimate, StartUps, UnresponsiveReplicas
from tests.autoscaling.policies.moments import REPLICA_PROFILE
from tests.autoscaling.policies.moments import moment as policy_moment
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


def test_an_unresponsive_replica_that_speaks_again_is_no_start() -> None:
    starts = StartUps(20.0)
    starts.look(moment(0.0, ready=2))
    starts.look(moment(100.0, ready=1, applied=2, starting=0))
    starts.look(moment(200.0, ready=2, applied=2))
    assert starts.expected_s == 20.0


def test_a_feed_that_breaks_for_a_moment_counts_on() -> None:
    unresponsive = UnresponsiveReplicas()
    assert [unresponsive.look(policy_moment(at_s, ready=3, unresponsive=1)) for at_s in (0.0, 9.0)] == [0, 0]
    assert unresponsive.look(policy_moment(9.5, ready=4)) == 0
    assert unresponsive.look(policy_moment(15.0, ready=3, unresponsive=1)) == 0


def test_one_that_stays_unresponsive_is_left_out_and_comes_back() -> None:
    unresponsive = UnresponsiveReplicas()
    assert [unresponsive.look(policy_moment(at_s, ready=3, unresponsive=1)) for at_s in (0.0, 10.0)] == [0, 1]
    assert unresponsive.look(policy_moment(11.0, ready=4)) == 0


def test_one_is_always_left() -> None:
    unresponsive = UnresponsiveReplicas()
    assert [unresponsive.look(policy_moment(at_s, unresponsive=3)) for at_s in (0.0, 10.0)] == [0, 2]


def test_a_replica_that_runs_fewer_sequences_to_keep_itl_ms_has_less_capacity() -> None:
    found = []
    for maximum in (128, 32):
        estimate = CapacityEstimate(REPLICA_PROFILE)
        for at_s in (0.0, 100.0):
            counts = {"arrived": int(at_s), "ended": int(at_s), "prompt_tokens": 500 * int(at_s)}
            signals = policy_moment(at_s, ready=2, output_tokens=200 * int(at_s), **counts)
            replicas = tuple(replace(one, max_sequences=maximum) for one in signals.replicas)
            estimate.look(replace(signals, snapshot=replace(signals.snapshot, replicas=replicas)))
        found.append(estimate.per_s or 0.0)
    assert 0.0 < found[1] < 0.6 * found[0]
