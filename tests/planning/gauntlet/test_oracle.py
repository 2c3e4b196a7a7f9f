"""What knows the future meets the SLO and is cheap; what knows only the rate is not cheaper for long."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaling.policies.registry import make_policy
from planning.gauntlet.known_rate import Form, Headroom, outcome, tuned
from planning.gauntlet.oracle import Oracle, demand_of
from planning.gauntlet.run import outcome_of, replica_profile_of, score_of
from planning.gauntlet.serving import LoadCurve
from tests.planning.gauntlet.small import small_run

pytestmark = pytest.mark.whole

TARGET = 0.95


def test_demand_is_about_the_load() -> None:
    run = small_run()
    demand = demand_of(run)
    assert len(demand) == 42
    assert demand.mean() == pytest.approx(run.load.mean, rel=0.25)
    assert demand[18:26].mean() > 2.5 * demand[:12].mean()


def test_the_oracle_meets_the_slo_and_more_simulations_find_no_worse() -> None:
    run = small_run()
    maximum = score_of(
        run, outcome_of(run, make_policy("fixed", {"replicas": 6}, replica_profile_of(run)), TARGET), TARGET
    )
    few, many = (Oracle(run, TARGET, sims).best() for sims in (7, 40))
    for found in (few, many):
        assert found.score.attainment >= TARGET
        assert found.score.replica_hours < 0.6 * maximum.replica_hours
    assert many.score.replica_hours <= few.score.replica_hours + 1e-9


def test_the_oracle_is_the_same_every_time() -> None:
    first, second = (Oracle(small_run(), TARGET, 16).best() for _ in range(2))
    np.testing.assert_array_equal(first.needed, second.needed)


def test_where_the_slo_cannot_be_met_the_maximum_runs() -> None:
    run = small_run(start_up_s=300.0)
    found = Oracle(run, 0.99999, 20).best()
    assert found.needed.max() == run.bounds.maximum


def test_the_known_rate_meets_the_slo_where_it_was_tuned() -> None:
    runs = [small_run(seed) for seed in (1, 2)]
    headroom = tuned(runs, TARGET, 4)
    attained = [outcome(run, headroom, TARGET).score.attainment for run in runs]
    assert float(np.mean(attained)) >= TARGET
    assert outcome(small_run(), headroom, TARGET).score.attainment > 0.9


def test_the_known_rate_meets_the_slo_where_that_takes_many_times_the_rate() -> None:
    run = small_run()
    quiet = replace(run, load=LoadCurve(run.load.replicas / 12))
    headroom = tuned([quiet], TARGET, 1)
    assert headroom.h > 4
    assert outcome(quiet, headroom, TARGET).score.attainment >= TARGET


def test_headroom_is_more_than_the_load() -> None:
    run = small_run()
    for form in Form:
        needed = Headroom(form, 1.5).needed(run)
        assert needed[20] >= 3
        assert (needed >= Headroom(form, 1.0).needed(run)).all()
