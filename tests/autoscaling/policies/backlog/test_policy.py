"""The policy in a simulated cell: what it does to real requests, and why it says it does."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaling.policies.backlog.policy import BacklogPolicy, BacklogSettings, sigmas
from autoscaling.policies.policy import Concern, PolicyReason, ReplicaProfile
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds, ScalingDecision
from autoscaling.signals.signals import Signals
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, SchedulingPolicy
from deployments.scheduling.replica import ReplicaStatus
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import plain_workload
from tests.autoscaling.scaler.moments import moment, replicas

COST = CostModel(line(0.025, 5e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
LIMITS = EngineModelLimits(32, 2_048, 120_000)
LANES = (LanePolicy("short", 2_048, 8, 10, 600), LanePolicy("long", None, 1, 60, 600))


def policy(measured: bool = True, start_up_s: float = 20.0, **settings: float) -> BacklogPolicy:
    return BacklogPolicy(
        BacklogSettings(**settings), ReplicaProfile(LIMITS, 4.0, COST if measured else None, start_up_s)
    )  # type: ignore[arg-type]


def outcome(
    phases: list[tuple[float, float]],
    bounds: Bounds,
    start_up_s: float = 20.0,
    measured: bool = True,
    replicas: int = 1,
    **settings: float,
) -> SimulationOutcome:
    """`phases`: requests a second for so many seconds."""
    rng, times, begin = np.random.default_rng(3), [], 0.0
    for rate, seconds in phases:
        count = rng.poisson(rate * seconds)
        times.append(begin + np.sort(rng.uniform(0, seconds, count)))
        begin += seconds
    arrived = np.concatenate(times)
    prompts = rng.lognormal(6.2, 0.8, len(arrived)).astype(np.int64).clip(1, 6_000)
    answers = rng.lognormal(5.5, 0.6, len(arrived)).astype(np.int64).clip(1, 2_000)
    scaling = SimulatedScaling(Autoscaler(policy(measured, start_up_s, **settings), bounds), begin)
    return CellSimulator(
        CellSettings(replicas, LIMITS, SchedulingPolicy(lanes=LANES), start_up_s=start_up_s, scaling=scaling),
        COST,
        plain_workload(arrived, prompts, answers, 2.0),
    ).run()


@pytest.mark.whole
@pytest.mark.parametrize("measured", [True, False])
def test_a_ramp_up_and_down_loses_nothing_and_ends_where_it_began(measured: bool) -> None:
    out = outcome([(1, 300), (10, 300), (1, 2_400)], Bounds(1, 8), measured=measured)
    assert not np.isnan(out.finished_s).any()
    maximum = max(decision.requested for decision in out.scalings)
    assert 4 <= maximum <= 8
    assert out.scalings[-1].applied <= 2
    assert {decision.reason for decision in out.scalings if decision.changes} <= {
        "demand",
        "backlog",
        "occupancy",
        "consolidate",
    }


@pytest.mark.whole
def test_a_burst_is_answered_within_seconds() -> None:
    out = outcome([(1, 300), (20, 60)], Bounds(1, 16))
    first = next(
        decision
        for decision in out.scalings
        if decision.changes and decision.requested > decision.applied and decision.at_s > 300
    )
    assert first.at_s < 310


@pytest.mark.whole
def test_steady_load_moves_nothing_once_it_is_known() -> None:
    out = outcome([(5, 2_100)], Bounds(1, 8), replicas=3)
    assert [decision for decision in out.scalings if decision.changes and decision.at_s > 900] == []


def test_nothing_arrives_and_the_last_goes_and_the_first_request_brings_one_back() -> None:
    out = outcome([(1, 120), (0, 700), (1, 60)], Bounds(0, 4), zero_after_s=120.0, down_after_s=60.0)
    changes = [(decision.requested, decision.policy_reason) for decision in out.scalings if decision.changes]
    assert (0, PolicyReason.IDLE) in changes
    assert any(policy_reason is PolicyReason.WAKE for _, policy_reason in changes)
    assert not np.isnan(out.finished_s).any()


def test_a_request_that_is_answered_elsewhere_at_once_wakes_a_model_at_zero() -> None:
    scaling = policy()
    answers = [scaling.decide(moment(float(at_s), ready=0, arrived_work=1_000.0 * (at_s > 2))) for at_s in (1, 2, 3)]
    assert [(one.replicas, one.policy_reason) for one in answers[1:]] == [
        (0, PolicyReason.STEADY),
        (1, PolicyReason.WAKE),
    ]


def test_a_start_that_takes_longer_than_the_last_replica_may_idle_is_not_given_up() -> None:
    scaling = policy(zero_after_s=300.0)
    answers = [
        scaling.decide(moment(float(second), ready=int(second > 700), applied=1, arrived_work=1_000.0 * (second > 0)))
        for second in range(0, 1_100, 10)
    ]
    assert [10 * number for number, one in enumerate(answers) if not one.replicas][:1] == [1_000]


def quiet_after(
    busy_s: int, until_s: int, bounds: Bounds, stray: float = 0.0, **settings: float
) -> list[ScalingDecision]:
    """Salvos of ten requests that are worth some seven replicas, and then next to nothing: `stray` requests a second.
    What is asked for is there at once. Every decision that changed the number."""
    scaler = Autoscaler(policy(start_up_s=20.0, **settings), bounds)
    rng = np.random.default_rng(5)
    arrived, number, changes = 0, bounds.maximum, []
    for second in range(until_s):
        arrived += 10 * int(rng.poisson(1.0)) if second < busy_s else int(rng.poisson(stray))
        now = moment(
            float(second), ready=number, arrived_work=2_000.0 * arrived, counted=arrived, output_tokens=300 * arrived
        )
        decision = scaler.decide(now.showing(flows=(replace(now.flows[0], arrived=arrived),)))
        if decision.changes:
            changes.append(decision)
        number = decision.requested
    return changes


@pytest.mark.whole
@pytest.mark.parametrize("minimum", [0, 1, 2])
def test_a_fleet_whose_traffic_stops_goes_home_by_halves_and_never_comes_back_for_nothing(minimum: int) -> None:
    changes = [one for one in quiet_after(1_200, 6_000, Bounds(minimum, 15)) if one.at_s >= 1_200]
    assert [one.requested for one in changes if one.requested > one.applied] == []
    assert changes[-1].requested == minimum
    for first, last in pairwise([one for one in changes if one.applied > 1]):
        assert last.at_s - first.at_s >= 600 or 2 * last.requested >= first.applied


@pytest.mark.whole
def test_idle_is_the_last_replicas_affair_alone() -> None:
    decisions = quiet_after(1_200, 6_000, Bounds(0, 15), zero_after_s=60.0)
    assert {one.applied for one in decisions if one.policy_reason is PolicyReason.IDLE} == {1}


@pytest.mark.whole
def test_a_load_that_swings_faster_than_replicas_start_makes_no_flap() -> None:
    out = outcome([(2, 60), (14, 60)] * 10, Bounds(1, 12), start_up_s=60.0, replicas=3)
    steps = [(decision.at_s, decision.requested - decision.applied) for decision in out.scalings if decision.changes]
    ups = [at_s for at_s, more in steps if more > 0]
    assert ups
    assert [at_s for at_s, more in steps if more < 0 and any(0 < at_s - up_s < 600 for up_s in ups)] == []


def test_what_an_unresponsive_replica_would_carry_is_asked_for_beside_it() -> None:
    heard, unheard = policy(start_up_s=10.0), policy(start_up_s=10.0)
    unresponsive = (*replicas(1), *replicas(1, ReplicaStatus.UNRESPONSIVE))
    for second in range(60):
        now = moment(float(second), arrived_work=40_000.0 * second, counted=40 * second, output_tokens=6_000 * second)
        without, beside = heard.decide(now).replicas, unheard.decide(now.showing(replicas=unresponsive)).replicas
    assert beside == without + 1


def test_an_unresponsive_replica_that_speaks_again_is_no_step_up() -> None:
    one = policy(start_up_s=10.0, down_after_s=60.0)
    unresponsive = (*replicas(4), *replicas(1, ReplicaStatus.UNRESPONSIVE))
    desired = []
    for second in range(600):
        now = moment(
            float(second), ready=5, arrived_work=100.0 * second, counted=2 * second, output_tokens=200 * second
        )
        desired.append(one.decide(now.showing(replicas=unresponsive) if second < 40 else now).replicas)
    assert desired[-1] == 3, "half of what was there"


def test_slos_that_are_missed_while_nothing_waits_bring_none_and_that_is_reported() -> None:
    one, reported = policy(start_up_s=10.0), []
    for second in range(300):
        now = moment(float(second), ready=2, arrived_work=100.0 * second)
        flow = replace(now.flows[0], arrived=second, met=second // 2, missed=second // 2)
        reported.append(one.decide(now.showing(flows=(flow,))))
    assert {desired.replicas for desired in reported} <= {1, 2}
    assert reported[-1].concern is Concern.NOTHING_WAITS


def test_a_backlog_that_one_replica_never_clears_brings_a_second_whatever_the_margin() -> None:
    """A load between one replica's capacity and a quarter more: the margin alone would let it wait for ever."""
    one, first = policy(start_up_s=20.0), None
    work, waiting = 0.0, 0.0
    for second in range(600):
        work += 3_000.0
        c = one.capacity.per_s or 3_000.0
        waiting += max(0.0, 0.1 * c)
        finished = int(work // 3_000)
        served = {
            "finished": finished,
            "counted": finished,
            "output_tokens": 300 * finished,
            "finished_work": work - waiting,
        }
        now = moment(float(second), 1, 1, waiting, work, **served)
        desired = one.decide(now.showing(replicas=replicas(1, sequences=32)))
        if desired.replicas > 1:
            first = desired
            break
    assert first is not None
    assert first.replicas == 2


def test_being_short_costs_more_where_starts_take_longer() -> None:
    settings = BacklogSettings()
    assert sigmas(settings, 0.0) == sigmas(settings, 60.0) < sigmas(settings, 120.0) < sigmas(settings, 600.0)


def test_without_any_load_nothing_is_added() -> None:
    quiet = policy()
    for second in range(600):
        assert quiet.decide(moment(float(second))).replicas <= 2


def test_a_backlog_that_the_starting_replicas_will_clear_asks_for_no_more() -> None:
    """Credited on the way up: asked again while they start, the policy wants no more than before."""
    asking = policy(start_up_s=60.0)
    work, applied, desired = 0.0, 2, []
    for second in range(120):
        work += 2_000.0 if second < 60 else 12_000.0
        waiting = max(0.0, 8_000.0 * (second - 60))
        answer = asking.decide(moment(float(second), ready=2, applied=applied, arrived_work=work, waiting_work=waiting))
        applied = max(applied, answer.replicas)
        desired.append(applied)
    assert desired[-1] <= 1.6 * desired[75]


KNOBS = {
    "utilisation": (st.floats(0.3, 1.0), -1),
    "short_cost": (st.floats(0.1, 10_000), 1),
    "down_after_s": (st.floats(0.0, 3_000.0), 1),
    "zero_after_s": (st.floats(0.0, 3_000.0), 1),
}
"""Each with what a larger value does to the number: 1 never fewer, -1 never more."""


def bad_day(seed: int) -> list[Signals]:
    """An hour or more in which everything changes: load, waiting requests, replicas that come and go."""
    rng = random.Random(seed)
    at_s, work, ended, applied, moments = 0.0, 0.0, 0, rng.randrange(0, 6), []
    for _ in range(rng.randrange(5, 30)):
        rate, sequences, waiting = (
            rng.choice([0.0, 0.0, 500.0, 3_000.0, 20_000.0]),
            rng.randrange(33),
            rng.random() < 0.2,
        )
        applied = rng.choice([applied, applied, rng.randrange(0, 12)])
        for _ in range(rng.randrange(1, 40)):
            at_s += rng.choice([1.0, 5.0, 30.0])
            work += rate
            ended += int(rate // 500)
            ready = max(0, applied - rng.choice([0, 0, 1]))
            served = {
                "finished": ended,
                "finished_work": 1_000.0 * ended,
                "counted": ended,
                "output_tokens": 200 * ended,
            }
            now = moment(at_s, ready=ready, applied=applied, arrived_work=work, waiting_work=waiting * 9e4, **served)
            moments.append(now.showing(replicas=replicas(ready, sequences=sequences)))
    return moments


@pytest.mark.whole
@pytest.mark.parametrize("knob", list(KNOBS))
@pytest.mark.parametrize("measured", [True, False])
@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1_000_000))
def test_with_the_same_signals_a_larger_knob_moves_the_number_in_one_direction(
    knob: str, measured: bool, data: st.DataObject, seed: int
) -> None:
    values, sign = KNOBS[knob]
    low, high = sorted((data.draw(values), data.draw(values)))
    less, more = (policy(measured, **{knob: value}) for value in (low, high))
    for signals in bad_day(seed):
        one, other = less.decide(signals).replicas, more.decide(signals).replicas
        assert sign * (other - one) >= 0, (signals.at_s, one, other)


@pytest.mark.whole
@pytest.mark.parametrize("measured", [True, False])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1_000_000))
def test_every_number_can_be_computed_again_from_its_terms(measured: bool, seed: int) -> None:
    """By the table of docs/autoscaling.md, from what `raylane explain` prints, and the numbers before."""
    one, knobs, applied_of_late = policy(measured), BacklogSettings(), list[tuple[float, int]]()
    for signals in bad_day(seed):
        desired = one.decide(signals)
        terms, applied = desired.terms, signals.applied
        applied_of_late.append((signals.at_s, applied))
        if "replica_work_per_s" in terms:
            rate, c, start_s = terms["rate"], terms["replica_work_per_s"], terms["start_up_s"]
            assert "occupancy" not in terms
            headroom = terms["sigmas"] * (rate * terms["noise"] / terms["residence_s"]) ** 0.5
            assert terms["demand"] == pytest.approx((rate + headroom) / (knobs.utilisation * c))
            if "backlog" in terms:
                assert terms["backlog"] == pytest.approx((rate + terms["backlog_then"] / max(60.0, start_s)) / c)
        needed = max(terms.get(name, 0.0) for name in ("demand", "occupancy", "backlog"))
        more = round_up(max(needed - 0.25, terms.get("backlog", 0.0)))
        span_s = max(knobs.down_after_s, terms["start_up_s"])
        most = max(number for at_s, number in applied_of_late if at_s >= signals.at_s - span_s)
        fewer = max(1, round_up(terms.get("needed_most", 0.0) + 0.25), round_up(most / 2))
        match desired.policy_reason:
            case PolicyReason.WAKE:
                assert (applied, desired.replicas) == (0, max(1, round_up(needed)))
            case PolicyReason.DEMAND | PolicyReason.OCCUPANCY | PolicyReason.BACKLOG:
                assert desired.replicas == more > applied
            case PolicyReason.IDLE:
                assert (applied, desired.replicas) == (1, 0)
            case PolicyReason.CONSOLIDATE:
                assert desired.replicas == fewer < applied
            case PolicyReason.COOLING:
                assert desired.replicas == applied
                assert "needed_most" not in terms or fewer >= applied
            case reason:
                assert reason is PolicyReason.STEADY
                assert desired.replicas == applied
                assert applied <= max(1, round_up(needed + 0.25))


def round_up(value: float) -> int:
    return math.ceil(value - 1e-9)
