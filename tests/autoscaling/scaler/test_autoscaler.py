import math
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.policies.policy import DesiredReplicas, PolicyReason
from autoscaling.scaler.autoscaler import Autoscaler, PacedScaler
from autoscaling.scaler.decision import Bounds, Limit
from autoscaling.signals.signals import Signals, unseen
from deployments.cell.control import Control, ControlKind
from deployments.scheduling.replica import ReplicaStatus
from tests.autoscaling.scaler.moments import moment, replicas


class Says:
    """A policy that wants what it is told to."""

    name: ClassVar[str] = "says"
    period_s = 1.0

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def decide(self, signals: Signals) -> DesiredReplicas:
        number = self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]
        if number == 666:
            raise RuntimeError("no idea")
        return DesiredReplicas(number, PolicyReason.DEMAND, {"asked": float(number)})


def scaler(*numbers: int, **bounds: object) -> Autoscaler:
    return Autoscaler(Says(*numbers), replace(Bounds(1, 10), **bounds))  # type: ignore[arg-type]


def test_what_the_policy_wants_is_asked_for_with_its_policy_reason_and_terms() -> None:
    decision = scaler(5).decide(moment())
    assert (decision.applied, decision.requested, decision.desired, decision.reason) == (2, 5, 5, "demand")
    assert decision.terms == {"asked": 5.0}
    assert decision.changes


@pytest.mark.parametrize(
    ("desired", "bounds", "requested", "limit"),
    [
        (0, {}, 1, Limit.MIN_REPLICAS),
        (50, {}, 10, Limit.MAX_REPLICAS),
        (50, {"ceiling": 4}, 4, Limit.COST_CEILING),
        (50, {"ceiling": 0}, 1, Limit.COST_CEILING),
        (50, {"ceiling": 99}, 10, Limit.MAX_REPLICAS),
        (9, {"up_per_min": 3.0}, 5, Limit.UP_RATE),
    ],
)
def test_bounds_say_that_they_decided(desired: int, bounds: dict[str, object], requested: int, limit: Limit) -> None:
    decision = scaler(desired, **bounds).decide(moment())
    assert (decision.requested, decision.limit) == (requested, limit)


def test_a_rate_counts_what_was_done_in_the_last_minute() -> None:
    limited = scaler(1, down_per_min=2.0)
    applied = 8
    taken = []
    for second in range(121):
        decision = limited.decide(moment(float(second), ready=applied))
        taken.append(applied - decision.requested)
        applied = decision.requested
    assert [second for second, step in enumerate(taken) if step] == [0, 60, 120]
    assert sum(taken) == 6


def test_stale_books_leave_the_number_alone() -> None:
    decision = scaler(9).decide(moment(age_s=60.0))
    assert (decision.requested, decision.limit, decision.desired) == (2, Limit.STALE, None)
    assert scaler(9).decide(unseen(5.0, 1e9, 3)).requested == 3


def test_a_policy_that_fails_leaves_the_number_alone_and_is_counted() -> None:
    failing = scaler(666, 4)
    decision = failing.decide(moment())
    assert (decision.requested, decision.limit) == (2, Limit.POLICY_FAILED)
    assert decision.error == "RuntimeError: no idea"
    assert failing.decide(moment(1.0)).requested == 4


def test_nothing_is_taken_away_while_a_replica_is_unresponsive_but_not_for_ever() -> None:
    patient = scaler(1, unresponsive_s=60.0)
    unresponsive = replicas(2) + replicas(1, ReplicaStatus.UNRESPONSIVE)
    assert patient.decide(moment(0.0, applied=3, replicas=unresponsive)).limit is Limit.UNRESPONSIVE
    assert patient.decide(moment(30.0, applied=3, replicas=unresponsive)).requested == 3
    assert patient.decide(moment(61.0, applied=3, replicas=unresponsive)).requested == 1
    assert scaler(5).decide(moment(applied=3, replicas=unresponsive)).requested == 5, "more may be asked for"


def test_nothing_is_taken_away_while_a_forecast_failed_and_more_may_be_asked_for() -> None:
    failed = scaler(1).decide(moment(ready=3, forecast_failed=True))
    assert (failed.requested, failed.limit, failed.desired) == (3, Limit.FORECAST_FAILED, 1)
    assert scaler(5).decide(moment(ready=3, forecast_failed=True)).reason == "demand"
    assert scaler(3).decide(moment(ready=3, forecast_failed=True)).limit is None
    again = scaler(1)
    again.decide(moment(0.0, ready=3, forecast_failed=True))
    assert again.decide(moment(1.0, ready=3)).requested == 1


def test_an_operators_pin_goes_over_everything_and_ends() -> None:
    pin = Control(ControlKind.PIN, 7, until_unix_s=1e9 + 10)
    pinned = scaler(1, up_per_min=1.0)
    decision = pinned.decide(moment(), (pin,))
    assert (decision.requested, decision.limit) == (7, Limit.PINNED)
    assert pinned.decide(moment(11.0, ready=7), (pin,)).limit is not Limit.PINNED


@pytest.mark.parametrize(
    ("kind", "number", "wanted", "seen", "requested"),
    [
        (ControlKind.HOLD, 4, 1, moment(), 4),
        (ControlKind.HOLD, 4, 6, moment(), 6),
        (ControlKind.PIN, 1, 3, moment(ready=3, forecast_failed=True), 1),
        (ControlKind.PIN, 7, 1, unseen(0.0, 1e9, 3), 7),
    ],
    ids=[
        "a hold is a floor",
        "and no ceiling",
        "a failed forecast stops no operator",
        "books that nobody sees neither",
    ],
)
def test_an_operators_word_counts(kind: ControlKind, number: int, wanted: int, seen: Signals, requested: int) -> None:
    control = Control(kind, number, until_unix_s=2e9)
    assert scaler(wanted).decide(seen, (control,)).requested == requested


def test_what_cannot_be_scheduled_is_not_asked_for() -> None:
    decision = scaler(9).decide(moment(schedulable=4))
    assert (decision.requested, decision.limit) == (4, Limit.UNSCHEDULABLE)


def test_what_does_not_start_is_given_up_for_a_while() -> None:
    limited = scaler(6, unschedulable_s=900.0, retry_s=300.0)
    requested = [
        limited.decide(moment(10.0 * tick, ready=2, applied=2 if tick == 0 else 6)).requested for tick in range(91)
    ]
    assert requested[:91] == [6] * 91
    given_up = limited.decide(moment(910.0, ready=2, applied=6))
    assert (given_up.requested, given_up.limit) == (2, Limit.UNSCHEDULABLE)
    assert limited.decide(moment(920.0, ready=2)).requested == 2
    assert limited.decide(moment(1_300.0, ready=2)).requested == 6


def test_a_first_download_longer_than_the_limit_is_no_lack_of_capacity() -> None:
    """An hour of fetching on a node that was found: requested all the time. What has no node is still given up."""
    limited = scaler(6, unschedulable_s=900.0, retry_s=300.0)
    for tick in range(361):
        decision = limited.decide(
            moment(10.0 * tick, ready=2, applied=2 if tick == 0 else 6, begun=0 if tick < 3 else 4)
        )
        assert (decision.requested, decision.limit) == (6, None)
    assert limited.decide(moment(3_620.0, ready=6, applied=6)).requested == 6

    short = scaler(6, unschedulable_s=900.0, retry_s=300.0)
    for tick in range(91):
        assert short.decide(moment(10.0 * tick, ready=2, applied=2 if tick == 0 else 6, begun=1)).requested == 6
    given_up = short.decide(moment(910.0, ready=2, applied=6, begun=1))
    assert (given_up.requested, given_up.limit) == (3, Limit.UNSCHEDULABLE)


def test_a_start_that_breaks_off_is_waited_for_again_but_not_for_ever() -> None:
    limited = scaler(3, unschedulable_s=900.0, retry_s=300.0)
    at_s = 0.0
    for tick in range(40):  # fetching
        at_s = 10.0 * tick
        limited.decide(moment(at_s, ready=2, applied=2 if tick == 0 else 3, begun=1))
    ends = [limited.decide(moment(at_s + 10.0 * tick, ready=2, applied=3)) for tick in range(1, 92)]
    assert [decision.requested for decision in ends[:90]] == [3] * 90
    assert (ends[90].requested, ends[90].limit) == (2, Limit.UNSCHEDULABLE)


def test_another_hand_on_the_number_is_counted_and_taken_as_it_is() -> None:
    two = scaler(5)
    two.decide(moment())
    decision = two.decide(moment(1.0, ready=3))
    assert (two.foreign_writes, decision.applied, decision.requested) == (1, 3, 5)


@pytest.mark.whole
@given(
    desired=st.lists(st.integers(0, 40), min_size=1, max_size=40),
    minimum=st.integers(0, 4),
    span=st.integers(0, 20),
    up=st.one_of(st.just(math.inf), st.floats(0.5, 10)),
    down=st.one_of(st.just(math.inf), st.floats(0.5, 10)),
    unresponsive=st.booleans(),
)
def test_without_an_operator_the_number_stays_within_its_bounds(
    desired: list[int], minimum: int, span: int, up: float, down: float, unresponsive: bool
) -> None:
    bounds = Bounds(minimum, minimum + span, up_per_min=up, down_per_min=down)
    limited = Autoscaler(Says(*desired), bounds)
    applied = min(max(minimum, 2), minimum + span)
    for tick in range(len(desired)):
        extra = replicas(1, ReplicaStatus.UNRESPONSIVE) if unresponsive else ()
        decision = limited.decide(moment(5.0 * tick, ready=applied, replicas=replicas(applied) + extra))
        assert bounds.minimum <= decision.requested <= bounds.maximum
        applied = decision.requested


def test_a_cordoned_replica_is_replaced_and_comes_on_top() -> None:
    """Nothing runs there, and it is applied all the same: the policy is asked about the others."""

    class AsMany(Says):
        def decide(self, signals: Signals) -> DesiredReplicas:
            assert signals.applied == 2
            return DesiredReplicas(signals.applied, PolicyReason.STEADY)

    cordoned = (*replicas(2), *replicas(1, ReplicaStatus.CORDONED))
    steady = Autoscaler(AsMany(0), Bounds(1, 10)).decide(moment(applied=3, replicas=cordoned, starting=0))
    assert (steady.requested, steady.desired, steady.reason, steady.changes) == (3, 3, "steady", False)
    assert scaler(3).decide(moment(applied=3, replicas=cordoned, starting=0)).requested == 4


@pytest.mark.parametrize(
    ("wanted", "bounds", "requested"),
    [(2, Bounds(0, 2), 3), (0, Bounds(2, 8), 3), (2, Bounds(0, 2, ceiling=2), 2), (0, Bounds(2, 8, ceiling=2), 2)],
)
def test_a_cordoned_replica_is_on_top_of_the_bounds_but_not_of_the_ceiling(
    wanted: int, bounds: Bounds, requested: int
) -> None:
    cordoned = (*replicas(1), *replicas(1, ReplicaStatus.CORDONED))
    signals = moment(applied=2, replicas=cordoned, starting=0)
    assert Autoscaler(Says(wanted), bounds).decide(signals).requested == requested


def test_what_nobody_sees_has_not_gone() -> None:
    """Books that cannot be read for a while neither make a replica unschedulable nor an unresponsive one speak."""
    blinded = scaler(4, unschedulable_s=100.0)
    for second in range(0, 300, 50):
        blinded.decide(unseen(float(second), 1e9 + second, 2))
    assert blinded.decide(moment(300.0)).requested == 4


@pytest.mark.parametrize(
    "answer",
    [
        None,
        3,
        DesiredReplicas(math.nan, PolicyReason.DEMAND),  # type: ignore[arg-type]
        DesiredReplicas(-3, PolicyReason.DEMAND),
        DesiredReplicas(2.5, PolicyReason.DEMAND),  # type: ignore[arg-type]
        DesiredReplicas("3", PolicyReason.DEMAND),  # type: ignore[arg-type]
        DesiredReplicas(3, "whatever"),  # type: ignore[arg-type]
        DesiredReplicas(3, PolicyReason.DEMAND, None),  # type: ignore[arg-type]
        DesiredReplicas(3, PolicyReason.DEMAND, {"a": math.nan}),
        DesiredReplicas(3, PolicyReason.DEMAND, {"a": object()}),  # type: ignore[dict-item]
    ],
)
def test_nonsense_is_a_policy_that_failed(answer: DesiredReplicas) -> None:
    policy = Says(1)
    policy.decide = lambda signals: answer  # type: ignore[method-assign]
    decision = Autoscaler(policy, Bounds(1, 10)).decide(moment(ready=2))
    assert (decision.requested, decision.limit) == (2, Limit.POLICY_FAILED)
    assert decision.error


def paced(period_s: float) -> tuple[PacedScaler, Says]:
    policy = Says(*range(3, 10))
    policy.period_s = period_s
    return PacedScaler(Autoscaler(policy, Bounds(0, 20))), policy


def test_a_slow_policy_is_asked_in_its_own_time_and_its_number_stands_between() -> None:
    scaler, _ = paced(15.0)
    numbers = [2]
    for second in range(31):
        numbers.append(scaler.decide(moment(float(second), ready=numbers[-1])).requested)
    assert numbers == [2, *[3] * 15, *[4] * 15, 5]


def test_what_is_repeated_is_of_this_moment() -> None:
    scaler, _ = paced(15.0)
    scaler.decide(moment(0.0, ready=2))
    again = scaler.decide(moment(1.0, ready=2, applied=3))
    assert (again.at_s, again.applied, again.ready, again.requested) == (1.0, 3, 2, 3)


def test_readings_that_come_a_little_early_do_not_skip_a_turn() -> None:
    scaler, policy = paced(1.0)
    applied = 2
    for second in range(6):
        applied = scaler.decide(moment(second * 0.98, ready=applied)).requested
    assert len(policy.numbers) == 1


def test_an_operators_word_is_followed_at_once() -> None:
    scaler, _ = paced(600.0)
    scaler.decide(moment(0.0, ready=3))
    pin = (Control(ControlKind.PIN, 7, 1e12),)
    assert scaler.decide(moment(1.0, ready=3), pin).requested == 7
    assert scaler.decide(moment(2.0, ready=7), pin).requested == 7
    assert scaler.decide(moment(3.0, ready=7)).reason == "demand"


def test_old_books_and_another_hand_do_not_wait_for_the_policies_turn() -> None:
    scaler, _ = paced(600.0)
    assert scaler.decide(moment(0.0, ready=3)).requested == 3
    stale = scaler.decide(moment(1.0, ready=3, age_s=60.0))
    assert (stale.reason, stale.requested) == ("stale", 3)
    assert scaler.decide(moment(2.0, ready=3)).reason == "demand"
    assert scaler.decide(moment(3.0, ready=9)).requested == 4
