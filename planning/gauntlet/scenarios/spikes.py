"""Spikes that are over before a replica has started.

Complaint: Ray #43034. Replicas started for a spike were still starting when it was over, and the step down that
followed ended replicas that served. Run: a load of 1.5 replicas, and every few minutes 3 for three quarters of a
minute. A replica takes two minutes to start. The platform here ends starting replicas first, as Serve does now. A good
policy keeps room for such spikes or lets them pass; either way its number does not follow them.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("spikes")
    knots: list[tuple[float, float]] = [(0, 1.5)]
    for middle in range(240, 1_800, 300):
        at_s = middle + rng.uniform(-60, 60)
        knots += [(at_s, 1.5), (at_s, 3.0), (at_s + 45, 3.0), (at_s + 45, 1.5)]
    work, load = drawn(CHAT, [LoadStream(CHATS, knots)], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 10), 3, UNTIL_S, start_up_s=(120.0,), followed=load.levelled())


SCENARIOS = (Scenario("spikes", "Spikes shorter than a start", "Ray #43034", 0.97, _run),)
