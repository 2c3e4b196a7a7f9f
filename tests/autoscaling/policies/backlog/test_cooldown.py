"""The steps of a policy against a load, and what it may do then."""

import math
from itertools import pairwise

import pytest

from autoscaling.policies.backlog.cooldown import MAX, SETTLE_S, Cooldown
from autoscaling.policies.registry import make_policy
from tests.autoscaling.policies.fluid import Fluid

WITHIN_S = 600.0


def stepped(cooldown: Cooldown, now: float, before: int, after: int, load: float) -> None:
    """The policy wanted it, and the platform did it."""
    cooldown.look(now, before, load)
    cooldown.wants(after)
    cooldown.look(now + 1.0, after, load)


def test_after_a_step_up_there_is_none_down_before_its_time_unless_the_load_has_gone() -> None:
    cooldown = Cooldown(WITHIN_S)
    stepped(cooldown, 0.0, 2, 4, 3.0)
    assert cooldown.minimum(300.0, max_load=2.5) == 4
    assert cooldown.minimum(300.0, max_load=1.9) == 0
    assert cooldown.minimum(WITHIN_S + 2.0, max_load=2.5) == 0


def test_the_peak_since_is_what_it_must_have_fallen_from() -> None:
    cooldown = Cooldown(WITHIN_S)
    stepped(cooldown, 0.0, 2, 4, 2.0)
    cooldown.look(100.0, 4, 3.8)
    assert cooldown.minimum(300.0, max_load=2.7) == 0


def test_what_another_hand_put_on_top_may_go() -> None:
    cooldown = Cooldown(WITHIN_S)
    stepped(cooldown, 0.0, 2, 3, 2.5)
    cooldown.wants(3)
    cooldown.look(100.0, 8, 2.5)
    assert cooldown.minimum(200.0, max_load=2.5) == 3


def test_a_step_down_that_is_taken_back_makes_the_next_wait_longer() -> None:
    cooldown = Cooldown(WITHIN_S)
    stepped(cooldown, 0.0, 4, 3, 2.5)
    assert cooldown.patience(10.0) == 1.0
    stepped(cooldown, 100.0, 3, 4, 3.5)
    assert cooldown.patience(101.0) == pytest.approx(2.0)
    assert cooldown.patience(101.0 + 3_600.0) == pytest.approx(1.5)


def test_it_never_waits_longer_than_that() -> None:
    cooldown = Cooldown(WITHIN_S)
    for number in range(10):
        stepped(cooldown, 1_000.0 * number, 4, 3, 2.5)
        stepped(cooldown, 1_000.0 * number + 100.0, 3, 4, 3.5)
    assert cooldown.patience(9_101.0) == pytest.approx(MAX)


def test_more_load_than_before_is_no_regret() -> None:
    cooldown = Cooldown(WITHIN_S)
    stepped(cooldown, 0.0, 4, 3, 2.5)
    stepped(cooldown, 100.0, 3, 6, 5.0)
    assert cooldown.patience(101.0) == 1.0


def test_another_hands_steps_are_none_of_ours() -> None:
    cooldown = Cooldown(WITHIN_S)
    cooldown.look(0.0, 4, 2.5)
    cooldown.wants(4)
    cooldown.look(1.0, 2, 2.5)
    cooldown.wants(4)
    cooldown.look(2.0, 4, 2.5)
    assert cooldown.patience(3.0) == 1.0


def rested(cooldown: Cooldown, applied: int, load: float) -> Cooldown:
    """A step up to so many at second 0, and a load since; the policy wants what there is."""
    stepped(cooldown, 0.0, applied - 1, applied, load)
    cooldown.wants(applied)
    return cooldown


def test_a_step_of_few_among_many_rests_and_one_of_many_does_not() -> None:
    cooldown = rested(Cooldown(WITHIN_S), 10, 8.0)
    assert [number for number in range(5, 16) if cooldown.small(number)] == [8, 9, 11]
    assert cooldown.rests(WITHIN_S)
    assert not cooldown.rests(WITHIN_S + 2.0)
    assert not any(rested(Cooldown(WITHIN_S), 4, 3.0).small(number) for number in (3, 5))


def test_what_the_replicas_can_hardly_do_waits_for_nothing() -> None:
    assert not rested(Cooldown(WITHIN_S), 10, 9.4).presses
    assert rested(Cooldown(WITHIN_S), 10, 9.5).presses


def test_a_step_that_a_rate_limit_slows_down_is_under_way_and_no_small_one() -> None:
    cooldown = Cooldown(WITHIN_S)
    cooldown.look(0.0, 10, 8.0)
    cooldown.wants(5)
    cooldown.look(1.0, 6, 8.0)
    assert not cooldown.small(5)
    cooldown.wants(6)
    cooldown.look(2.0, 6, 8.0)
    assert not cooldown.small(4)
    assert cooldown.small(5)


def test_another_hands_change_lets_nothing_rest() -> None:
    cooldown = Cooldown(WITHIN_S)
    cooldown.look(0.0, 10, 8.0)
    cooldown.wants(10)
    cooldown.look(1.0, 12, 8.0)
    assert not cooldown.rests(2.0)


def test_steps_down_that_follow_each_other_are_waited_for_and_no_longer_than_that() -> None:
    cooldown = rested(Cooldown(WITHIN_S), 10, 4.0)
    assert cooldown.settled(900.0, fewer=5, soon=5)
    cooldown.wants(5)
    cooldown.look(901.0, 5, 2.0)
    assert not cooldown.settled(901.0, fewer=4, soon=3)
    cooldown.wants(5)
    assert not cooldown.settled(901.0 + SETTLE_S - 1.0, fewer=4, soon=3)
    cooldown.wants(5)
    assert cooldown.settled(901.0 + SETTLE_S, fewer=4, soon=3)


def test_what_no_longer_fits_in_between_begins_anew() -> None:
    cooldown = rested(Cooldown(WITHIN_S), 10, 4.0)
    assert not cooldown.settled(900.0, fewer=5, soon=4)
    cooldown.wants(10)
    cooldown.wants(10)
    assert not cooldown.settled(900.0 + SETTLE_S, fewer=5, soon=4)


def test_without_a_span_nothing_rests() -> None:
    cooldown = rested(Cooldown(0.0), 10, 8.0)
    assert not cooldown.small(9)
    assert cooldown.settled(1.0, fewer=9, soon=8)


def swinging(**settings: float) -> list[float]:
    """Three hours of a load of some seven of nine replicas that swings by more than one of them every quarter of an
    hour: when the number changed."""
    replica_profile = Fluid(lambda at_s: 12.0 * (9.0 + 1.5 * math.sin(2.0 * math.pi * at_s / 900.0)), 10)
    return [
        at_s
        for at_s, _ in replica_profile.run_through(
            make_policy("backlog", settings, replica_profile.replica_profile), 3 * 3_600.0
        )
    ]


@pytest.mark.whole
def test_a_load_that_swings_by_a_replica_of_nine_moves_nothing_within_ten_minutes() -> None:
    rested, restless = swinging(), swinging(reversal_spans=0.0)
    assert all(later - earlier >= WITHIN_S for earlier, later in pairwise(rested))
    assert len(rested) < len(restless) / 10
