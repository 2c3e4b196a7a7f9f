"""The steps of a policy against a load, and what it may do next."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from autoscaling.policies.backlog.pace import MAX_PATIENCE, SETTLE_S, Cooldown, TrafficDrop
from autoscaling.policies.registry import make_policy
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.policies.fluid import Fluid
from tests.autoscaling.scaler.moments import moment

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


def test_after_a_step_down_another_one_waits_for_half_a_minute_unless_it_is_the_same_one() -> None:
    cooldown = Cooldown(WITHIN_S)
    stepped(cooldown, 0.0, 12, 9, 5.0)
    assert cooldown.follows(SETTLE_S, 6)
    assert not cooldown.follows(SETTLE_S, 9)
    assert not cooldown.follows(SETTLE_S + 2.0, 6)


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
    assert cooldown.patience(9_101.0) == pytest.approx(MAX_PATIENCE)


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


WITHIN_S = 600.0


def outcome(traffic_drop: TrafficDrop, rates: list[tuple[float, float]], applied: int = 8) -> list[bool]:
    """Requests a second for so many seconds, evenly; whether there was a traffic drop at the end of each."""
    at_s, arrived, reported = getattr(traffic_drop, "outcome_until", (0.0, 0.0)), 0.0, []
    at_s, arrived = at_s
    for rate, seconds in rates:
        for _ in range(int(seconds)):
            at_s += 1.0
            arrived += rate
            flow = FlowStats("short", "interactive", int(arrived), 1_000 * arrived, 0, 0, 0, 2.0)
            traffic_drop.look(moment(at_s, ready=applied).showing(flows=(flow,)))
        reported.append(traffic_drop.lasts)
    vars(traffic_drop)["outcome_until"] = (at_s, arrived)
    return reported


def now(traffic_drop: TrafficDrop) -> float:
    return float(vars(traffic_drop)["outcome_until"][0])


def test_what_usually_comes_and_does_not_is_a_traffic_drop_until_it_comes_again() -> None:
    assert outcome(TrafficDrop(), [(5.0, 600), (0.0, 120), (5.0, 60)]) == [False, True, False]


def test_a_stray_request_ends_no_traffic_drop() -> None:
    assert outcome(TrafficDrop(), [(5.0, 600), (0.0, 120), (0.02, 600)]) == [False, True, True]


def test_a_smaller_load_is_none_and_neither_is_the_end_of_a_burst() -> None:
    assert outcome(TrafficDrop(), [(5.0, 1_800), (1.0, 600)]) == [False, False]
    assert outcome(TrafficDrop(), [(1.0, 1_800), (20.0, 120), (1.0, 600)]) == [False, False, False]


def test_too_few_to_tell_is_no_traffic_drop() -> None:
    assert outcome(TrafficDrop(), [(0.02, 3_600), (0.0, 600)]) == [False, False]


@pytest.mark.whole
def test_what_has_been_gone_for_hours_is_usual_no_more() -> None:
    assert outcome(TrafficDrop(), [(5.0, 3_600), (0.1, 600), (0.1, 4 * 3_600)]) == [False, True, False]


def test_counts_that_begin_anew_are_no_traffic_drop() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 600)])
    for second in range(60):
        flow = FlowStats("short", "interactive", 5 * second, 5_000.0 * second, 0, 0, 0, 2.0)
        traffic_drop.look(replace(moment(601.0 + second, ready=8), epoch=2).showing(flows=(flow,)))
        assert not traffic_drop.lasts


@pytest.mark.parametrize(("applied", "half"), [(8, 4), (7, 4), (2, 1), (1, 1)])
def test_at_most_half_goes_at_once_and_then_none_for_as_long_as_a_reversal_waits(applied: int, half: int) -> None:
    traffic_drop = TrafficDrop()
    assert traffic_drop.allowed(0.0, WITHIN_S, 1) == 1
    outcome(traffic_drop, [(5.0, 600), (0.0, 120)], applied)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == half
    outcome(traffic_drop, [(0.0, WITHIN_S - 1)], half)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == half
    outcome(traffic_drop, [(0.0, 2)], half)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == (half + 1) // 2


def test_a_step_waits_until_half_fits_but_not_for_ever() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 1_200), (0.0, 120)])
    assert [traffic_drop.allowed(now(traffic_drop), WITHIN_S, fewer) for fewer in (7, 5, 4)] == [8, 8, 4]
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 1_200), (0.0, 120 + 2 * WITHIN_S)])
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 7) == 7


def test_a_step_that_a_rate_limit_makes_slow_may_go_on_to_its_half() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 600), (0.0, 120)], 8)
    for applied in (8, 7, 6, 5, 4):
        assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 4
        outcome(traffic_drop, [(0.0, 60)], applied - 1 if applied > 4 else 4)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 4


def test_what_was_added_meanwhile_rests_too() -> None:
    traffic_drop = TrafficDrop()
    outcome(traffic_drop, [(5.0, 600), (0.0, 120)], 8)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 4
    outcome(traffic_drop, [(0.0, 60)], 4)
    outcome(traffic_drop, [(0.0, 60)], 6)
    assert traffic_drop.allowed(now(traffic_drop), WITHIN_S, 1) == 6
