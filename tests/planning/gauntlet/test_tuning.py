"""The search: as many trials as it may, the defaults first, the same every time, within the ranges, and no worse than
chance."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from autoscaling.policies.fixed import FixedPolicy
from autoscaling.policies.policy import PolicyEntry
from autoscaling.policies.registry import POLICIES
from autoscaling.policies.settings import Range, Value, defaults_in, settings_from
from planning.gauntlet.frontier import TriedSettings
from planning.gauntlet.tuning import search


@dataclass(frozen=True)
class Knobs:
    """Of a toy: `reserve` buys attainment for hours, `waste` costs hours alone."""

    reserve: float = 9.0
    waste: float = 5.0
    unset: float | None = None
    steps: int = 2


ENTRY = PolicyEntry(
    "toy",
    Knobs,
    lambda settings, replica_profile: FixedPolicy(1),
    "a toy",
    {
        "reserve": Range(0, 3),
        "waste": Range(0.1, 10, log=True),
        "unset": Range(0, 1),
        "steps": Range(1, 9, integer=True),
    },
)


def judge(settings: Mapping[str, Value]) -> TriedSettings:
    knobs = settings_from("toy", Knobs, settings)
    return TriedSettings(settings, 1 - 0.1 / (1 + knobs.reserve), 1 + knobs.reserve + knobs.waste)


def test_a_search_of_few_trials_moves_what_matters_most() -> None:
    tried = search(replace(ENTRY, principal=("steps", "reserve")), 0.95, 5, 0, judge)
    assert [set(one.settings) for one in tried] == [set(), *[{"steps", "reserve"}] * 4]


def test_a_policy_that_has_a_setting_for_the_slo_gets_it() -> None:
    tried = search(replace(ENTRY, slo="reserve"), 0.95, 3, 0, judge, slo_s=7.0)
    assert tried[0].settings == {}
    reported = dict(tried[1].settings)
    assert reported.pop("reserve") == 3  # the range ends there
    assert (reported["waste"], reported["steps"]) == (5, 2)


def test_the_defaults_are_the_first_trial_and_all_trials_are_made() -> None:
    tried = search(ENTRY, 0.95, 12, 0, judge)
    assert len(tried) == 12
    assert tried[0].settings == {}
    for one in tried[1:]:
        assert set(one.settings) == set(ENTRY.search)
        for name, value in one.settings.items():
            assert isinstance(value, int | float)
            assert ENTRY.search[name].low <= value <= ENTRY.search[name].high
        assert isinstance(one.settings["steps"], int)


def test_the_same_search_finds_the_same() -> None:
    assert search(ENTRY, 0.95, 10, 3, judge) == search(ENTRY, 0.95, 10, 3, judge)


def test_it_finds_what_wastes_nothing() -> None:
    tried = search(ENTRY, 0.95, 60, 0, judge)
    assert min(one.replica_hours for one in tried if one.attainment >= 0.95) < 3.0


def test_one_trial_is_the_defaults() -> None:
    assert len(search(ENTRY, 0.95, 1, 0, judge)) == 1


@pytest.mark.parametrize("entry", POLICIES.values(), ids=list(POLICIES))
def test_every_policy_can_be_searched(entry: PolicyEntry) -> None:
    known = set(defaults_in(entry.settings))
    tried = search(entry, 0.9, 4, 0, lambda settings: TriedSettings(settings, 0.9 + 0.01 * len(settings), 1.0))
    assert len(tried) == (4 if entry.search else 1)
    assert all(set(one.settings) <= known for one in tried)
