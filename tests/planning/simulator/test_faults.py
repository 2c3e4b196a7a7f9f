"""Faults around a simulated autoscaler: what the scheduler does with a silent replica, what phantom books show, and another hand on the number."""

import numpy as np
import pytest

from autoscaling.laws.law import Motive, Wanted
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from autoscaling.signals.signals import Signals
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import Limits
from deployments.scheduling import Policy
from deployments.scheduling.replica import ReplicaStatus
from planning.simulator.cell import Cell, CellSettings
from planning.simulator.faults import Faults, Silence, Write
from planning.simulator.outcome import Outcome
from planning.simulator.scaling import Scaling
from planning.simulator.workload import plain_workload

COST = CostModel(line(0.02, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
UNTIL_S = 60.0


class Watching:
    """Keeps the number, and what it saw."""

    name = "watching"
    period_s = 1.0
    latency_span_s = 0.0

    def __init__(self, replicas: int | None = None) -> None:
        self.seen: list[Signals] = []
        self._replicas = replicas

    def decide(self, signals: Signals) -> Wanted:
        self.seen.append(signals)
        return Wanted(signals.applied if self._replicas is None else self._replicas, Motive.STEADY)


def play(faults: Faults, law: Watching, busy_s: float = UNTIL_S) -> tuple[Cell, Outcome]:
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, busy_s, 300))
    work = plain_workload(times, rng.integers(50, 400, 300), rng.integers(20, 120, 300))
    scaling = Scaling(Autoscaler(law, Bounds(1, 8)), UNTIL_S, start_up_s=(5.0,), faults=faults)
    cell = Cell(CellSettings(3, Limits(8, 512, 30_000), Policy(), scaling=scaling), COST, work)
    return cell, cell.run()


def test_nothing_new_is_placed_on_a_silent_replica_and_what_runs_there_ends() -> None:
    law = Watching()
    _, out = play(Faults((Silence(1, 20.0, 40.0),)), law)
    assert np.isfinite(out.finished_s).all()
    placed = out.placed_s[out.replica == 1]
    assert len(placed[placed < 20])
    assert not len(placed[(placed > 20) & (placed < 40)])
    assert len(placed[placed > 40])
    states = {at: signals.count(ReplicaStatus.SUSPECT) for signals in law.seen if (at := signals.at_s) is not None}
    assert states[19.0] == 0
    assert states[30.0] == 1
    assert states[45.0] == 0


def test_phantom_books_stand_while_the_replica_is_silent_and_the_requests_end() -> None:
    law = Watching()
    _, out = play(Faults((Silence(1, 20.0, 50.0, phantom=True),)), law, busy_s=25.0)
    assert np.isfinite(out.finished_s).all()
    shown = {signals.at_s: signals.replicas[1].sequences for signals in law.seen}
    assert shown[22.0] > 0
    assert shown[22.0] == shown[49.0]
    assert shown[55.0] == 0


def test_another_hand_sets_the_number_and_the_law_sees_what_is_applied() -> None:
    law = Watching()
    cell, out = play(Faults(writes=(Write(10.5, 6), Write(30.5, 2))), law)
    applied = {signals.at_s: signals.applied for signals in law.seen}
    assert (applied[10.0], applied[12.0], applied[32.0]) == (3, 6, 2)
    assert len(out.lives) == 6
    assert cell.scaling is not None


def test_a_law_that_insists_puts_it_right_and_the_write_is_counted() -> None:
    law = Watching(4)
    autoscaler = Autoscaler(law, Bounds(1, 8))
    work = plain_workload(np.array([0.0]), np.array([10]), np.array([10]))
    scaling = Scaling(autoscaler, UNTIL_S, start_up_s=(5.0,), faults=Faults(writes=(Write(10.5, 1),)))
    Cell(CellSettings(4, Limits(8, 512, 30_000), Policy(), scaling=scaling), COST, work).run()
    assert autoscaler.foreign_writes == 1
    assert law.seen[-1].applied == 4


def test_a_silence_of_a_replica_that_never_was_is_no_error() -> None:
    _, out = play(Faults((Silence(7, 20.0, 30.0),)), Watching())
    assert np.isfinite(out.finished_s).all()


def test_a_silence_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="from_s"):
        Silence(0, 5.0, 5.0)
