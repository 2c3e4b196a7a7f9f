"""A constant load near a whole number of replicas.

Complaints: Ray #18925 (up and down, for ever, at small n), Dynamo #9294 (2 to 1 and back, for want of asking whether one less would carry the load).
Play: the same load for half an hour, just where n replicas are too few and n + 1 look half idle; plain Poisson noise. A good law takes the larger
number and stays: every reversal is a flap.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Play, Scenario
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, Stream, drawn

UNTIL_S = 1_800.0


def _play(draw: Draw) -> Play:
    rng = draw.rng("flapping")
    level = (0.85, 1.75, 2.65)[draw.number % 3] + rng.uniform(0, 0.15)
    work, load = drawn(CHAT, [Stream(CHATS, [(0, level)])], UNTIL_S, rng)
    return Play(CHAT, work, load, Bounds(1, 8), 2 + draw.number % 3, UNTIL_S)


SCENARIOS = (Scenario("flapping", "A constant load near a whole number of replicas", "Ray #18925, Dynamo #9294", 0.98, _play),)
