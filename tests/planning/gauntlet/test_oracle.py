"""What knows the future keeps the promise and is cheap; what knows only the rate is not cheaper for long."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaling.laws.registry import make_law
from planning.gauntlet.known_rate import Form, Headroom, played, tuned
from planning.gauntlet.oracle import Oracle, demand_of
from planning.gauntlet.run import outcome_of, plant_of, score_of
from planning.gauntlet.serving import Load
from tests.planning.gauntlet.small import small_play

pytestmark = pytest.mark.whole

TARGET = 0.95


def test_demand_is_about_the_load() -> None:
    play = small_play()
    demand = demand_of(play)
    assert len(demand) == 42
    assert demand.mean() == pytest.approx(play.load.mean, rel=0.25)
    assert demand[18:26].mean() > 2.5 * demand[:12].mean()


def test_the_oracle_keeps_the_promise_and_more_simulations_find_no_worse() -> None:
    play = small_play()
    most = score_of(play, outcome_of(play, make_law("fixed", {"replicas": 6}, plant_of(play)), TARGET), TARGET)
    few, many = (Oracle(play, TARGET, sims).best() for sims in (7, 40))
    for found in (few, many):
        assert found.score.attainment >= TARGET
        assert found.score.replica_hours < 0.6 * most.replica_hours
    assert many.score.replica_hours <= few.score.replica_hours + 1e-9


def test_the_oracle_is_the_same_every_time() -> None:
    first, second = (Oracle(small_play(), TARGET, 16).best() for _ in range(2))
    np.testing.assert_array_equal(first.needed, second.needed)


def test_where_the_promise_cannot_be_kept_the_most_replicas_are_played() -> None:
    play = small_play(start_up_s=300.0)
    found = Oracle(play, 0.99999, 20).best()
    assert found.needed.max() == play.bounds.most


def test_the_known_rate_keeps_the_promise_where_it_was_tuned() -> None:
    plays = [small_play(seed) for seed in (1, 2)]
    headroom = tuned(plays, TARGET, 4)
    attained = [played(play, headroom, TARGET).score.attainment for play in plays]
    assert float(np.mean(attained)) >= TARGET
    assert played(small_play(), headroom, TARGET).score.attainment > 0.9


def test_the_known_rate_keeps_the_promise_where_that_takes_many_times_the_rate() -> None:
    play = small_play()
    quiet = replace(play, load=Load(play.load.replicas / 12))
    headroom = tuned([quiet], TARGET, 1)
    assert headroom.h > 4
    assert played(quiet, headroom, TARGET).score.attainment >= TARGET


def test_headroom_is_more_than_the_load() -> None:
    play = small_play()
    for form in Form:
        needed = Headroom(form, 1.5).needed(play)
        assert needed[20] >= 3
        assert (needed >= Headroom(form, 1.0).needed(play)).all()
