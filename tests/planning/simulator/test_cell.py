"""The simulated cell: deterministic, with books that balance, and with the production scheduler inside."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from cluster.spec import DEFAULT_GROUP
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import LanePolicy, Order, RejectCause, Scheduler, SchedulingPolicy
from deployments.scheduling.itl_cap import ItlTarget
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import CAUSES
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import Workload, plain_workload
from tests.autoscaling.scaler.test_autoscaler import Says

COST = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10), line(0.003, 1e-4), 0.002)
LIMITS = EngineModelLimits(sequences=16, step_tokens=512, kv_tokens=30_000)
LANES = (LanePolicy("short", 256, 8, 10), LanePolicy("long", None, 1, 30))


def workload(count: int, rate: float, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    prompt = np.minimum(rng.lognormal(5, 1.2, count).astype(np.int64) + 1, 4_000)
    return plain_workload(np.cumsum(rng.exponential(1 / rate, count)), prompt, rng.integers(1, 150, count))


def settings(replicas: int = 3, **policy: object) -> CellSettings:
    return CellSettings(replicas, LIMITS, SchedulingPolicy(LANES, **policy))  # type: ignore[arg-type]


def one_replica() -> SimulatedScaling:
    return SimulatedScaling(Autoscaler(Says(1), Bounds(1, 1)), 0.0)


@pytest.mark.whole
@pytest.mark.parametrize("rate", [20.0, 200.0])
def test_everything_that_arrives_ends(rate: float) -> None:
    cell = CellSimulator(settings(), COST, workload(1_500, rate))
    out = cell.run()
    assert isinstance(cell.scheduler, Scheduler)
    finished = ~np.isnan(out.finished_s)
    assert (finished | out.rejected | out.expired).all()
    assert not (finished & (out.rejected | out.expired)).any()
    assert (out.first_s[finished] > out.placed_s[finished]).all()
    assert (out.finished_s[finished] >= out.first_s[finished]).all()
    snapshot = cell.scheduler.snapshot(out.ended_s)
    assert snapshot.placed == snapshot.endings["finished"] == finished.sum()
    assert all(engine.running == engine.waiting == 0 and engine.kv_usage == 0 for engine in cell.engines)


@pytest.mark.whole
def test_short_ones_do_not_wait_for_long_ones() -> None:
    work = workload(3_000, 120.0)
    short = work.prompt_tokens + work.output_tokens <= 256
    lanes = CellSimulator(settings(), COST, work).run()
    fifo = CellSimulator(
        CellSettings(3, LIMITS, SchedulingPolicy((LanePolicy("all"),), order=Order.ARRIVAL)), COST, work
    ).run()
    assert np.nanpercentile(lanes.ttft_s[short], 99) < 0.5 * np.nanpercentile(fifo.ttft_s[short], 99)


@pytest.mark.whole
def test_a_failed_replica_takes_its_requests_along_and_is_replaced() -> None:
    work = workload(2_000, 60.0)
    cell = CellSimulator(replace(settings(), start_up_s=5.0), COST, work)
    cell.at(10.0, lambda now: cell.fleet.fail(cell.replicas[1], now))
    out = cell.run()
    assert 0 < out.failed.sum() <= 2 * LIMITS.sequences
    assert (out.replica[out.failed] == 1).all()
    assert (np.isfinite(out.finished_s) ^ out.rejected ^ out.expired ^ out.failed).all()
    assert [life.started_s for life in out.lifetimes] == [0, 0, 0, 10.0]
    assert out.lifetimes[1].ended_s == 10.0
    assert out.lifetimes[3].ready_s == 15.0
    placed_on_the_new_one = out.placed_s[out.replica == 3]
    assert len(placed_on_the_new_one)
    assert placed_on_the_new_one.min() >= 15.0


@pytest.mark.whole
def test_a_draining_replica_finishes_what_it_has() -> None:
    work = workload(2_000, 60.0)
    cell = CellSimulator(settings(), COST, work)
    cell.at(8.0, lambda now: cell.fleet.start(cell.fleet.kinds[DEFAULT_GROUP], now, 2.0))
    cell.at(10.0, lambda now: cell.fleet.drain(cell.replicas[1], now))
    out = cell.run()
    assert np.isfinite(out.finished_s).all()
    drained = out.replica == 1
    assert out.placed_s[drained].max() <= 10.0
    assert out.lifetimes[1].ended_s == pytest.approx(out.finished_s[drained].max())
    assert out.replica_s == pytest.approx(sum(life.ended_s - life.started_s for life in out.lifetimes))


def test_who_cannot_wait_for_the_start_is_turned_away() -> None:
    """Requests of a patience of 20 s, and a start that takes 30 s: those of the first seconds go elsewhere, the later
    ones wait."""
    waiting = replace(settings(replicas=0), patience_s={"interactive": 20.0})
    work = workload(600, 20.0)
    reported = CellSimulator(replace(waiting, start_up_s=30.0, scaling=one_replica()), COST, work).run()
    early = reported.arrived_s < 10.0
    assert (reported.cause[early] == CAUSES.index(RejectCause.STARTING)).all()
    assert np.isfinite(reported.finished_s[reported.arrived_s > 10.5]).any()
    silent = CellSimulator(waiting, COST, work)
    silent.at(0.0, lambda now: silent.fleet.start(silent.fleet.kinds[DEFAULT_GROUP], now, 30.0))
    untold = silent.run()
    assert untold.expired[early].all()
    assert not untold.rejected.any()


def test_a_fleet_that_leaves_turns_away_what_waits() -> None:
    waiting = replace(settings(replicas=1), start_up_s=40.0, queue_wait_s=20.0, scaling=one_replica())
    cell = CellSimulator(waiting, COST, workload(400, 100.0))
    cell.at(3.0, lambda now: cell.fleet.fail(cell.replicas[0], now))
    out = cell.run()
    turned_away = out.cause == CAUSES.index(RejectCause.STARTING)
    assert (turned_away & (out.arrived_s < 3.0)).any(), "those that waited when it failed"
    assert (np.isfinite(out.finished_s) ^ out.rejected ^ out.expired ^ out.failed).all()
    snapshot = cell.scheduler.snapshot(out.ended_s)
    assert sum(count for (_, cause), count in snapshot.rejections.items() if cause == "starting") == turned_away.sum()


def test_a_request_that_no_engine_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="KV cache"):
        CellSimulator(settings(), COST, plain_workload(np.array([0.0]), np.array([40_000]), np.array([1])))


def test_shared_prefixes_are_prefilled_once_on_a_replica() -> None:
    count = 300
    plain = workload(count, 20.0)
    prompt = np.full(count, 520)
    shared = replace(plain, prompt_tokens=prompt, prefix=((7, 8),) * count, chunk_tokens=256)
    limits = replace(LIMITS, chunk_tokens=256, prefix_caching=True)
    with_cache = CellSimulator(replace(settings(), limits=limits), COST, shared).run()
    without = CellSimulator(settings(), COST, replace(shared, prefix=((),) * count)).run()
    assert np.nanmean(with_cache.ttft_s) < 0.7 * np.nanmean(without.ttft_s)


def test_the_next_turn_of_a_conversation_finds_the_answer() -> None:
    prompt, output = np.array([512, 1_100, 512]), np.array([512, 4, 512])
    turns = plain_workload(np.array([0.0, 30.0, 40.0]), prompt, output)
    known = replace(turns, prefix=((1, 2), (1, 2, 3, 4), (5, 6)), chunk_tokens=256)
    limits = replace(LIMITS, chunk_tokens=256, prefix_caching=True)
    ttft_s = []
    for session in (np.array([-1, -1, -1]), np.array([7, 7, 8])):
        work = replace(known, session=session)
        ttft_s.append(CellSimulator(replace(settings(), limits=limits, replicas=1), COST, work).run().ttft_s)
    assert ttft_s[1][1] < 0.6 * ttft_s[0][1]
    assert list(replace(known, session=np.array([7, 7, 8])).tail(2).next_turns()) == [-1, -1]
    assert known.with_answer(0, 1) == (1, 2, 3, 4)
    assert known.with_answer(0, 2) == (1, 2)


def test_bad_workloads_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        plain_workload(np.array([1.0, 0.5]), np.array([1, 1]), np.array([1, 1]))
    with pytest.raises(ValueError, match="at least one token"):
        plain_workload(np.array([0.0]), np.array([0]), np.array([1]))
    with pytest.raises(ValueError, match="one length"):
        plain_workload(np.array([0.0]), np.array([1, 2]), np.array([1]))


@pytest.mark.long
def test_a_cell_under_an_overload_keeps_the_itl_of_its_class_with_costs_and_without() -> None:
    work = workload(12_000, 60.0)
    cost = CostModel(line(0.004, 5e-4), line(0.0, 1e-5), plain_attention(3e-8, 1e-10), line(0.003, 1e-4), 0.002)
    plain = replace(settings(1), queue_wait_s=1e6)
    counted = (work.output_tokens > 1) & (work.arrived_s > 60.0)

    def in_time(cell: CellSettings) -> float:
        tpot_s = CellSimulator(cell, cost, work).run().tpot_s[counted]
        return float((tpot_s[~np.isnan(tpot_s)] <= 0.035).mean())

    policy = replace(plain.policy, itl={"interactive": ItlTarget(0.035, 0.9)})
    unknown = replace(plain.policy, itl={"interactive": ItlTarget(0.035, 0.9, {DEFAULT_GROUP: LIMITS.sequences})})
    assert in_time(plain) < 0.7
    assert in_time(replace(plain, policy=policy)) >= 0.9
    assert in_time(replace(plain, policy=unknown)) >= 0.88  # two minutes count as they come
