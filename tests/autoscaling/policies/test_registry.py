"""Policies by name, from plain values: what is wrong is named, with what is allowed."""

from pathlib import Path

import pytest

from autoscaling.policies.backlog.policy import BacklogPolicy
from autoscaling.policies.registry import POLICIES, make_policy
from autoscaling.policies.settings import PolicyError, Value, settings_from
from tests.autoscaling.outside import install_mine
from tests.autoscaling.policies.moments import REPLICA_PROFILE, moment


def test_a_policy_of_its_defaults() -> None:
    assert isinstance(make_policy("backlog", {}, REPLICA_PROFILE), BacklogPolicy)
    assert all(name == entry.name for name, entry in POLICIES.items())


def test_values_become_what_the_settings_want() -> None:
    given: dict[str, Value] = {"short_cost": 2, "utilisation": 0.5}
    kept = settings_from("backlog", POLICIES["backlog"].settings, given)
    assert type(kept.short_cost) is float
    assert (kept.short_cost, kept.utilisation) == (2.0, 0.5)


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
        ("fixed", {"replicas": 2.5}, ["replicas=2.5", "a valid integer"]),
    ],
)
def test_what_is_wrong_is_named(name: str, values: dict[str, Value], words: list[str]) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(name, values, REPLICA_PROFILE)
    for word in words:
        assert word in str(error.value)


def test_a_policy_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_mine(tmp_path, monkeypatch)
    made = make_policy("mine", {"replicas": 3}, REPLICA_PROFILE)
    assert made.decide(moment(ready=1)).replicas == 3
    for name, words in (("other", "no PolicyEntry"), ("others", "allowed: backlog, fixed, mine, other")):
        with pytest.raises(PolicyError, match=words):
            make_policy(name, {}, REPLICA_PROFILE)
