"""Dynamo's planner: inputs and answers of its own unit cases, by their names, with the costs that they train its model
with; and both loops together."""

from typing import Any

import pytest

from autoscaling.policies.policy import PolicyReason, ReplicaProfile
from autoscaling.policies.rivals.dynamo import Dynamo, DynamoSettings
from autoscaling.policies.rivals.dynamo_load import LoadSettings, LoadStep, step_wish
from autoscaling.policies.rivals.dynamo_throughput import Predictor, Series, TrafficWindow
from autoscaling.signals.signals import Signals
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.replica_rate import rate_at
from deployments.scheduling.replica import ReplicaStatus
from tests.autoscaling.facts import replica_like, signals_like
from tests.autoscaling.policies.moments import COST, LIMITS, REPLICA_PROFILE, moment

LAX_S = 1_000.0
DECODE = CostModel(line(0.001, 0.0), line(0.0, 0.0), plain_attention(1e-5, 0.0))
"""A step takes 1 ms and 10 us for each KV token that it reads."""
PREFILL = CostModel(line(0.001, 1e-5), line(0.0, 0.0), plain_attention(0.0, 0.0))
"""A step takes 1 ms and 10 us for each token of a prompt."""


def fleet(count: int, kv_tokens: int, queued: int) -> Signals:
    """Replicas alike, one sequence decoding on each."""
    replicas = tuple(
        replica_like(f"r{index}", ReplicaStatus.READY, 1, 64, kv_tokens, 1 << 30, queued, None)
        for index in range(count)
    )
    return signals_like(5.0, 1e9, 0.0, 1, count, 0, None, replicas, (), (), 0, 0.0, 0, 0)


def decoding(count: int, kv_tokens: int, itl_s: float, max_kv: int = 100_000) -> LoadStep:
    """Lengths such that a request's mean context is 1,000 tokens, as in `_train_decode_regression`."""
    limits = EngineModelLimits(sequences=64, step_tokens=2_048, kv_tokens=max_kv)
    return step_wish(LoadSettings(LAX_S, itl_s, 0.8), limits, DECODE, fleet(count, kv_tokens, 0), 900.0, 200.0)


def prefilling(count: int, queued: int, ttft_s: float, isl: float) -> LoadStep:
    limits = EngineModelLimits(sequences=64, step_tokens=2_048, kv_tokens=1 << 30)
    return step_wish(LoadSettings(ttft_s, LAX_S, 0.8), limits, PREFILL, fleet(count, 0, queued), isl, 200.0)


def test_decode_consolidation() -> None:
    """TestDecodeConsolidationAwareScaleDown: permitted within the SLA, refused by the SLA, refused by the cache."""
    assert decoding(2, 1_500, 0.1).change == -1
    by_sla, by_cache = decoding(2, 8_000, 0.1), decoding(2, 60_000, 10.0)
    assert (by_sla.change, by_sla.refused, by_cache.change, by_cache.refused) == (0, True, 0, True)
    assert by_sla.itl_s == pytest.approx(0.001 + 1e-5 * 9_000)
    assert by_cache.itl_s == pytest.approx(0.001 + 1e-5 * 61_000)


def test_decode_scales_up_when_all_are_above_the_sla() -> None:
    """TestDecodeLoadScaling.test_scale_up_when_all_above_sla."""
    assert decoding(1, 50_000, 0.005).change == 1


@pytest.mark.parametrize(
    ("count", "queued", "ttft_s", "isl", "change"),
    [
        pytest.param(1, 10_000, 0.005, 1_500.0, 1, id="scale_up_when_all_above_sla"),
        pytest.param(2, 30_000, 0.1, 1_500.0, 1, id="n2_refuses_when_post_consolidation_breaks_sla"),
        pytest.param(2, 0, 0.1, 1_500.0, -1, id="n2_permits_when_queue_empty"),
        pytest.param(10, 2_000, 0.1, 1_500.0, -1, id="consolidation_only_inflates_queue_not_compute"),
        pytest.param(2, 1_000, 0.05, 2_000.0, -1, id="high_own_compute_permits_scale_down"),
        pytest.param(2, 0, 0.015, 2_000.0, 1, id="t_own_above_sla_blocks_scale_down"),
    ],
)
def test_prefill(count: int, queued: int, ttft_s: float, isl: float, change: int) -> None:
    """TestPrefillLoadScaling, TestPrefillConsolidationAwareScaleDown, TestPrefillQueueBudgetRefinement."""
    assert prefilling(count, queued, ttft_s, isl).change == change


def test_one_replica_within_the_sla_holds_back_the_step_up_and_the_last_never_goes() -> None:
    signals = fleet(2, 0, 50_000)
    idle = replica_like("idle", ReplicaStatus.READY, 1, 64, 0, 1 << 30, 0, None)
    limits = EngineModelLimits(sequences=64, step_tokens=2_048, kv_tokens=1 << 30)
    mixed = signals_like(5.0, 1e9, 0.0, 1, 2, 0, None, (signals.replicas[0], idle), (), (), 0, 0.0, 0, 0)
    assert step_wish(LoadSettings(0.1, LAX_S, 0.8), limits, PREFILL, mixed, 1_500.0, 200.0).change == 0
    assert prefilling(1, 0, 0.1, 1_500.0).change == 0


def test_what_waits_in_the_lanes_is_queued_on_the_replicas() -> None:
    policy = Dynamo(DynamoSettings(), REPLICA_PROFILE)
    arrived: dict[str, Any] = {"arrived": 1_000, "prompt_tokens": 800_000, "ended": 500, "output_tokens": 100_000}
    desired = policy.decide(moment(0.0, ready=2, waiting=500, **arrived))
    assert (desired.replicas, desired.policy_reason) == (3, PolicyReason.LATENCY)


def busy(at_s: float, rate: float, ready: int, starting: int = 0, unresponsive: int = 0, running: int = 110) -> Signals:
    """Steady requests of 800 and 200 tokens since the start."""
    arrived = int(rate * at_s)
    tokens: dict[str, Any] = {"prompt_tokens": 800 * arrived, "ended": arrived, "output_tokens": 200 * arrived}
    return moment(
        at_s,
        ready=ready,
        starting=starting,
        unresponsive=unresponsive,
        running=running,
        kv_share=running / 160,
        arrived=arrived,
        **tokens,
    )


def test_the_forecast_is_a_floor() -> None:
    rate = rate_at(LIMITS, COST, 800, 200, 0.05, 0.5, output_cv=0.0)
    policy = Dynamo(DynamoSettings(), REPLICA_PROFILE)
    demand = 4.5 * rate
    steps = [policy.decide(busy(5.0 * step, demand, 3)) for step in range(37)]
    assert {desired.replicas for desired in steps[:36]} == {3}
    assert steps[36].replicas == 5
    assert steps[36].policy_reason is PolicyReason.FORECAST
    assert steps[36].terms["rate_per_s"] == pytest.approx(rate, rel=0.01)


def test_one_forecast_moves_the_floor_by_eight_at_most() -> None:
    policy = Dynamo(DynamoSettings(), REPLICA_PROFILE)
    numbers = [policy.decide(busy(5.0 * step, 1_000.0, 3)).replicas for step in range(37)]
    assert numbers[-1] == 11


def test_it_waits_while_a_change_is_under_way_or_a_replica_is_unresponsive() -> None:
    policy = Dynamo(DynamoSettings(), REPLICA_PROFILE)
    for at_s, starting, unresponsive in ((0.0, 1, 0), (5.0, 0, 1)):
        desired = policy.decide(
            moment(
                at_s,
                ready=2,
                starting=starting,
                unresponsive=unresponsive,
                waiting=100_000,
                arrived=10,
                prompt_tokens=8_000,
            )
        )
        assert (desired.replicas, desired.policy_reason) == (3, PolicyReason.STEADY)


def test_after_the_traffic_has_gone_the_floor_sinks_and_replicas_go_one_by_one() -> None:
    policy, ready = Dynamo(DynamoSettings(), REPLICA_PROFILE), 5
    demand = 4.5 * rate_at(LIMITS, COST, 800, 200, 0.05, 0.5, output_cv=0.0)
    for step in range(37):
        policy.decide(busy(5.0 * step, demand, ready))
    last = busy(180.0, demand, ready)
    numbers = []
    for step in range(1, 80):
        counts: dict[str, Any] = {
            "arrived": last.arrived,
            "prompt_tokens": 800 * last.arrived,
            "ended": last.snapshot.counted,
            "output_tokens": last.snapshot.output_tokens,
        }
        ready = policy.decide(moment(180.0 + 5.0 * step, ready=ready, **counts)).replicas
        numbers.append(ready)
    assert numbers[:35] == [5] * 35, "the floor of the last forecast"
    assert numbers[35:39] == [4, 3, 2, 1]
    assert set(numbers[39:]) == {1}


def test_without_costs_nothing_changes_and_from_zero_the_least_is_woken() -> None:
    replica_profile = ReplicaProfile(LIMITS, 4.0)
    assert Dynamo(DynamoSettings(), replica_profile).decide(moment(0.0, ready=3, waiting=10_000)).replicas == 3
    assert Dynamo(DynamoSettings(min_replicas=2), replica_profile).decide(moment(0.0)).replicas == 2


def test_counters_that_restart_open_a_new_interval() -> None:
    traffic = TrafficWindow()
    traffic.look(moment(0.0, arrived=100, prompt_tokens=50_000))
    traffic.look(moment(60.0, arrived=150, prompt_tokens=100_000))
    assert traffic.isl == 1_000
    traffic.look(moment(90.0, arrived=2, prompt_tokens=4_000, epoch=2))
    assert traffic.isl == 2_000
    closed = traffic.close(moment(180.0, arrived=11, prompt_tokens=22_000, epoch=2))
    assert closed is not None
    assert (closed.seconds, closed.requests) == (90.0, 9)


def test_the_constant_predictor_skips_leading_zeros_only() -> None:
    series = Series(Predictor.CONSTANT, 1.0, 0.1, 10.0)
    assert series.next() == 0
    for value, predicted in ((0.0, 0.0), (7.0, 7.0), (0.0, 0.0)):
        series.add(value)
        assert series.next() == predicted


def test_the_kalman_predictor_follows_a_ramp_ahead() -> None:
    series = Series(Predictor.KALMAN, 1.0, 0.1, 10.0)
    for step in range(1, 60):
        series.add(10.0 * step)
        predicted = series.next()
        assert series.next() == predicted, "asking twice does not step twice"
    assert predicted == pytest.approx(600, rel=0.02)
