"""KEDA: wakes the first replica and stops the last; between them its HorizontalPodAutoscaler decides."""

from autoscaling.policies.policy import PolicyReason
from autoscaling.policies.rivals.keda import Keda, KedaSettings
from tests.autoscaling.policies.moments import moment


def test_more_than_the_threshold_a_replica_adds_some() -> None:
    policy = Keda(KedaSettings())
    assert policy.decide(moment(0.0, ready=2, waiting=10)).replicas == 2, "exactly five each"
    assert policy.decide(moment(15.0, ready=2, waiting=16)).replicas == 4
    assert policy.decide(moment(30.0, ready=4, waiting=16, starting=0)).replicas == 4


def test_it_wakes_the_first_when_it_polls() -> None:
    policy = Keda(KedaSettings(scale_to_zero=True))
    assert policy.decide(moment(0.0)).replicas == 0
    assert policy.decide(moment(15.0, waiting=40)).replicas == 0, "polls every 30 s"
    woken = policy.decide(moment(30.0, waiting=40))
    assert (woken.replicas, woken.policy_reason) == (1, PolicyReason.WAKE)


def test_activation_has_a_threshold_of_its_own() -> None:
    policy = Keda(KedaSettings(scale_to_zero=True, activation_threshold=10))
    assert policy.decide(moment(0.0, waiting=10)).replicas == 0
    assert policy.decide(moment(30.0, waiting=11)).replicas == 1


def test_it_stops_the_last_after_the_cooldown_unless_requests_come() -> None:
    policy = Keda(KedaSettings(scale_to_zero=True))
    busy = [policy.decide(moment(30.0 * step, ready=1, running=3, arrived=step)) for step in range(40)]
    assert all(desired.replicas == 1 for desired in busy), "nothing waits, and the keep-alive is active"
    quiet = [policy.decide(moment(30.0 * (39 + step), ready=1, arrived=39)).replicas for step in range(1, 16)]
    assert quiet.index(0) == 11, "a minute of keep-alive, 300 s of cooldown"


def test_without_scale_to_zero_one_is_kept() -> None:
    policy = Keda(KedaSettings())
    assert all(policy.decide(moment(30.0 * step, ready=1)).replicas == 1 for step in range(40))
    assert Keda(KedaSettings()).decide(moment(0.0)).replicas == 1
