"""A burst whose queue the gauges do not show.

Complaint: Dynamo #10528. A burst waited in front of the engines, where the planner did not look: the time to first
token was about 160 s with an SLO of 3 s, the goodput 9 %, and the planner kept one replica. Run: chat at a load of 1.6
replicas; twice, without warning, several times as much for some minutes. Requests wait in lanes, so engines look full
but not overloaded. A good policy sees the waiting seconds of work, requests at once as many replicas as the burst
needs, and releases them again.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("burst")
    first, second = rng.uniform(420, 600), rng.uniform(1_100, 1_300)
    high, higher = rng.uniform(3.2, 3.8), rng.uniform(4.2, 4.8)
    knots = [
        (0, 1.6),
        (first, 1.6),
        (first, higher),
        (first + 240, higher),
        (first + 240, 1.6),
        (second, 1.6),
        (second, high),
    ]
    knots += [(second + 180, high), (second + 180, 1.6)]
    work, load = drawn(CHAT, [LoadStream(CHATS, knots)], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 12), 3, UNTIL_S, start_up_s=(30.0,))


SCENARIOS = (Scenario("burst", "A burst whose queue the gauges do not show", "Dynamo #10528", 0.95, _run),)
