"""Where a policy should rest it does: no flap where traffic stops, no more than a change in ten minutes, and no fleet
for an SLO that none can meet.

The runs are those of `benchmarks/scaling`, which compares them with an earlier version.
"""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from autoscaling.policies.backlog.pace import PRESSING, SETTLE_S, SMALL_DOWN, SMALL_UP
from autoscaling.policies.backlog.policy import BacklogPolicy, BacklogSettings
from autoscaling.policies.policy import Concern, DesiredReplicas, PolicyReason, ReplicaProfile
from autoscaling.policies.registry import make_policy
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.signals.signals import Signals
from benchmarks.scaling.cases import MID_FOLDER, QUIET_S, RESTING, ScalingCase, scenario_case, without_arrivals
from planning.gauntlet.run import outcome_of
from tests.planning.workload.real import real

REST_S = 600.0


def decided(case: ScalingCase) -> tuple[ScalingDecision, ...]:
    """What the backlog policy decided, by its defaults: whatever changed the number, the reason or the concern."""
    return outcome_of(case.run, make_policy("backlog", {}, case.replica_profile), case.target).scalings


def changes(case: ScalingCase) -> list[ScalingDecision]:
    """Those that changed the number."""
    return [one for one in decided(case) if one.changes]


def between(found: list[ScalingDecision], from_s: float, to_s: float) -> list[ScalingDecision]:
    return [one for one in found if from_s <= one.at_s < to_s]


def assert_at_rest(found: list[ScalingDecision]) -> None:
    """No two changes within ten minutes."""
    assert all(later.at_s - one.at_s >= REST_S for one, later in pairwise(found)), [
        (one.at_s, one.applied, one.requested) for one in found
    ]


@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name in RESTING if name.startswith("trickle")])
@pytest.mark.parametrize("number", [0, 1])
def test_a_request_a_minute_moves_nothing_more_often_than_every_ten_minutes(name: str, number: int) -> None:
    assert_at_rest(changes(RESTING[name](None, number)))


@pytest.mark.whole
@pytest.mark.parametrize("number", range(4))
def test_while_the_upstream_is_out_steps_down_keep_their_rules_and_nothing_flaps(number: int) -> None:
    case = scenario_case("outage", None, number)
    arrived = case.run.workload.arrived_s
    late = arrived[arrived > 700.0]
    back_s = float(late[np.flatnonzero(late[10:] - late[:-10] < 10.0)[0]])
    found = between(changes(case), 660.0, back_s)
    assert found
    assert all(one.requested < one.applied for one in found)
    assert_at_rest(found)
    assert all(2 * one.requested >= one.applied for one in found)
    assert all(
        one.requested >= 5 for one in between(found, 660.0, 900.0)
    )  # what the five replicas' worth of the minutes before need


class Watched(BacklogPolicy):
    """Notes the load by which it decides, in replicas: its terms have the rate less the part of a surge that passes."""

    def __init__(self, settings: BacklogSettings, replica_profile: ReplicaProfile) -> None:
        super().__init__(settings, replica_profile)
        self.loads: dict[float, float] = {}

    def decide(self, signals: Signals) -> DesiredReplicas:
        desired = super().decide(signals)
        self.loads[signals.at_s] = self._load_of(dict(desired.terms))
        return desired


@cache
def day(name: str) -> tuple[ScalingCase, tuple[ScalingDecision, ...], dict[float, float]]:
    """A recorded day, the decisions that changed the number, and the load at each moment."""
    case = RESTING[name](real(MID_FOLDER).parent, 0)
    policy = Watched(BacklogSettings(), case.replica_profile)
    found = outcome_of(case.run, policy, case.target).scalings
    return case, tuple(one for one in found if one.changes), policy.loads


def soon_after_another(found: tuple[ScalingDecision, ...]) -> list[tuple[ScalingDecision, ScalingDecision]]:
    return [(one, later) for one, later in pairwise(found) if later.at_s - one.at_s < REST_S]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "from_s", "to_s", "share"),
    [("m-mid-outage", 600.0, 7_190.0, 0.75), ("quiet-half-hour", *QUIET_S, 0.7)],
)
def test_on_a_recorded_day_nothing_flaps_while_no_traffic_arrives_and_changes_are_rare(
    name: str, from_s: float, to_s: float, share: float
) -> None:
    """`share`: at most so many changes in ten minutes, on average."""
    case, found, _ = day(name)
    quiet = between(list(found), from_s, to_s)
    assert all(one.requested < one.applied for one in quiet)
    assert_at_rest(quiet)
    assert len(found) <= share * case.run.until_s / REST_S


@pytest.mark.long
@pytest.mark.parametrize("name", ["m-mid-outage", "quiet-half-hour"])
def test_on_a_recorded_day_no_small_step_goes_down_within_ten_minutes_of_another_change(name: str) -> None:
    _, found, _ = day(name)
    down = [(one, later) for one, later in soon_after_another(found) if later.requested < later.applied]
    assert all(later.applied - later.requested >= SMALL_DOWN * later.applied for _, later in down)
    assert all(later.at_s - one.at_s > SETTLE_S for one, later in down if one.requested < one.applied)


@pytest.mark.long
@pytest.mark.parametrize("name", ["m-mid-outage", "quiet-half-hour"])
def test_on_a_recorded_day_a_small_step_up_rests_unless_the_load_fills_the_replicas_or_requests_wait(name: str) -> None:
    _, found, loads = day(name)
    steps = [one for _, one in soon_after_another(found) if 0 < one.requested - one.applied < SMALL_UP * one.applied]
    urgent = (PolicyReason.BACKLOG, PolicyReason.SLO_BURN)
    assert steps
    assert all(one.policy_reason in urgent or loads[one.at_s] >= PRESSING * one.applied for one in steps)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["slo-50ms", "slo-200ms"])
def test_an_slo_that_no_number_meets_buys_no_fleet_and_is_reported(name: str) -> None:
    case = RESTING[name](None, 0)
    reported = decided(case)
    assert max(one.requested for one in reported) <= 3
    assert_at_rest([one for one in reported if one.changes])
    assert {one.concern for one in reported} & set(Concern)


@pytest.mark.whole
def test_half_an_hour_cut_out_of_a_run_is_quiet_and_the_rest_as_it_was() -> None:
    run = scenario_case("outage", None, 0).run
    before, after = run.workload, without_arrivals(run, 100.0, 200.0).workload
    gone = (before.arrived_s >= 100.0) & (before.arrived_s < 200.0)
    assert gone.sum() > 100
    np.testing.assert_array_equal(after.arrived_s, before.arrived_s[~gone])
    np.testing.assert_array_equal(after.prompt_tokens, before.prompt_tokens[~gone])
    assert [after.traffic_class[index] for index in range(len(after))] == [
        before.traffic_class[int(index)] for index in np.flatnonzero(~gone)
    ]
