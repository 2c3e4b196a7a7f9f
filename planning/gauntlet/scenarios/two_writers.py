"""Two writers of one number.

Complaint: AIBrix #1661. Two controllers wrote the number of replicas of one deployment, and each undid the other's
change. Run: a slowly varying load of 2.8 replicas; now and then something else sets the number, mostly one too low. A
good policy starts from the applied number, corrects it once, and does not swing.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn
from planning.simulator.faults import ScalingFaults, Write

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("two_writers")
    writes = tuple(
        Write(at_s + rng.uniform(-40, 40), replicas) for at_s, replicas in ((350, 3), (700, 3), (1_000, 7), (1_350, 3))
    )
    work, load = drawn(CHAT, [LoadStream(CHATS, [(0, 2.8), (450, 3.1), (900, 2.6), (1_350, 3.1)])], UNTIL_S, rng)
    return ScenarioRun(
        CHAT, work, load, Bounds(1, 10), 4, UNTIL_S, start_up_s=(30.0,), faults=ScalingFaults(writes=writes)
    )


SCENARIOS = (Scenario("two_writers", "Two writers of one number", "AIBrix #1661", 0.97, _run),)
