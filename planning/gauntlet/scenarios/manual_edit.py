"""An operator's edit in the middle of the day.

Complaint: Dynamo #4420. Somebody edited the number of replicas by hand, and the planner did nothing from then on. Run:
a load of 2.2 replicas; in minute 8 the number is set to 8, in minute 20 to 1. A good policy releases the surplus slowly
and fixes the shortage at once.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn
from planning.simulator.faults import ScalingFaults, Write

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("manual_edit")
    writes = (Write(rng.uniform(450, 510), 8), Write(rng.uniform(1_170, 1_230), 1))
    work, load = drawn(CHAT, [LoadStream(CHATS, [(0, 2.2)])], UNTIL_S, rng)
    return ScenarioRun(
        CHAT, work, load, Bounds(1, 10), 3, UNTIL_S, start_up_s=(30.0,), faults=ScalingFaults(writes=writes)
    )


SCENARIOS = (Scenario("manual_edit", "An operator's edit", "Dynamo #4420", 0.95, _run),)
