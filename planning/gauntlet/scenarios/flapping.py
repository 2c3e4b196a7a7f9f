"""A constant load near a whole number of replicas.

Complaints: Ray #18925 (endless steps up and down at small numbers), Dynamo #9294 (2 to 1 and back, because nothing
checked whether one replica less would carry the load). Run: the same load for half an hour, at which n replicas are too
few and n + 1 look half idle, with plain Poisson noise. A good policy takes the larger number and stays: every reversal
is a flap.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("flapping")
    level = (0.85, 1.75, 2.65)[draw.number % 3] + rng.uniform(0, 0.15)
    work, load = drawn(CHAT, [LoadStream(CHATS, [(0, level)])], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 8), 2 + draw.number % 3, UNTIL_S)


SCENARIOS = (
    Scenario("flapping", "A constant load near a whole number of replicas", "Ray #18925, Dynamo #9294", 0.98, _run),
)
