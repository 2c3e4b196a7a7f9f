"""Verdicts: what dominates, what ties, what loses and by how much; regrets and cliffs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from planning.gauntlet.results import Point
from planning.gauntlet.verdict import RivalVerdict, cliffs, interval, judge, regret
from tests.planning.gauntlet.small import contest_like, point_like, results_like, score_like

CHEAP = point_like([0.960, 0.962, 0.961], [1.50, 1.52, 1.51])
DEAR = point_like([0.990, 0.991, 0.992], [2.50, 2.52, 2.51])


def outcome(rival: list[tuple[list[float], list[float]]]) -> RivalVerdict:
    contest = contest_like({"backlog": [CHEAP, DEAR], "hpa": [point_like(*one) for one in rival]})
    (found,) = judge(contest, "backlog")
    return found.verdict


def test_an_interval_is_students() -> None:
    found = interval(np.array([1.0, 2.0, 3.0]))
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.3027 * 1 / math.sqrt(3), rel=1e-4)
    assert not found.above
    assert interval(np.array([1.0, 1.01, 0.99])).above
    assert interval(np.array([0.0, 0.0])).half == 0
    assert interval(np.array([-0.5, -0.5])).below


def test_better_as_good_and_worse() -> None:
    assert outcome([([0.95, 0.95, 0.95], [1.9, 1.9, 1.9])]) is RivalVerdict.DOMINATES
    assert outcome([([0.960, 0.962, 0.961], [1.50, 1.52, 1.51])]) is RivalVerdict.TIES
    assert outcome([([0.97, 0.90, 0.99], [1.4, 1.7, 1.5])]) is RivalVerdict.TIES  # all within the interval
    assert outcome([([0.98, 0.98, 0.98], [1.2, 1.2, 1.2])]) is RivalVerdict.LOSES
    assert (
        outcome([([0.95, 0.95, 0.95], [1.9, 1.9, 1.9]), ([0.995, 0.995, 0.995], [2.0, 2.0, 2.0])]) is RivalVerdict.LOSES
    )
    assert outcome([([0.3, 0.3, 0.3], [0.2, 0.2, 0.2])]) is RivalVerdict.ALONE


def test_a_cheap_point_that_misses_the_slo_is_told_apart() -> None:
    assert outcome([([0.90, 0.90, 0.90], [0.9, 0.9, 0.9])]) is RivalVerdict.BELOW
    assert outcome([([0.90, 0.90, 0.90], [0.1, 0.1, 0.1]), ([0.98, 0.98, 0.98], [1.2, 1.2, 1.2])]) is RivalVerdict.LOSES


def test_one_play_says_nothing_of_others() -> None:
    found = interval(np.array([-0.5]))
    assert math.isinf(found.half)
    assert not found.below
    contest = contest_like({"backlog": [point_like([0.96], [2.0])], "hpa": [point_like([0.99], [1.0])]})
    assert [one.verdict for one in judge(contest, "backlog")] == [RivalVerdict.TIES]


def test_of_two_losses_the_greater_share_is_told() -> None:
    """A tenth of an hour in ten is less than two points of attainment."""
    rival = [point_like([0.97] * 3, [9.9] * 3), point_like([0.99] * 3, [10.0] * 3)]
    (found,) = judge(contest_like({"backlog": [point_like([0.97] * 3, [10.0] * 3)], "hpa": rival}), "backlog")
    assert found.verdict is RivalVerdict.LOSES
    assert found.point == 1


def test_a_loss_says_by_how_much() -> None:
    contest = contest_like({"backlog": [CHEAP, DEAR], "hpa": [point_like([0.961] * 3, [1.0] * 3)]})
    (found,) = judge(contest, "backlog")
    assert found.hours is not None
    assert found.hours.mean == pytest.approx(0.51, abs=0.01)


def test_a_fixed_number_is_no_rival() -> None:
    assert judge(contest_like({"backlog": [CHEAP], "fixed": [point_like([1.0] * 3, [0.1] * 3)]}), "backlog") == []


def test_the_oracle_is_never_dearer_than_a_run_that_met_the_slo() -> None:
    contest = contest_like({"backlog": [point_like([0.96, 0.90, 0.96], [0.7, 0.6, 1.4])]})
    assert contest.oracle_hours.tolist() == [0.7, 1.0, 1.0]


def test_a_regret_adds_up() -> None:
    contests = [contest_like({"backlog": [DEAR]}), contest_like({"backlog": [CHEAP]})]
    found = regret(contests, "backlog")
    assert found is not None
    assert found.oracle + found.unavoidable + found.ours == pytest.approx(found.hours)
    assert found.oracle == pytest.approx(2.0)
    assert found.unavoidable == pytest.approx(0.4)
    assert found.share == pytest.approx((found.hours - 2.4) / 2.0)
    assert regret(contests, "nobody") is None


def test_a_cliff_is_the_first_step_under_the_slo() -> None:
    results = results_like(
        contest_like({"backlog": [DEAR]}, "start_up_0"),
        contest_like({"backlog": [CHEAP]}, "start_up_60"),
        contest_like({"backlog": [point_like([0.9] * 3, [1.0] * 3)]}, "start_up_300"),
    )
    steps = {"start_up_300": 300.0, "start_up_0": 0.0, "start_up_60": 60.0}
    found, cliff = cliffs(results, steps, "backlog")
    assert [value for value, _ in found] == [0.0, 60.0, 300.0]
    assert cliff == 300.0
    assert math.isinf(cliffs(results, {"start_up_0": 0.0}, "backlog")[1])


def test_a_policy_that_nobody_asked_anything_of_met_its_slo() -> None:
    quiet = Point({}, (replace(score_like(1.0, 0.5), requests=0),) * 2)
    found = regret([contest_like({"backlog": [quiet]})], "backlog")
    assert found is not None
    assert found.attainment == 1.0
