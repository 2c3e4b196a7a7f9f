"""Running traffic with settings: the same policy and autoscaler as anywhere, whole or in parts; runs end early where
they can come to nothing."""

import math
import time
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from autoscaling.forecast.history import A_DAY, History
from planning.tune.case import case_of, own_and_defaults, parts_of, space_of
from planning.tune.trial import Candidate, TrialResult
from planning.tune.trial_runner import OutOfTime, TrialRunner
from tests.planning.tune import cases

pytestmark = pytest.mark.whole

FOR_EVER = math.inf


@pytest.fixture(scope="module")
def runner() -> TrialRunner:
    return TrialRunner(cases.case(span_s=1_800.0), time.monotonic)


@pytest.fixture(scope="module")
def long_runner() -> TrialRunner:
    """Of more than eight hours, long enough to be cut into parts: half an hour on engines that are as much slower."""
    slower = 18
    work = cases.work(1_800.0)
    work = replace(work, arrived_s=slower * work.arrived_s, ttft_slo_s=slower * work.ttft_slo_s)
    spec = cases.spec(cases.TEXT.replace("  policy: backlog\n", "  policy: backlog\n  period_s: 10\n"))
    made = TrialRunner(case_of(spec, spec.models[0], cases.costs(slower), work, start_up_s=60.0), time.monotonic)
    assert len(parts_of(made.load, made.case.span_s)) > 1
    return made


@pytest.fixture(scope="module")
def long_whole(long_runner: TrialRunner) -> TrialResult:
    """All of them, with a lean policy."""
    return long_runner.exact(lean(), FOR_EVER)


def own() -> Candidate:
    spec = cases.spec()
    found, _ = own_and_defaults(spec, spec.models[0])
    assert found is not None
    return found


def lean() -> Candidate:
    return Candidate({**own().settings, "utilisation": 1.0, "short_cost": 1.0, "down_after_s": 30.0}, 1)


def test_the_whole_is_scored(runner: TrialRunner) -> None:
    outcome = runner.exact(own(), FOR_EVER)
    assert outcome.exact is not None
    assert not outcome.stopped
    assert outcome.classes["interactive"][0] == len(runner.case.work)
    requests, kept = outcome.exact.slots["interactive"]
    assert (requests.sum(), kept.sum()) == outcome.classes["interactive"]
    assert outcome.exact.replicas.mean() == pytest.approx(outcome.exact.mean_replicas, rel=0.02)
    assert outcome.exact.replicas.min() >= 1.9


def test_a_fixed_number_is_a_run_without_an_autoscaler() -> None:
    fixed = TrialRunner(cases.case(cases.TEXT.split("autoscaling:")[0], 1_800.0), time.monotonic)
    outcome = fixed.exact(None, FOR_EVER, to_the_end=True)
    assert outcome.exact is not None
    assert outcome.replica_hours == pytest.approx(2 * fixed.case.span_s / 3600)
    assert outcome.exact.changes == 0


def test_a_first_look_estimates_the_whole(
    runner: TrialRunner, long_runner: TrialRunner, long_whole: TrialResult
) -> None:
    """Short traffic at a slower pace, and parts of long traffic."""
    for of, candidate, whole in ((runner, own(), runner.exact(own(), FOR_EVER)), (long_runner, lean(), long_whole)):
        look = of.draft(candidate, FOR_EVER)
        assert look.exact is None
        assert look.replica_hours == pytest.approx(whole.replica_hours, rel=0.15)
        assert look.classes["interactive"][0] == pytest.approx(whole.classes["interactive"][0], rel=0.3)
        assert look.attainment == pytest.approx(whole.attainment, abs=0.02)
    assert long_runner.draft(own(), FOR_EVER).replica_hours > 1.15 * long_whole.replica_hours, "the dearer settings"


def test_what_breaks_far_too_much_is_not_played_to_its_end(runner: TrialRunner) -> None:
    starved = replace(
        runner.case, setup=replace(runner.case.setup, bounds=replace(runner.case.setup.bounds, minimum=1, maximum=1))
    )
    outcome = TrialRunner(starved, time.monotonic).exact(Candidate(own().settings, 1), FOR_EVER)
    assert outcome.stopped
    assert outcome.exact is None
    assert outcome.slack(starved.setup.attainment) < -0.05
    assert (
        TrialRunner(starved, time.monotonic).exact(Candidate(own().settings, 1), FOR_EVER, to_the_end=True).exact
        is not None
    )


def test_what_costs_far_too_much_is_not_either(
    runner: TrialRunner, long_runner: TrialRunner, long_whole: TrialResult
) -> None:
    assert runner.exact(own(), FOR_EVER, max_hours=1.0).stopped
    look = long_runner.draft(lean(), FOR_EVER, max_hours=0.6 * long_whole.replica_hours)
    assert look.stopped
    assert look.replica_hours == pytest.approx(long_whole.replica_hours, rel=0.5)


def test_time_ends_a_run() -> None:
    ticks = iter(np.arange(0.0, 1e6))
    with pytest.raises(OutOfTime):
        TrialRunner(cases.case(span_s=1_800.0), lambda: float(next(ticks))).exact(own(), 1.0)


def test_a_schedule_is_followed_and_not_searched() -> None:
    """The traffic begins half an hour before the hours do."""
    entries = "[{name: busy, begin: '08:00', end: '08:20', min: 6}, {name: low, begin: '09:00', max: 3}]"
    replicas = f"{{count: 2, min: 2, max: 8, schedule: {{time_zone: Asia/Kolkata, entries: {entries}}}}}"
    spec = cases.spec(cases.TEXT.replace("{count: 2, min: 2, max: 8}", replicas))
    begins_s = datetime.fromisoformat("2026-11-23T07:50+05:30").timestamp()
    case = case_of(spec, spec.models[0], cases.costs(), cases.work(1_800.0), 60.0, start_unix_s=begins_s)
    own, defaults = own_and_defaults(spec, spec.models[0])
    assert space_of(case, own, defaults).minimum[1] <= 3
    exact = TrialRunner(case, lambda: 0.0).exact(defaults, math.inf, to_the_end=True).exact
    assert exact is not None
    assert exact.replicas[2:5].min() >= 5.9
    assert exact.replicas[0] < 5


def test_a_seasonal_forecast_is_made_of_the_days_before(runner: TrialRunner) -> None:
    text = cases.TEXT.replace("  policy: backlog\n", "  policy: backlog\n  forecast: seasonal\n")
    case = cases.case(text, 1_800.0)
    assert case.history == History(0, ())
    known = replace(case, history=History(-A_DAY, (20_000.0,) * A_DAY))
    foretold = TrialRunner(known, time.monotonic).exact(lean(), FOR_EVER)
    assert foretold.replica_hours > 1.1 * TrialRunner(case, time.monotonic).exact(lean(), FOR_EVER).replica_hours
