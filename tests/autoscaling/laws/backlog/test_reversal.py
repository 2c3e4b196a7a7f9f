"""The steps of a law against a load, and what it may do then."""

import pytest

from autoscaling.laws.backlog.reversal import MOST, Reversal

WITHIN_S = 600.0


def stepped(reversal: Reversal, now: float, before: int, after: int, load: float) -> None:
    """The law wanted it, and the platform did it."""
    reversal.look(now, before, load)
    reversal.wants(after)
    reversal.look(now + 1.0, after, load)


def test_after_a_step_up_there_is_none_down_before_its_time_unless_the_load_has_gone() -> None:
    reversal = Reversal(WITHIN_S)
    stepped(reversal, 0.0, 2, 4, 3.0)
    assert reversal.least(300.0, most_load=2.5) == 4
    assert reversal.least(300.0, most_load=1.9) == 0
    assert reversal.least(WITHIN_S + 2.0, most_load=2.5) == 0


def test_the_peak_since_is_what_it_must_have_fallen_from() -> None:
    reversal = Reversal(WITHIN_S)
    stepped(reversal, 0.0, 2, 4, 2.0)
    reversal.look(100.0, 4, 3.8)
    assert reversal.least(300.0, most_load=2.7) == 0


def test_what_another_hand_put_on_top_may_go() -> None:
    reversal = Reversal(WITHIN_S)
    stepped(reversal, 0.0, 2, 3, 2.5)
    reversal.wants(3)
    reversal.look(100.0, 8, 2.5)
    assert reversal.least(200.0, most_load=2.5) == 3


def test_a_step_down_that_is_taken_back_makes_the_next_wait_longer() -> None:
    reversal = Reversal(WITHIN_S)
    stepped(reversal, 0.0, 4, 3, 2.5)
    assert reversal.patience(10.0) == 1.0
    stepped(reversal, 100.0, 3, 4, 3.5)
    assert reversal.patience(101.0) == pytest.approx(2.0)
    assert reversal.patience(101.0 + 3_600.0) == pytest.approx(1.5)


def test_it_never_waits_longer_than_that() -> None:
    reversal = Reversal(WITHIN_S)
    for number in range(10):
        stepped(reversal, 1_000.0 * number, 4, 3, 2.5)
        stepped(reversal, 1_000.0 * number + 100.0, 3, 4, 3.5)
    assert reversal.patience(9_101.0) == pytest.approx(MOST)


def test_more_load_than_before_is_no_regret() -> None:
    reversal = Reversal(WITHIN_S)
    stepped(reversal, 0.0, 4, 3, 2.5)
    stepped(reversal, 100.0, 3, 6, 5.0)
    assert reversal.patience(101.0) == 1.0


def test_another_hands_steps_are_none_of_ours() -> None:
    reversal = Reversal(WITHIN_S)
    reversal.look(0.0, 4, 2.5)
    reversal.wants(4)
    reversal.look(1.0, 2, 2.5)
    reversal.wants(4)
    reversal.look(2.0, 4, 2.5)
    assert reversal.patience(3.0) == 1.0
