"""The law in a simulated cell: what it does to real requests, and why it says it does."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaling.laws.backlog.law import BacklogLaw
from autoscaling.laws.backlog.settings import BacklogSettings, settings_of
from autoscaling.laws.law import Motive, Plant
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.bounds import Bounds
from autoscaling.signals.signals import ReplicaState
from autoscaling.simulator.cell import Cell, CellSettings
from autoscaling.simulator.outcome import Outcome
from autoscaling.simulator.scaling import Scaling
from autoscaling.simulator.workload import plain_workload
from cluster.spec import Backlog
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import Limits
from deployments.scheduling import LanePolicy, Policy
from tests.autoscaling.scaler.moments import moment, replicas

COST = CostModel(line(0.025, 5e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
LIMITS = Limits(32, 2_048, 120_000)
LANES = (LanePolicy("short", 2_048, 8, 10, 600), LanePolicy("long", None, 1, 60, 600))


def law(measured: bool = True, start_up_s: float = 20.0, **settings: float) -> BacklogLaw:
    return BacklogLaw(BacklogSettings(**settings), Plant(LIMITS, 4.0, COST if measured else None, start_up_s))  # type: ignore[arg-type]


def played(
    phases: list[tuple[float, float]], bounds: Bounds, start_up_s: float = 20.0, measured: bool = True, replicas: int = 1, **settings: float
) -> Outcome:
    """`phases`: requests a second for so many seconds."""
    rng, times, begin = np.random.default_rng(3), [], 0.0
    for rate, seconds in phases:
        count = rng.poisson(rate * seconds)
        times.append(begin + np.sort(rng.uniform(0, seconds, count)))
        begin += seconds
    arrived = np.concatenate(times)
    prompts = rng.lognormal(6.2, 0.8, len(arrived)).astype(np.int64).clip(1, 6_000)
    answers = rng.lognormal(5.5, 0.6, len(arrived)).astype(np.int64).clip(1, 2_000)
    scaling = Scaling(Autoscaler(law(measured, start_up_s, **settings), bounds), begin, start_up_s=(start_up_s,))
    return Cell(CellSettings(replicas, LIMITS, Policy(lanes=LANES), scaling=scaling), COST, plain_workload(arrived, prompts, answers, 2.0)).run()


@pytest.mark.whole
@pytest.mark.parametrize("measured", [True, False])
def test_a_ramp_up_and_down_loses_nothing_and_ends_where_it_began(measured: bool) -> None:
    out = played([(1, 300), (10, 300), (1, 900)], Bounds(1, 8), measured=measured)
    assert not np.isnan(out.finished_s).any()
    most = max(decision.requested for decision in out.scalings)
    assert 4 <= most <= 8
    assert out.scalings[-1].applied <= 2
    assert {decision.reason for decision in out.scalings if decision.changes} <= {"demand", "backlog", "occupancy", "consolidate", "slo_burn"}


def test_a_burst_is_answered_within_seconds() -> None:
    out = played([(1, 300), (20, 60)], Bounds(1, 16))
    first = next(decision for decision in out.scalings if decision.changes and decision.requested > decision.applied and decision.at_s > 300)
    assert first.at_s < 310


@pytest.mark.whole
def test_steady_load_moves_nothing_once_it_is_known() -> None:
    out = played([(5, 3_600)], Bounds(1, 8), replicas=3)
    assert [decision for decision in out.scalings if decision.changes and decision.at_s > 900] == []


def test_nothing_arrives_and_the_last_goes_and_the_first_request_brings_one_back() -> None:
    out = played([(1, 120), (0, 700), (1, 60)], Bounds(0, 4), zero_after_s=120.0, down_after_s=60.0)
    changes = [(decision.requested, decision.motive) for decision in out.scalings if decision.changes]
    assert (0, Motive.IDLE) in changes
    assert any(motive is Motive.WAKE for _, motive in changes)
    assert not np.isnan(out.finished_s).any()


@pytest.mark.whole
def test_a_load_that_swings_faster_than_replicas_start_makes_no_flap() -> None:
    out = played([(2, 60), (14, 60)] * 20, Bounds(1, 12), start_up_s=60.0, replicas=3)
    steps = [(decision.at_s, decision.requested - decision.applied) for decision in out.scalings if decision.changes]
    ups = [at_s for at_s, more in steps if more > 0]
    assert ups
    assert [at_s for at_s, more in steps if more < 0 and any(0 < at_s - up_s < 600 for up_s in ups)] == []


def test_what_a_silent_replica_would_carry_is_asked_for_beside_it() -> None:
    heard, unheard = law(start_up_s=10.0), law(start_up_s=10.0)
    silent = (*replicas(1), *replicas(1, ReplicaState.SILENT))
    for second in range(60):
        now = moment(float(second), arrived_work=40_000.0 * second, counted=40 * second, output_tokens=6_000 * second)
        without, beside = heard.decide(now).replicas, unheard.decide(replace(now, replicas=silent)).replicas
    assert beside == without + 1


def test_a_silent_replica_that_speaks_again_is_no_step_up() -> None:
    one = law(start_up_s=10.0, down_after_s=60.0)
    silent = (*replicas(4), *replicas(1, ReplicaState.SILENT))
    wanted = []
    for second in range(200):
        now = moment(float(second), ready=5, arrived_work=100.0 * second, counted=2 * second, output_tokens=200 * second)
        wanted.append(one.decide(replace(now, replicas=silent) if second < 40 else now).replicas)
    assert wanted[-1] == 1


@pytest.mark.parametrize("sequences", [20, 30, 33, 35])
def test_missed_promises_bring_a_replica_where_the_need_is_covered_and_where_the_margin_holds_it_back(sequences: int) -> None:
    one, calm = law(start_up_s=10.0, occupancy=1.0), law(start_up_s=10.0, occupancy=1.0)
    for second in range(200):
        now = moment(float(second), ready=1, arrived_work=100.0 * second)
        now = replace(now, replicas=(replace(now.replicas[0], sequences=sequences),))
        missing = replace(now, flows=(replace(now.flows[0], kept=second, missed=second),))
        held, wanted = calm.decide(now), one.decide(missing)
    assert held.terms["occupancy"] == pytest.approx(sequences / 32, rel=0.05)
    assert (held.replicas, wanted.replicas, wanted.motive) == (1, 2, Motive.SLO_BURN)


def test_being_short_costs_more_where_starts_take_longer() -> None:
    settings = BacklogSettings()
    assert settings.sigmas(0.0) == settings.sigmas(60.0) < settings.sigmas(120.0) < settings.sigmas(600.0)


def test_without_any_load_nothing_is_added() -> None:
    quiet = law()
    for second in range(600):
        assert quiet.decide(moment(float(second))).replicas <= 2


def test_a_backlog_that_the_starting_replicas_will_clear_asks_for_no_more() -> None:
    """Credited on the way up: asked again while they start, the law wants no more than before."""
    asking = law(start_up_s=60.0)
    work, applied, wanted = 0.0, 2, []
    for second in range(120):
        work += 2_000.0 if second < 60 else 12_000.0
        waiting = max(0.0, 8_000.0 * (second - 60))
        answer = asking.decide(moment(float(second), ready=2, applied=applied, arrived_work=work, waiting_work=waiting))
        applied = max(applied, answer.replicas)
        wanted.append(applied)
    assert wanted[-1] <= 1.6 * wanted[75]


def test_the_specs_knobs_are_the_laws() -> None:
    assert settings_of(Backlog(), 1.0) == BacklogSettings()
    assert settings_of(Backlog(utilisation=0.5), 2.0) == BacklogSettings(utilisation=0.5, period_s=2.0)
