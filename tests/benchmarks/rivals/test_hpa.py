"""The HorizontalPodAutoscaler: inputs and answers of Kubernetes' own unit cases, by their names, and the policy as a
whole."""

import pytest

from autoscaling.policies.policy import PolicyReason
from benchmarks.policies.rivals.hpa import Hpa, HpaSettings, by_pod_metric
from tests.autoscaling.policies.moments import moment


@pytest.mark.parametrize(
    ("current", "ready", "missing", "total", "target", "desired"),
    [
        pytest.param(3, 3, 0, 60.0, 15.0, 4, id="ScaleUpCM"),
        pytest.param(3, 2, 1, 60.0, 15.0, 4, id="ScaleUpCMUnreadyLessScale"),
        pytest.param(3, 1, 2, 15.0, 15.0, 3, id="ScaleUpCMUnreadyNoScaleWouldScaleDown"),
        pytest.param(5, 5, 0, 60.0, 20.0, 3, id="ScaleDownCM"),
        pytest.param(3, 3, 0, 47.0, 15.0, 3, id="within the tolerance"),
        pytest.param(4, 2, 2, 2.0, 5.0, 3, id="missing ones count as on target on the way down"),
        pytest.param(4, 1, 3, 9.0, 5.0, 4, id="no turning around"),
        pytest.param(4, 0, 4, 0.0, 5.0, 4, id="nobody reports"),
        pytest.param(2, 2, 0, 0.0, 5.0, 0, id="nothing waits"),
    ],
)
def test_a_metric_of_each_pod(
    current: int, ready: int, missing: int, total: float, target: float, desired: int
) -> None:
    """`TestReplicaCalc...` in replica_calculator_test.go, and what follows from the code."""
    assert by_pod_metric(current, ready, missing, total, target, 0.1) == desired


@pytest.mark.parametrize(
    ("past", "wish", "current", "stabilised"),
    [
        pytest.param([], 5, 5, 5, id="empty log"),
        pytest.param([(-120.0, 4), (-60.0, 5)], 3, 5, 5, id="stabilize"),
        pytest.param([(-120.0, 1), (-60.0, 2)], 3, 3, 3, id="no stabilize"),
        pytest.param([(-600.0, 10), (-540.0, 9)], 3, 10, 3, id="no stabilize - old recommendations"),
        pytest.param([(-600.0, 10), (-120.0, 5), (-60.0, 4)], 3, 10, 5, id="stabilize - old recommendations"),
    ],
)
def test_stabilisation(past: list[tuple[float, int]], wish: int, current: int, stabilised: int) -> None:
    """`TestNormalizeDesiredReplicas` in horizontal_test.go."""
    policy = Hpa(HpaSettings())
    for at, number in past:
        policy.stabilise(at, number, number)
    assert policy.stabilise(0.0, current, wish) == stabilised


@pytest.mark.parametrize(("current", "limit"), [(1, 5), (10, 20), (100, 200)])
def test_the_rate_up_is_four_pods_or_as_many_again(current: int, limit: int) -> None:
    policy = Hpa(HpaSettings())
    assert policy.normalise(0.0, current, 500) == limit
    assert policy.normalise(1.0, limit, 500) == limit, "no more in these 15 s"


def test_steps_count_as_far_as_they_were_taken() -> None:
    policy = Hpa(HpaSettings())
    assert policy.normalise(0.0, 8, 100) == 16
    assert policy.normalise(5.0, 10, 100) == 16, "of eight, a ceiling left two: those count"


def test_it_doubles_every_sync_and_shrinks_after_five_minutes() -> None:
    policy = Hpa(HpaSettings())
    assert [
        policy.decide(moment(15.0 * step, ready=ready, waiting=400)).replicas
        for step, ready in enumerate((1, 5, 10, 20, 40))
    ] == [5, 10, 20, 40, 80]
    quiet = [policy.decide(moment(60.0 + 15.0 * step, ready=80)) for step in range(1, 25)]
    assert [desired.replicas for desired in quiet[:19]] == [80] * 19
    assert quiet[0].policy_reason is PolicyReason.COOLING
    assert quiet[20].replicas == 1


def test_starting_replicas_count_as_idle_on_the_way_up() -> None:
    policy = Hpa(HpaSettings())
    assert policy.decide(moment(0.0, ready=2, starting=2, waiting=20)).replicas == 4


def test_a_scale_of_zero_is_switched_off() -> None:
    assert Hpa(HpaSettings()).decide(moment(0.0, waiting=50)).replicas == 0
