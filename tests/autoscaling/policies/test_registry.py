"""Policies by name, from plain values: what is wrong is named, with what is allowed."""

import pytest

from autoscaling.policies.backlog.policy import BacklogPolicy
from autoscaling.policies.registry import POLICIES, make_policy
from autoscaling.policies.settings import PolicyError, Value, settings_from
from tests.autoscaling.policies.moments import REPLICA_PROFILE


def test_a_policy_of_its_defaults() -> None:
    assert isinstance(make_policy("backlog", {}, REPLICA_PROFILE), BacklogPolicy)
    assert all(name == entry.name for name, entry in POLICIES.items())


def test_values_become_what_the_settings_want() -> None:
    given: dict[str, Value] = {"short_cost": 2, "trend": False}
    kept = settings_from("backlog", POLICIES["backlog"].settings, given)
    assert type(kept.short_cost) is float
    assert (kept.short_cost, kept.trend) == (2.0, False)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("backlogs", {}, ["backlogs", "backlog, fixed"]),
        ("backlog", {"short_costs": 3}, ["backlog", "short_costs=3", "short_cost", "utilisation"]),
        ("backlog", {"short_cost": "many"}, ["backlog", "short_cost='many'", "a valid number"]),
        ("backlog", {"short_cost": float("nan")}, ["short_cost=nan", "a finite number"]),
        ("backlog", {"short_cost": True}, ["short_cost=True", "true and false"]),
        ("backlog", {"short_cost": None}, ["short_cost=None", "a valid number"]),
        ("backlog", {"short_cost": -1.0}, ["policy backlog", "short_cost=-1.0", "greater than or equal to 0.01"]),
        ("backlog", {"trend": 1}, ["trend=1", "a valid boolean"]),
        ("fixed", {"replicas": 2.5}, ["replicas=2.5", "a valid integer"]),
    ],
)
def test_what_is_wrong_is_named(name: str, values: dict[str, Value], words: list[str]) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(name, values, REPLICA_PROFILE)
    for word in words:
        assert word in str(error.value)
