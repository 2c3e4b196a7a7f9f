"""AIBrix' APA: inputs and answers of its own unit cases, by their names, and the policy as a whole."""

from dataclasses import replace

import pytest

from autoscaling.policies.rivals.aibrix import Aibrix, AibrixSettings, ScaleCooldown, target_replicas
from tests.autoscaling.policies.moments import moment

CASES = AibrixSettings(up_tolerance=0.1, down_tolerance=0.1)


@pytest.mark.parametrize(
    ("settings", "current", "use", "desired"),
    [
        pytest.param(CASES, 2, 45.0, 3, id="basic_scale_up"),
        pytest.param(CASES, 2, 35.0, 3, id="scale_up_upto_ceiling"),
        pytest.param(CASES, 2, 90.0, 4, id="scale_up_upto_max_scale_up"),
        pytest.param(replace(CASES, max_scale_up_rate=2.5), 2, 90.0, 5, id="scale_up_upto_max_scale_up_ceiling"),
        pytest.param(CASES, 6, 20.0, 4, id="basic_scale_down"),
        pytest.param(CASES, 6, 18.0, 4, id="scale_down_upto_ceiling"),
        pytest.param(CASES, 6, 10.0, 3, id="scale_down_upto_max_scale_down"),
        pytest.param(replace(CASES, max_scale_down_rate=2.5), 6, 5.0, 2, id="scale_down_upto_max_scale_down_floor"),
        pytest.param(CASES, 2, 33.0, 2, id="no_scaling_as_within_up_tolerance"),
        pytest.param(CASES, 2, 27.0, 2, id="no_scaling_as_within_down_tolerance"),
    ],
)
def test_compute_target_replicas(settings: AibrixSettings, current: int, use: float, desired: int) -> None:
    """`TestAPAAlgorithm_ComputeTargetReplicas` in apa_test.go; 30 is the target."""
    assert target_replicas(settings, current, use, 30.0) == desired


def test_kv_usage_of_the_ready_replicas_counts() -> None:
    policy = Aibrix(AibrixSettings())
    assert policy.decide(moment(0.0, ready=4, kv_share=0.75)).replicas == 6
    assert policy.decide(moment(10.0, ready=4, unresponsive=1, draining=1, kv_share=0.75)).terms[
        "kv_usage"
    ] == pytest.approx(0.75)


def test_one_unresponsive_replica_blocks_nothing_and_no_ready_one_everything() -> None:
    assert Aibrix(AibrixSettings()).decide(moment(0.0, ready=3, unresponsive=1, kv_share=1.0)).replicas == 8
    assert Aibrix(AibrixSettings()).decide(moment(0.0, unresponsive=4, kv_share=1.0)).replicas == 4


def test_of_two_gauges_the_larger_number_counts() -> None:
    policy = Aibrix(AibrixSettings(waiting_target=10.0))
    assert policy.decide(moment(0.0, ready=2, kv_share=0.5, waiting=35)).replicas == 4


def test_a_lower_wish_must_stand_for_the_cooldown() -> None:
    policy = Aibrix(AibrixSettings(window_s=10.0))
    policy.decide(moment(0.0, ready=4, kv_share=0.5))
    numbers = [policy.decide(moment(10.0 * step, ready=4, kv_share=0.2)).replicas for step in range(1, 40)]
    assert numbers.index(2) == 29


def test_what_that_commit_ships_falls_back_to_what_was() -> None:
    policy = Aibrix(AibrixSettings(window_s=10.0, cooldown=ScaleCooldown.SHIPPED))
    policy.decide(moment(0.0, ready=2, kv_share=0.5))
    policy.decide(moment(10.0, ready=8, kv_share=0.9))
    assert policy.decide(moment(20.0, ready=8, kv_share=0.35)).replicas == 2


def test_zero_is_left_alone() -> None:
    assert Aibrix(AibrixSettings()).decide(moment(0.0, waiting=100)).replicas == 0
