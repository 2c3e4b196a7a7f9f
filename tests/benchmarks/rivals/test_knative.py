"""Knative's pod autoscaler: inputs and answers of its own unit cases, by their names, and the policy as a whole."""

from dataclasses import replace

import pytest

from autoscaling.policies.policy import PolicyReason
from benchmarks.policies.rivals.knative import Knative, KnativeSettings
from tests.autoscaling.policies.moments import moment

CASES = KnativeSettings(
    target_concurrency=10.0, target_utilisation=1.0, max_scale_up_rate=10.0, max_scale_down_rate=10.0
)
"""As `newTestAutoscaler(10, ...)` in autoscaler_test.go."""
ONE = replace(CASES, target_concurrency=1.0)


@pytest.mark.parametrize(
    ("settings", "ready", "stable", "panic", "desired"),
    [
        pytest.param(CASES, 1, 0.0, 0.0, 0, id="AutoscalerNoDataAtZeroNoAutoscale"),
        pytest.param(replace(CASES, target_concurrency=181.0), 1, 21.0, 26.0, 1, id="AutoscalerStableModeUnlimitedTBC"),
        pytest.param(CASES, 1, 50.0, 49.0, 5, id="Autoscaler0TBC"),
        pytest.param(CASES, 1, 50.0, 50.0, 5, id="AutoscalerStableModeNoChange"),
        pytest.param(CASES, 5, 50.0, 50.0, 5, id="AutoscalerStableModeNoChangeAlreadyScaled"),
        pytest.param(
            replace(ONE, max_scale_up_rate=1.1), 2, 3.0, 3.1, 3, id="AutoscalerStableModeIncreaseWithSmallScaleUpRate"
        ),
        pytest.param(CASES, 1, 50.0, 100.0, 10, id="AutoscalerPanicModeDoublePodCount"),
        pytest.param(CASES, 1, 1_000.0, 1_001.0, 10, id="TestAutoscalerRateLimitScaleUp"),
        pytest.param(CASES, 0, 1_000.0, 888.0, 10, id="TestAutoscalerUseOnePodAsMinimumIfEndpointsNotFound"),
    ],
)
def test_the_decider(settings: KnativeSettings, ready: int, stable: float, panic: float, desired: int) -> None:
    assert Knative(settings).scale(0.0, ready, stable, panic) == desired


@pytest.mark.parametrize(
    ("settings", "ready", "stable", "panic", "desired"),
    [
        pytest.param(
            replace(CASES, max_scale_down_rate=1.1),
            100,
            1.0,
            1.0,
            90,
            id="AutoscalerStableModeDecreaseWithSmallScaleDownRate",
        ),
        pytest.param(CASES, 100, 1.0, 1.0, 10, id="TestAutoscalerRateLimitScaleDown"),
        pytest.param(CASES, 8, 50.0, 50.0, 5, id="TestAutoscalerStableModeDecrease"),
    ],
)
def test_the_decider_out_of_the_panic_in_which_it_begins(
    settings: KnativeSettings, ready: int, stable: float, panic: float, desired: int
) -> None:
    policy = Knative(settings)
    policy.scale(0.0, 1, 0.0, 0.0)
    assert policy.scale(2.0, ready, stable, panic) == desired


@pytest.mark.parametrize(("stable", "panic", "desired"), [(50.0, 30.0, 50), (20.0, 30.0, 30)])
def test_autoscaler_panic_takes_the_larger(stable: float, panic: float, desired: int) -> None:
    """AutoscalerPanicStableLargerThanPanic, AutoscalerPanicStableLessThanPanic."""
    assert Knative(ONE).scale(0.0, 5, stable, panic) == desired


def test_start_in_panic_mode() -> None:
    """TestStartInPanicMode: with several replicas nothing is taken away before there is a history."""
    for ready, kept in ((1, 0), (2, 2)):
        assert Knative(CASES).scale(0.0, ready, 0.0, 0.0) == kept


def test_unpanic_after_slow_increase() -> None:
    """TestAutoscalerUnpanicAfterSlowIncrease."""
    policy = Knative(ONE)
    policy.scale(-100.0, 1, 0.0, 0.0)
    assert policy.scale(0.0, 10, 11.0, 25.0) == 25
    assert policy.scale(30.0, 40, 30.0, 41.0) == 41
    assert policy.scale(62.0, 55, 50.0, 56.0) == 50, "no longer in panic"


def test_extend_panic_window() -> None:
    """TestAutoscalerExtendPanicWindow."""
    policy = Knative(ONE)
    policy.scale(0.0, 10, 11.0, 25.0)
    assert policy.scale(30.0, 40, 30.0, 80.0) == 80
    assert policy.scale(85.0, 80, 1.0, 1.0) == 80, "the second panic is 55 s old"


def test_panic_then_unpanic_scale_down() -> None:
    """TestAutoscalerPanicThenUnPanicScaleDown."""
    policy = Knative(CASES)
    assert policy.scale(0.0, 1, 100.0, 100.0) == 10
    assert policy.scale(0.1, 10, 100.0, 1_000.0) == 100
    assert policy.scale(30.1, 10, 1.0, 1.0) == 100
    assert policy.scale(61.1, 10, 1.0, 1.0) == 1


def test_scale_down_delay() -> None:
    """TestAutoscalerScaleDownDelay: at once, and little by little."""
    policy = Knative(replace(CASES, panic_threshold=100.0, scale_down_delay_s=300.0))
    assert policy.scale(2.0, 0, 40.0, 40.0) == 4
    assert policy.scale(300.0, 0, 0.0, 0.0) == 4
    assert policy.scale(302.0, 0, 0.0, 0.0) == 0
    steps = ((540.0, 40.0), (600.0, 30.0), (660.0, 0.0), (840.0, 0.0), (900.0, 0.0))
    assert [policy.scale(at, 0, value, value) for at, value in steps] == [4, 4, 4, 3, 0]


def test_requests_that_wait_count_and_zero_takes_a_grace() -> None:
    policy = Knative(CASES)
    woken = policy.decide(moment(0.0, waiting=3))
    assert (woken.replicas, woken.policy_reason) == (1, PolicyReason.WAKE)
    numbers = [policy.decide(moment(2.0 * step, ready=1)).replicas for step in range(1, 60)]
    first_zero = numbers.index(0)
    assert numbers[:first_zero] == [1] * first_zero
    assert 2.0 * (first_zero + 1) == pytest.approx(60 + 30, abs=4), "a window without requests, and the grace"


def test_scale_to_zero_can_be_switched_off() -> None:
    policy = Knative(replace(CASES, scale_to_zero=False))
    assert all(policy.decide(moment(2.0 * step, ready=1)).replicas == 1 for step in range(100))
