"""Spikes that are over before a replica has started.

Complaint: Ray #43034. What was started for a spike was still starting when the spike was over, and the step down that
followed ended replicas that served. Run: 1.5 replicas' worth, every few minutes three quarters of a minute of 3; a
replica takes two minutes to start. The platform here ends what has not started first, as Serve does now. A good policy
keeps room for such spikes or lets them pass, and in neither case goes up and down with them.
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
