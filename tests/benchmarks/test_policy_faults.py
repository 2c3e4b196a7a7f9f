"""Faults around a simulated autoscaler: what the scheduler does with an unresponsive replica, what phantom books show,
and another hand on the number."""

import numpy as np

from autoscaling.policies.policy import DesiredReplicas, PolicyReason
from autoscaling.scaler.decision import Bounds
from autoscaling.signals.signals import Signals
from benchmarks.policies.faults import Faults, FeedOutage, MisledAutoscaler, Write, inflict
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import SchedulingPolicy
from deployments.scheduling.replica import ReplicaStatus
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import plain_workload

COST = CostModel(line(0.02, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
UNTIL_S = 60.0


class Watching:
    """Keeps the number, and what it saw."""

    name = "watching"
    period_s = 1.0

    def __init__(self, replicas: int | None = None) -> None:
        self.seen: list[Signals] = []
        self._replicas = replicas

    def decide(self, signals: Signals) -> DesiredReplicas:
        self.seen.append(signals)
        return DesiredReplicas(signals.applied if self._replicas is None else self._replicas, PolicyReason.STEADY)


def run(faults: Faults, policy: Watching, busy_s: float = UNTIL_S) -> tuple[MisledAutoscaler, SimulationOutcome]:
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, busy_s, 300))
    work = plain_workload(times, rng.integers(50, 400, 300), rng.integers(20, 120, 300))
    autoscaler = MisledAutoscaler(policy, Bounds(1, 8))
    scaling = SimulatedScaling(autoscaler, UNTIL_S)
    cell = CellSimulator(
        CellSettings(3, EngineModelLimits(8, 512, 30_000), SchedulingPolicy(), start_up_s=5.0, scaling=scaling),
        COST,
        work,
    )
    inflict(faults, cell, autoscaler)
    return autoscaler, cell.run()


def test_nothing_new_is_placed_on_a_unresponsive_replica_and_what_runs_there_ends() -> None:
    policy = Watching()
    _, out = run(Faults((FeedOutage(1, 20.0, 40.0),)), policy)
    assert np.isfinite(out.finished_s).all()
    placed = out.placed_s[out.replica == 1]
    assert len(placed[placed < 20])
    assert not len(placed[(placed > 20) & (placed < 40)])
    assert len(placed[placed > 40])
    states = {
        at: signals.count(ReplicaStatus.UNRESPONSIVE) for signals in policy.seen if (at := signals.at_s) is not None
    }
    assert states[19.0] == 0
    assert states[30.0] == 1
    assert states[45.0] == 0


def test_phantom_books_stand_while_the_replica_is_unresponsive_and_the_requests_end() -> None:
    policy = Watching()
    _, out = run(Faults((FeedOutage(1, 20.0, 50.0, phantom=True),)), policy, busy_s=25.0)
    assert np.isfinite(out.finished_s).all()
    shown = {signals.at_s: signals.replicas[1].sequences for signals in policy.seen}
    assert shown[22.0] > 0
    assert shown[22.0] == shown[49.0]
    assert shown[55.0] == 0


def test_another_hand_sets_the_number_and_the_policy_sees_what_is_applied() -> None:
    policy = Watching()
    _, out = run(Faults(writes=(Write(10.5, 6), Write(30.5, 2))), policy)
    applied = {signals.at_s: signals.applied for signals in policy.seen}
    assert (applied[10.0], applied[12.0], applied[32.0]) == (3, 6, 2)
    assert len(out.lifetimes) == 6


def test_a_policy_that_insists_puts_it_right_and_the_write_is_counted() -> None:
    policy = Watching(3)
    autoscaler, _ = run(Faults(writes=(Write(10.5, 1),)), policy)
    assert autoscaler.foreign_writes == 1
    assert policy.seen[-1].applied == 3


def test_a_feed_outage_of_a_replica_that_never_was_is_no_error() -> None:
    _, out = run(Faults((FeedOutage(7, 20.0, 30.0),)), Watching())
    assert np.isfinite(out.finished_s).all()
