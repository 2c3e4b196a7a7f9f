"""Missed SLOs: when one more replica may help, and when none does."""

from autoscaling.policies.backlog.burn import Burning
from autoscaling.policies.backlog.relief import AGAIN_S, JUDGED_S, Relief
from autoscaling.policies.policy import Concern

FAST = Burning("interactive", 50.0, 1.0)


def in_vain(relief: Relief) -> None:
    """A step from two to three replicas at second 0, and SLOs are missed as before."""
    relief.stepped(0.0, 2, FAST, 100.0)
    assert relief.concern(60.0 + JUDGED_S, 3, FAST, JUDGED_S, 100.0) is Concern.HELPED_NOTHING


def test_where_nothing_waits_no_replica_helps() -> None:
    assert Relief().concern(0.0, 2, Burning("interactive", 50.0, 0.05), 300.0, 100.0) is Concern.NOTHING_WAITS
    assert Relief().concern(0.0, 2, FAST, 300.0, 100.0) is None


def test_a_step_that_changed_nothing_is_not_repeated_for_an_hour() -> None:
    relief = Relief()
    in_vain(relief)
    assert relief.concern(AGAIN_S, 2, FAST, 300.0, 100.0) is Concern.HELPED_NOTHING
    assert relief.concern(200.0 + AGAIN_S, 2, FAST, 300.0, 100.0) is None


def test_more_work_is_another_matter() -> None:
    relief = Relief()
    in_vain(relief)
    assert relief.concern(1_000.0, 2, FAST, 300.0, 130.0) is None


def test_a_step_is_judged_once_its_replica_has_worked_for_a_while() -> None:
    relief = Relief()
    assert relief.open(0.0, 2, 0.0)
    relief.stepped(0.0, 2, FAST, 100.0)
    assert relief.open(10.0, 2, 0.0)
    assert not relief.open(70.0, 3, 10.0)
    assert relief.concern(70.0, 3, FAST, 10.0, 100.0) is None
    assert relief.open(60.0 + JUDGED_S, 3, JUDGED_S)


def test_a_step_that_helped_a_little_or_met_more_load_or_was_for_another_class_was_not_in_vain() -> None:
    for burning, work in (
        (Burning("interactive", 30.0, 1.0), 100.0),
        (FAST, 160.0),
        (Burning("batch", 50.0, 1.0), 100.0),
    ):
        relief = Relief()
        relief.stepped(0.0, 2, FAST, 100.0)
        assert relief.concern(60.0 + JUDGED_S, 3, burning, JUDGED_S, work) is None


def test_a_replica_that_never_came_is_judged_by_nobody() -> None:
    relief = Relief()
    relief.stepped(0.0, 2, FAST, 100.0)
    assert relief.concern(600.0, 2, FAST, 300.0, 100.0) is None
