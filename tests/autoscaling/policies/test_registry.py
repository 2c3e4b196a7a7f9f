"""Policies by name, from plain values: what is wrong is named, with what is allowed."""

import pytest

from autoscaling.policies.registry import POLICIES, make_policy
from autoscaling.policies.rivals.knative import Knative
from autoscaling.policies.settings import PolicyError, Value, settings_from
from tests.autoscaling.policies.moments import REPLICA_PROFILE


def test_a_policy_of_its_defaults() -> None:
    assert isinstance(make_policy("knative", {}, REPLICA_PROFILE), Knative)
    assert all(name == entry.name for name, entry in POLICIES.items())


def test_values_become_what_the_settings_want() -> None:
    given: dict[str, Value] = {"target_concurrency": 2, "scale_to_zero": False}
    kept = settings_from("knative", POLICIES["knative"].settings, given)
    assert type(kept.target_concurrency) is float
    assert (kept.target_concurrency, kept.scale_to_zero) == (2.0, False)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("hpb", {}, ["hpb", "hpa", "knative"]),
        ("hpa", {"traget_waiting": 3}, ["hpa", "traget_waiting=3", "target_waiting", "tolerance"]),
        ("hpa", {"target_waiting": "many"}, ["hpa", "target_waiting='many'", "a valid number"]),
        ("hpa", {"target_waiting": float("nan")}, ["target_waiting=nan", "a finite number"]),
        ("hpa", {"target_waiting": True}, ["target_waiting=True", "a valid number"]),
        ("hpa", {"target_waiting": None}, ["target_waiting=None", "a valid number"]),
        ("hpa", {"target_waiting": -1.0}, ["policy hpa", "target_waiting=-1.0", "greater than 0"]),
        ("knative", {"scale_to_zero": 1}, ["scale_to_zero=1", "a valid boolean"]),
        ("fixed", {"replicas": 2.5}, ["replicas=2.5", "a valid integer"]),
        ("ray_default", {"look_back_period_s": 10}, ["look_back_period_s=10.0", "metrics_interval_s"]),
    ],
)
def test_what_is_wrong_is_named(name: str, values: dict[str, Value], words: list[str]) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(name, values, REPLICA_PROFILE)
    for word in words:
        assert word in str(error.value)
