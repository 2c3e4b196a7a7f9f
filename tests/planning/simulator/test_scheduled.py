"""Bounds by time of day in a simulated cell: replicas are ready when the entry begins, and Serve's pair, asked again
with the same signals, decides the same."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autoscaling.from_spec import setup_of
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import NextStart
from deployments.scheduling import LanePolicy, SchedulingPolicy
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import plain_workload
from tests.autoscaling.scaler.moments import moment
from tests.autoscaling.setups import Watched, spec_of
from tests.autoscaling.test_from_spec import COSTS

SCHEDULE = {
    "time_zone": "Europe/Berlin",
    "entries": [
        {"name": "office", "days": ["mon", "tue", "wed", "thu", "fri"], "begin": "08:00", "end": "08:30", "min": 4},
        {"name": "after", "begin": "08:30", "end": "09:00", "max": 1},
    ],
}
BEGINS_S = datetime(2026, 11, 23, 7, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
START_UP_S = 240.0
SPEC = spec_of("backlog", minimum=1, costs=str(COSTS), schedule=SCHEDULE, backlog={"down_after_s": 30})
MADE = setup_of(SPEC, SPEC.models[0], SPEC.regions[0], start_up_s=START_UP_S)


def watched_scaler() -> Watched:
    return Watched(MADE.policy.make(MADE.replica_profile), MADE.bounds, MADE.replica_profile.start_up_s)


@pytest.fixture(scope="module")
def watched() -> Watched:
    """From 07:30 to 09:00, a request every ten seconds."""
    scaler = watched_scaler()
    arrived = np.arange(0.0, 5_400.0, 10.0)
    lengths = np.full(len(arrived), 200)
    lanes = (LanePolicy("short", 2_048, 8, 10, 600), LanePolicy("long", None, 1, 60, 600))
    scaling = SimulatedScaling(scaler, 5_400.0, MADE.attainment, BEGINS_S)
    settings = CellSettings(
        1, MADE.replica_profile.limits, SchedulingPolicy(lanes=lanes), start_up_s=START_UP_S, scaling=scaling
    )
    assert MADE.replica_profile.cost is not None
    out = CellSimulator(settings, MADE.replica_profile.cost, plain_workload(arrived, lengths, lengths, 2.0)).run()
    assert isinstance(out, SimulationOutcome)
    return scaler


@pytest.mark.whole
def test_replicas_are_ready_when_the_hours_begin(watched: Watched) -> None:
    ready = {round(signals.at_s): signals.ready for signals, _ in watched.seen}
    raised_s = next(signals.at_s for signals, one in watched.seen if one.reason == "scheduled_min")
    assert 1_800.0 - START_UP_S - 2.0 <= raised_s < 1_800.0 - START_UP_S
    assert (ready[1_798 - int(START_UP_S)], ready[1_800], ready[3_590]) == (1, 4, 4)
    assert {one.scheduled for _, one in watched.seen if one.requested == 4} == {"office"}


def test_a_learned_start_up_time_moves_the_raise() -> None:
    """The next start is known to take ten minutes."""
    learned = watched_scaler()
    quiet = replace(moment(ready=1), next_start=NextStart((("load", 600.0),)))
    for second, requested in ((0, 1), (1, 1), (2, 4)):
        unix_s = BEGINS_S + 1_800.0 - 600.0 - 3.0 + second
        assert learned.decide(replace(quiet, at_s=float(second), unix_s=unix_s)).requested == requested


def test_a_lower_maximum_drains_what_is_above_it(watched: Watched) -> None:
    after = [one for signals, one in watched.seen if signals.unix_s >= BEGINS_S + 3_600.0 + 60.0]
    assert {one.requested for one in after} == {1}


@pytest.mark.whole
def test_serves_pair_decides_the_same_with_the_same_signals(watched: Watched) -> None:
    pair = Pair(MADE)
    for signals, decision in watched.seen:
        assert pair.decide(signals) == decision
