"""What a replica carries, how long replicas start, and which ones count."""

from dataclasses import replace

import pytest

from autoscaling.policies.backlog.replicas import CapacityEstimate, StartUps, full_share
from autoscaling.policies.policy import ReplicaProfile
from deployments.engine_model.cost_model import slowed
from tests.autoscaling.policies.moments import COST, LIMITS
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


def test_what_starts_in_place_of_a_lost_replica_is_due_too_and_teaches_nothing() -> None:
    starts = StartUps(60.0)
    for at_s, ready in ((0.0, 2), (10.0, 1), (20.0, 1)):
        starts.look(moment(at_s, ready=ready, applied=2))
    assert starts.due_in_s(20.0) == (50.0,)
    starts.look(moment(30.0, ready=2))
    assert (starts.due_in_s(30.0), starts.expected_s) == ((), 60.0)


FULL_PER_S = 4_000.0


def watched(slower: float | None, sequences: int, seconds: int, per_s: float = FULL_PER_S) -> CapacityEstimate:
    """Four replicas of which so many of 32 sequences are booked, which do as much work as that takes. `slower`: by how
    much the given costs are wrong, as to a replica that does what they say."""
    cost = None if slower is None else slowed(COST, slower)
    estimate = CapacityEstimate(ReplicaProfile(LIMITS, 4.0, cost, 60.0))
    work = 0.0
    for second in range(seconds):
        now = moment(
            float(second),
            4,
            arrived_work=work,
            finished=int(work / 1_000.0),
            finished_work=work,
            counted=int(work / 1_000.0),
            output_tokens=int(work / 8.0),
        )
        running = tuple(replace(one, sequences=sequences) for one in now.replicas)
        estimate.look(now.showing(replicas=running))
        work += 4 * per_s * full_share(sequences / 32)
    return estimate


@pytest.mark.whole
@pytest.mark.parametrize("sequences", [4, 16, 30])
def test_what_a_replica_carries_is_learned_while_none_is_full(sequences: int) -> None:
    estimate = watched(None, sequences, 1_800)
    assert estimate.expected_per_s == pytest.approx(FULL_PER_S, rel=0.05)
    assert estimate.per_s is not None
    assert 0.8 * FULL_PER_S < estimate.per_s < FULL_PER_S, "on the safe side"


@pytest.mark.whole
@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0])
def test_costs_that_are_wrong_are_corrected_within_the_hour_in_either_direction(slower: float) -> None:
    right = watched(1.0, 16, 2).expected_per_s
    assert right is not None
    first = watched(slower, 16, 2, right).expected_per_s
    assert first == pytest.approx(right / slower, rel=0.15), "what the file says, before anything was seen"
    assert watched(slower, 16, 3_600, right).expected_per_s == pytest.approx(right, rel=0.05)


def test_what_was_learned_is_doubted_more_after_a_break_and_not_believed_of_other_replicas() -> None:
    old = watched(None, 16, 1_800)
    profile = ReplicaProfile(LIMITS, 4.0)
    larger, reweighted = replace(profile, limits=replace(LIMITS, sequences=64)), replace(profile, decode_weight=1.0)
    new, *others = (CapacityEstimate(one) for one in (profile, larger, reweighted))
    for estimate in (new, *others):
        estimate.resume(old, 86_400.0)
    assert new.expected_per_s == pytest.approx(old.expected_per_s)
    assert new.doubt == pytest.approx(2**0.5 * old.doubt)
    assert [other.expected_per_s for other in others] == [None, None]


def test_a_replica_that_runs_fewer_sequences_to_keep_itl_ms_has_less_capacity() -> None:
    found = []
    for maximum in (128, 32):
        estimate = CapacityEstimate(ReplicaProfile(LIMITS, 4.0, COST, 60.0))
        for at_s in (0.0, 100.0):
            counts = {"arrived": int(at_s), "ended": int(at_s), "prompt_tokens": 500 * int(at_s)}
            signals = policy_moment(at_s, ready=2, output_tokens=200 * int(at_s), **counts)
            replicas = tuple(replace(one, max_sequences=maximum) for one in signals.replicas)
            estimate.look(replace(signals, snapshot=replace(signals.snapshot, replicas=replicas)))
        found.append(estimate.per_s or 0.0)
    assert 0.0 < found[1] < 0.6 * found[0]
