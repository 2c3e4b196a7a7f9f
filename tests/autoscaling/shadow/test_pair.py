"""An active policy and its shadow: what is obeyed, what is scored, what a changed spec does, and how a promotion
ends."""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from autoscaling.shadow.pair import Pair, Probation
from autoscaling.signals.signals import Signals, unseen
from deployments.cell.control import Control, ControlKind
from deployments.engine_model.limits import EngineModelLimits
from tests.autoscaling.scaler.moments import moment
from tests.autoscaling.setups import setup, stream
from tests.autoscaling.test_from_spec import COSTS

FIXED: dict[str, Any] = {"shadow": {"policy": "fixed"}}
BACKLOG: dict[str, Any] = {"policy": "backlog"}


def numbers(pair: Pair, moments: Iterable[Signals]) -> list[int]:
    return [pair.decide(signals).requested for signals in moments]


def promoted() -> Pair:
    """The fixed policy became the active one after a minute, the backlog policy its shadow."""
    pair = Pair(setup("backlog", count=3, **FIXED))
    numbers(pair, stream(60))
    pair.configure(setup("fixed", count=3, shadow=BACKLOG), 60.0)
    return pair


def test_a_shadow_changes_nothing() -> None:
    alone, shadowed = Pair(setup("backlog")), Pair(setup("backlog", **FIXED))
    assert numbers(alone, stream(200)) == numbers(shadowed, stream(200))


def test_it_is_scored_on_the_same_stream() -> None:
    pair = Pair(setup("backlog", count=3, **FIXED))
    numbers(pair, stream(300))
    assert pair.shadow is not None
    standing = pair.shadow.standing()
    assert standing is not None
    assert (standing.seconds, standing.shadow.number, standing.shadow.changes) == (299.0, 3, 1)
    assert standing.shadow.replica_hours > 0
    assert standing.met + standing.missed > 0
    assert sum(standing.active.reasons.values()) == 300
    assert 0 <= standing.agreement <= 1


def test_what_nobody_sees_is_not_scored() -> None:
    pair = Pair(setup("backlog", **FIXED))
    for second in range(10):
        pair.decide(unseen(float(second), 1e9, 2))
    assert pair.shadow is not None
    assert pair.shadow.standing() is None


def test_a_shadow_has_no_rate_limit_and_follows_operators() -> None:
    pair = Pair(setup("backlog", up_per_minute=1, **FIXED))
    assert pair.shadow is not None
    pins = (Control(ControlKind.PIN, 6, 2e9),)
    pair.decide(next(stream(1)), pins)
    standing = pair.shadow.standing()
    assert standing is not None
    assert standing.shadow.number == 6


def test_a_promotion_carries_what_the_policy_has_learned() -> None:
    pair = Pair(setup("fixed", count=3, shadow=BACKLOG))
    numbers(pair, stream(200))
    assert pair.shadow is not None
    learned = pair.shadow.policy
    pair.configure(setup("backlog", count=3, **FIXED), 200.0)
    assert pair.scaler.policy is learned
    assert pair.probation is not None
    assert pair.shadow.policy.name == "fixed"


def test_a_rollback_is_on_no_probation() -> None:
    pair = promoted()
    assert pair.probation is not None
    pair.configure(setup("backlog", count=3, **FIXED), 70.0)
    assert (pair.choice.name, pair.probation, pair.reverted) == ("backlog", None, None)
    pair.configure(setup("fixed", count=3, shadow=BACKLOG), 80.0)
    assert pair.probation is not None


def burning(seconds: range) -> Iterable[Signals]:
    for second, signals in enumerate(stream(seconds.stop)):
        if second >= seconds.start:
            yield signals.showing(flows=(replace(signals.flows[0], missed=50 * second),))


def test_a_promoted_policy_that_burns_is_taken_back_by_itself_until_the_spec_says_so() -> None:
    pair = promoted()
    for signals in burning(range(60, 200)):
        pair.decide(signals)
    assert pair.choice.name == "backlog"
    assert pair.reverted is not None
    assert (pair.reverted.policy.name, pair.probation) == ("fixed", None)
    assert pair.reverted.burn >= 10
    pair.configure(setup("fixed", count=3, shadow=BACKLOG), 200.0)  # a spec from before
    assert (pair.choice.name, pair.reverted is None) == ("backlog", False)
    pair.configure(setup("backlog", count=3, **FIXED), 201.0)
    assert (pair.choice.name, pair.reverted, pair.probation) == ("backlog", None, None)


def test_other_settings_keep_what_was_learned() -> None:
    pair = Pair(setup("backlog"))
    numbers(pair, stream(300))
    capacity = pair.scaler.policy.capacity.per_s  # type: ignore[attr-defined]
    assert capacity is not None
    pair.configure(setup("backlog", backlog={"utilisation": 0.5, "down_after_s": 120}), 300.0)
    assert pair.scaler.policy.settings.utilisation == 0.5  # type: ignore[attr-defined]
    assert pair.scaler.policy.capacity.per_s == capacity  # type: ignore[attr-defined]
    pair.configure(setup("fixed", count=4), 301.0)
    assert pair.decide(list(stream(303))[302]).requested == 4


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({"start_up_s": 5.0}, True),
        ({"decode_weight": 1.0}, False),
        ({"limits": EngineModelLimits(64, 2_048, 9_999)}, False),
    ],
)
def test_what_was_learned_is_kept_for_equal_replicas_alone(changed: dict[str, Any], kept: bool) -> None:
    given = setup("backlog", **FIXED)
    pair = Pair(given)
    numbers(pair, stream(300))
    pair.configure(replace(given, replica_profile=replace(given.replica_profile, **changed)), 300.0)
    assert (pair.scaler.policy.capacity.per_s is not None) == kept  # type: ignore[attr-defined]


@pytest.mark.parametrize("costs", [None, str(COSTS)])
def test_bounds_and_an_unchanged_policy_are_just_that(costs: str | None) -> None:
    pair = Pair(setup("backlog", costs=costs, **FIXED))
    numbers(pair, stream(100))
    policy, shadow = pair.scaler.policy, pair.shadow
    pair.configure(setup("backlog", costs=costs, maximum=3, **FIXED), 100.0)
    assert (pair.scaler.policy is policy, pair.shadow is shadow, pair.scaler.bounds.maximum) == (True, True, 3)
    pair.configure(setup("backlog", maximum=3), 101.0)
    assert pair.shadow is None


def test_a_setting_that_is_refused_changes_nothing() -> None:
    pair = Pair(setup("backlog"))
    with pytest.raises(ValueError, match="no such policy"):
        pair.configure(setup("magic"), 1.0)
    assert pair.choice.name == "backlog"
    assert pair.decide(next(stream(1))).requested >= 0


@pytest.mark.parametrize("cut", [0, 30, 90])
def test_it_can_be_pickled_between_any_two_decisions(cut: int) -> None:
    moments = list(stream(120))
    whole, parted = promoted(), promoted()
    expected = numbers(whole, moments[60:])
    first = numbers(parted, moments[60 : 60 + cut])
    again = pickle.loads(pickle.dumps(parted))
    assert first + numbers(again, moments[60 + cut :]) == expected


def at(second: int, met: int, missed: int, epoch: int = 1) -> Signals:
    signals = moment(float(second), epoch=epoch)
    return signals.showing(flows=(replace(signals.flows[0], met=met, missed=missed),))


def failed_at(share_missed: float) -> int | None:
    probation = Probation(0.0, 600.0, 120.0, 10.0)
    for second in range(700):
        missed = int(10 * second * share_missed)
        if probation.look(at(second, 10 * second - missed, missed)):
            return second
    return None


@pytest.mark.parametrize(("share_missed", "at_s"), [(0.0, None), (0.05, None), (0.2, 120)])
def test_one_that_burns_is_taken_back_once_a_whole_span_is_its_own(share_missed: float, at_s: int | None) -> None:
    """Five times what 99 % allow is no burning yet."""
    assert failed_at(share_missed) == at_s


def test_after_its_time_it_is_on_probation_no_more() -> None:
    probation = Probation(0.0, 60.0, 10.0, 10.0)
    assert not any(probation.look(at(second, 0, 10 * max(0, second - 60))) for second in range(200))


def test_a_new_owners_counts_begin_anew() -> None:
    probation = Probation(0.0, 600.0, 120.0, 10.0)
    for second in range(150):
        assert not probation.look(at(second, 1_000 * second, 0))
    assert not any(probation.look(at(second, 10 * (second - 150), 4, epoch=2)) for second in range(150, 400))


def test_a_handful_says_nothing() -> None:
    probation = Probation(0.0, 600.0, 120.0, 10.0)
    assert not any(probation.look(at(second, 0, min(4, second))) for second in range(300))
