"""One replica that does not report, while the load grows.

Complaint: AIBrix #1032. The metrics of one replica could not be read, and scaling stopped. Run: from a load of 1.5 to 4
replicas in ten minutes; one of three replicas is unresponsive during most of the climb, so nothing new is placed there.
A good policy adds replicas for what the others have to carry.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn
from planning.simulator.faults import FeedOutage, ScalingFaults

UNTIL_S = 1_500.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("silent")  # its name when its runs were first drawn: with another one they would be others
    unresponsive_s = rng.uniform(200, 280)
    work, load = drawn(CHAT, [LoadStream(CHATS, [(0, 1.5), (300, 1.5), (900, 4.0)])], UNTIL_S, rng)
    return ScenarioRun(
        CHAT,
        work,
        load,
        Bounds(1, 10),
        3,
        UNTIL_S,
        faults=ScalingFaults((FeedOutage(1, unresponsive_s, unresponsive_s + 600),)),
    )


SCENARIOS = (Scenario("unresponsive", "One unresponsive replica while the load grows", "AIBrix #1032", 0.95, _run),)
