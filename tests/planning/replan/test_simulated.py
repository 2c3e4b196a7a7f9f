"""The re-planner beside autoscalers that are asked in turn, as simulated cells ask theirs."""

from dataclasses import replace

from autoscaling.policies.policy import DesiredReplicas, PolicyReason
from autoscaling.scaler.decision import Bounds
from autoscaling.signals.signals import Signals
from deployments.scheduling.snapshot import FlowStats
from planning.replan import ReplanSettings, SiteKey
from planning.replan.demand import PlannedBand, PlannedDemand
from planning.replan.simulated import ReplannedAutoscaler, SimulatedReplanner
from tests.autoscaling.scaler.moments import moment
from tests.planning.replan.cases import LANE, basis, key

PLANNED = PlannedDemand((PlannedBand(LANE, "m", "short", "interactive", {}),))
SETTINGS = ReplanSettings(step=9, hold_s=0.0, slack_share=0.0)


class Wants:
    """A policy that wants one number."""

    name = "wants"
    period_s = 1.0
    latency_span_s = 0.0

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def decide(self, signals: Signals) -> DesiredReplicas:
        return DesiredReplicas(self.replicas, PolicyReason.DEMAND, {})


class Cells:
    """Two regions with so many requests a second; all that is asked for is there at once."""

    def __init__(self, replanner: SimulatedReplanner, wants: dict[str, int], rates: dict[str, float]) -> None:
        self.scalers = {
            region: ReplannedAutoscaler(replanner, key(region), Wants(count), Bounds(0, 20), 60.0)
            for region, count in wants.items()
        }
        self.there, self.rates, self.arrived = dict.fromkeys(wants, 2), rates, dict.fromkeys(wants, 0.0)
        self.now = 0.0

    def run(self, seconds: int, without: str = "") -> None:
        for _ in range(seconds):
            self.now += 1.0
            for region, scaler in self.scalers.items():
                if region == without:
                    continue
                self.arrived[region] += self.rates[region]
                flow = FlowStats("short", "interactive", int(self.arrived[region]), 0.0, 0, 0, 0, 1.0)
                seen = moment(self.now, ready=self.there[region]).showing(flows=(flow,))
                self.there[region] = scaler.decide(replace(seen, applied=self.there[region])).requested


def test_autoscalers_follow_the_plan_between_its_floors_and_ceilings() -> None:
    replanner = SimulatedReplanner(basis({"a": 1.0, "b": 1.0}), PLANNED, SETTINGS, every_s=120.0)
    cells = Cells(replanner, {"a": 1, "b": 9}, {"a": 4.0, "b": 2.0})
    cells.run(50)
    assert cells.there == {"a": 1, "b": 9}, "nothing is known of a minute yet"
    cells.run(200)
    assert cells.there == {"a": 4, "b": 3}
    assert len(replanner.plans) == 2


def test_prices_of_the_hour_move_replicas() -> None:
    prices: dict[SiteKey, float] = {}
    replanner = SimulatedReplanner(
        basis({"a": 1.0, "b": 1.0}), PLANNED, SETTINGS, every_s=60.0, prices=lambda unix_s: prices
    )
    cells = Cells(replanner, {"a": 9, "b": 0}, {"a": 4.0, "b": 0.0})
    cells.run(200)
    assert cells.there == {"a": 5, "b": 0}
    prices[key("a")] = 3.0
    cells.run(300)
    assert cells.there == {"a": 1, "b": 4}


def test_a_cell_that_is_silent_for_long_is_lost_to_the_plan() -> None:
    replanner = SimulatedReplanner(basis({"a": 1.0, "b": 1.0}), PLANNED, SETTINGS, every_s=60.0)
    cells = Cells(replanner, {"a": 3, "b": 0}, {"a": 3.0, "b": 1.0})
    cells.run(200)
    cells.run(200, without="a")
    assert replanner.plans[-1].state.lost == {"a"}
    assert cells.there["b"] == 4
