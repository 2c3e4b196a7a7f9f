"""Ray Serve's policies: the same decisions as Ray's own wrapper and aggregation with its clock set to ours, and what
their settings do."""

import math
import random
import types
from typing import Any

import pytest
from ray.serve import autoscaling_policy as ray
from ray.serve._private.common import TimeStampedValue
from ray.serve._private.metrics_utils import aggregate_timeseries, merge_instantaneous_total
from ray.serve.config import AggregationFunction

from autoscaling.policies.policy import PolicyReason
from autoscaling.signals.signals import Signals
from benchmarks.policies.rivals.ray_default import RayDefault, RayDefaultSettings, RayMeter, mean_over_time
from tests.autoscaling.policies.moments import moment


def test_the_mean_is_that_of_rays_own_aggregation() -> None:
    samples = ((0.0, 5.0), (6.0, 7.0), (12.0, 1.0), (18.0, 30.0))
    series = merge_instantaneous_total([[TimeStampedValue(at, value) for at, value in samples]])
    theirs = aggregate_timeseries(series, AggregationFunction.MEAN, last_window_s=7.0)
    assert mean_over_time(samples, 25.0) == pytest.approx(theirs)


@pytest.mark.whole
@pytest.mark.parametrize("settings", [RayDefaultSettings(), RayDefaultSettings(10.0, 60.0, 20.0, 2.0, 0.5)])
@pytest.mark.parametrize("seed", range(5))
def test_every_decision_is_that_of_rays_own_wrapper(
    monkeypatch: pytest.MonkeyPatch, settings: RayDefaultSettings, seed: int
) -> None:
    """The wrapper reads the clock: here its clock is that of the signals."""
    rng, clock = random.Random(seed), [1_000.0]
    monkeypatch.setattr(ray, "time", types.SimpleNamespace(time=lambda: clock[0]))
    wrapped = ray._apply_autoscaling_config(ray.replica_queue_length_autoscaling_policy)
    ours, applied = RayDefault(settings), 3
    state: dict[str, Any] = {}
    for _ in range(400):
        clock[0] += rng.choice([0.1, 1.0, 10.0, 30.0])
        ready = min(applied, rng.choice([applied, applied, applied - 1, 0]))
        signals = moment(clock[0], ready=max(0, ready), starting=applied - max(0, ready))
        requests = rng.choice([0.0, 0.0, 1.0, 2.0 * applied, 3.0 * applied, 40.0])
        context = ours.context(signals, requests)
        context.policy_state = state
        theirs, state = wrapped(context)
        woken = ours.wake(signals, requests)
        mine = ours.settle(ray.replica_queue_length_autoscaling_policy(context)[0], signals) if woken is None else woken
        assert mine == math.ceil(theirs)
        applied = mine


def answers(policy: RayDefault, moments: list[Signals]) -> list[int]:
    return [policy.decide(signals).replicas for signals in moments]


def test_more_requests_must_stand_for_the_delay() -> None:
    policy = RayDefault(RayDefaultSettings())
    numbers = answers(policy, [moment(float(at), ready=1, waiting=6) for at in range(40)])
    assert numbers.index(3) == 30
    assert set(numbers[:30]) == {1}


def test_fewer_must_stand_for_ten_minutes() -> None:
    policy = RayDefault(RayDefaultSettings())
    numbers = answers(policy, [moment(float(at), ready=4, waiting=2) for at in range(700)])
    assert numbers.index(1) == 600
    assert policy.decide(moment(701.0, ready=4, waiting=8)).policy_reason in (PolicyReason.STEADY, PolicyReason.COOLING)


def test_from_zero_one_request_is_enough() -> None:
    policy = RayDefault(RayDefaultSettings())
    assert answers(policy, [moment(0.0), moment(1.0)]) == [0, 0]
    woken = policy.decide(moment(2.0, waiting=50))
    assert (woken.replicas, woken.policy_reason) == (1, PolicyReason.WAKE)
    assert RayDefault(RayDefaultSettings(upscaling_factor=3.0)).decide(moment(0.0, waiting=50)).replicas == 3


def test_requests_are_known_late_and_as_a_mean() -> None:
    meter = RayMeter()
    seen = [meter.read(moment(float(at), ready=1, waiting=0 if at < 1 else 60)) for at in range(60)]
    assert set(seen[:10]) == {0.0}, "sent every ten seconds"
    assert 0 < seen[10] < 60
    assert seen[45] == pytest.approx(60, rel=0.05)


def test_replicas_that_start_do_not_count_as_running() -> None:
    policy = RayDefault(RayDefaultSettings(upscale_delay_s=0.0))
    assert policy.decide(moment(0.0, ready=1, starting=3, waiting=8)).replicas == 4
