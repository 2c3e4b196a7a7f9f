"""What is news of a decision, and what only counts."""

from dataclasses import replace

import pytest

from deployments.cell.scaling_state import ScalingBoard, ScalingState

STATE = ScalingState("m", 3, 2, 2, 0, "backlog", 1_000.0, 40.0)


@pytest.mark.parametrize(
    ("change", "news"),
    [
        ({}, False),
        ({"at_unix_s": 1_010.0, "start_up_eta_s": 30.0}, False),
        ({"at_unix_s": 1_010.0, "start_up_eta_s": 30.3}, False),
        ({"at_unix_s": 1_010.0}, True),
        ({"start_up_eta_s": None}, True),
        ({"ready": 3}, True),
        ({"starting": 1}, True),
        ({"reason": "steady"}, True),
        ({"alarms": ("stale",)}, True),
        ({"shadow": {"requested": 4}}, True),
    ],
)
def test_what_is_news(change: dict[str, object], news: bool) -> None:
    board = ScalingBoard()
    assert board.take(STATE)
    assert board.take(replace(STATE, **change)) is news  # type: ignore[arg-type]


def test_a_start_that_moves_slowly_is_told_in_the_end() -> None:
    """Each decision expects it a little later than the one before: what was told last is what counts."""
    board = ScalingBoard()
    board.take(STATE)
    told = [board.take(replace(STATE, at_unix_s=1_000.0 + second, start_up_eta_s=40.0 - 0.9 * second)) for second in range(1, 12)]
    assert sum(told) == 2


def test_everything_is_counted() -> None:
    board = ScalingBoard()
    for reason, alarms in (("backlog", ()), ("stale", ("stale",)), ("stale", ("stale", "silent")), ("steady", ())):
        board.take(replace(STATE, reason=reason, alarms=alarms))
    board.take(replace(STATE, model="other"))
    scaling = board.scaling()
    assert set(scaling.decisions) == {("m", "backlog", 1), ("m", "stale", 2), ("m", "steady", 1), ("other", "backlog", 1)}
    assert set(scaling.alarms) == {("m", "stale", 2), ("m", "silent", 1)}
    state = scaling.of("m")
    assert state is not None
    assert (state.reason, state.starting, state.ready_unix_s) == ("steady", 0, 1_040.0)
    assert scaling.of("none") is None


def test_nobody_knows_when_what_does_not_start_is_ready() -> None:
    assert replace(STATE, start_up_eta_s=None).ready_unix_s is None


def test_a_decision_that_does_not_come_is_told() -> None:
    board = ScalingBoard()
    assert board.scaling().overdue_s("m", 1.0, 2_000.0) is None, "nothing is known: the directory may just have begun"
    board.take(STATE)
    assert not board.take(replace(STATE, at_unix_s=1_020.0, start_up_eta_s=20.0)), "no news, and heard all the same"
    scaling = board.scaling()
    assert scaling.overdue_s("m", 1.0, 1_050.0) is None
    assert scaling.overdue_s("m", 1.0, 1_060.0) == 40.0
    assert scaling.overdue_s("m", 600.0, 1_060.0) is None
