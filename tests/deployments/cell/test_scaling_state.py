"""What is news of a decision, and what only counts."""

from dataclasses import replace

import pytest

from deployments.cell.scaling_state import ScalingState, ScalingStates

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
    scaling_states = ScalingStates()
    assert scaling_states.take(STATE)
    assert scaling_states.take(replace(STATE, **change)) is news  # type: ignore[arg-type]


def test_a_start_that_moves_slowly_is_told_in_the_end() -> None:
    """Each decision expects it a little later than the one before: what was told last is what counts."""
    scaling_states = ScalingStates()
    scaling_states.take(STATE)
    reported = [
        scaling_states.take(replace(STATE, at_unix_s=1_000.0 + second, start_up_eta_s=40.0 - 0.9 * second))
        for second in range(1, 12)
    ]
    assert sum(reported) == 2


def test_everything_is_counted() -> None:
    scaling_states = ScalingStates()
    for reason, alarms in (
        ("backlog", ()),
        ("stale", ("stale",)),
        ("stale", ("stale", "unresponsive")),
        ("steady", ()),
    ):
        scaling_states.take(replace(STATE, reason=reason, alarms=alarms))
    scaling_states.take(replace(STATE, model="other"))
    scaling = scaling_states.scaling()
    assert set(scaling.decisions) == {
        ("m", "backlog", 1),
        ("m", "stale", 2),
        ("m", "steady", 1),
        ("other", "backlog", 1),
    }
    assert set(scaling.alarms) == {("m", "stale", 2), ("m", "unresponsive", 1)}
    state = scaling.of("m")
    assert state is not None
    assert (state.reason, state.starting, state.ready_unix_s) == ("steady", 0, 1_040.0)
    assert scaling.of("none") is None


def test_nobody_knows_when_what_does_not_start_is_ready() -> None:
    assert replace(STATE, start_up_eta_s=None).ready_unix_s is None


def test_a_decision_that_does_not_come_is_told() -> None:
    scaling_states = ScalingStates()
    assert scaling_states.scaling().overdue_s("m", 1.0, 2_000.0) is None, (
        "nothing is known: the directory may just have begun"
    )
    scaling_states.take(STATE)
    assert not scaling_states.take(replace(STATE, at_unix_s=1_020.0, start_up_eta_s=20.0)), (
        "no news, and heard all the same"
    )
    scaling = scaling_states.scaling()
    assert scaling.overdue_s("m", 1.0, 1_050.0) is None
    assert scaling.overdue_s("m", 1.0, 1_060.0) == 40.0
    assert scaling.overdue_s("m", 600.0, 1_060.0) is None
