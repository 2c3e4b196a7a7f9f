"""Policies by name, from plain values: what is wrong is named, with what is allowed."""

import pytest

from autoscaling.policies.registry import POLICIES, make_policy
from autoscaling.policies.rivals.dynamo import Dynamo
from autoscaling.policies.rivals.dynamo_throughput import Predictor
from autoscaling.policies.settings import PolicyError, Value, settings_from
from tests.autoscaling.policies.moments import REPLICA_PROFILE


def test_a_policy_of_its_defaults() -> None:
    assert isinstance(make_policy("dynamo", {}, REPLICA_PROFILE), Dynamo)
    assert all(name == entry.name for name, entry in POLICIES.items())


def test_values_become_what_the_settings_want() -> None:
    kept = settings_from("dynamo", POLICIES["dynamo"].settings, {"ttft_s": 2, "max_change": 3, "predictor": "kalman"})
    assert type(kept.ttft_s) is float
    assert (kept.ttft_s, kept.max_change, kept.predictor) == (2.0, 3, Predictor.KALMAN)
    assert settings_from("aibrix", POLICIES["aibrix"].settings, {"waiting_target": None}).waiting_target is None


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("hpb", {}, ["hpb", "hpa", "keda"]),
        ("hpa", {"traget_waiting": 3}, ["hpa", "traget_waiting=3", "target_waiting", "tolerance"]),
        ("hpa", {"target_waiting": "many"}, ["hpa", "target_waiting='many'", "a valid number"]),
        ("hpa", {"target_waiting": float("nan")}, ["target_waiting=nan", "a finite number"]),
        ("hpa", {"target_waiting": True}, ["target_waiting=True", "a valid number"]),
        ("hpa", {"target_waiting": None}, ["target_waiting=None", "a valid number"]),
        ("hpa", {"target_waiting": -1.0}, ["policy hpa", "target_waiting=-1.0", "greater than 0"]),
        ("keda", {"scale_to_zero": 1}, ["scale_to_zero=1", "a valid boolean"]),
        ("dynamo", {"max_change": 2.5}, ["max_change=2.5", "a valid integer"]),
        ("dynamo", {"predictor": "oracle"}, ["predictor='oracle'", "'constant' or 'kalman'"]),
        (
            "dynamo",
            {"throughput_interval_s": 5.0},
            ["load_interval_s=5.0, throughput_interval_s=5.0: allowed: load_interval_s < "],
        ),
        ("aibrix", {"waiting_target": "x"}, ["waiting_target='x'", "a valid number"]),
        ("llmd", {"up_threshold": 0.3}, ["up_threshold=0.3", "down_threshold=0.4", "down_threshold < up_threshold"]),
        ("ray_default", {"look_back_period_s": 10}, ["look_back_period_s=10.0", "metrics_interval_s"]),
    ],
)
def test_what_is_wrong_is_named(name: str, values: dict[str, Value], words: list[str]) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(name, values, REPLICA_PROFILE)
    for word in words:
        assert word in str(error.value)
