"""The object that decides in the simulator is the one that decides in Serve's controller, and in a shadow: the same
class, the same answers."""

import numpy as np

from autoscaling.from_spec import ScalingSetup
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control
from deployments.scheduling import LanePolicy, SchedulingPolicy
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import plain_workload
from tests.autoscaling.setups import setup
from tests.autoscaling.test_from_spec import COSTS


class Watched(Autoscaler):
    """Keeps what it was shown and what it decided."""

    def __init__(self, made: ScalingSetup) -> None:
        super().__init__(made.policy.make(made.replica_profile), made.bounds)
        self.seen: list[tuple[Signals, ScalingDecision]] = []

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        decision = super().decide(signals, controls)
        self.seen.append((signals, decision))
        return decision


def test_serve_and_a_shadow_decide_as_the_simulator_did() -> None:
    made = setup("backlog", minimum=1, costs=str(COSTS), shadow={"policy": "backlog"})
    rng = np.random.default_rng(7)
    arrived = np.cumsum(np.concatenate([rng.exponential(gap, 1_000) for gap in (1 / 4, 1 / 24)]))
    prompts, answers = rng.integers(200, 6_000, len(arrived)), rng.integers(20, 600, len(arrived))
    watched = Watched(made)
    lanes = (LanePolicy("short", 2_048, 8, 10, 600), LanePolicy("long", None, 1, 60, 600))
    scaling = SimulatedScaling(watched, float(arrived[-1]), made.attainment, start_up_s=(20.0,))
    settings = CellSettings(1, made.replica_profile.limits, SchedulingPolicy(lanes=lanes), scaling=scaling)
    assert made.replica_profile.cost is not None
    CellSimulator(settings, made.replica_profile.cost, plain_workload(arrived, prompts, answers, 2.0)).run()
    assert sum(decision.changes for _, decision in watched.seen) > 1

    pair = Pair(made)
    assert pair.shadow is not None
    for signals, decision in watched.seen:
        assert pair.decide(signals) == decision
    standing = pair.shadow.standing()
    assert standing is not None
    assert standing.agreement == 1.0
    assert {type(pair.scaler), type(pair.shadow.scaler.autoscaler)} == {Autoscaler}
