"""Next to nothing to do.

Complaint: llm-d autoscaling #380. Replicas were added while there was no load. Play: a request now and then, with an answer of ordinary length; four
replicas stand there from before. A good law goes down to one and stays.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Play, Scenario
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, Stream, drawn

UNTIL_S = 1_800.0


def _play(draw: Draw) -> Play:
    rng = draw.rng("idle")
    work, load = drawn(CHAT, [Stream(CHATS, [(0, rng.uniform(0.04, 0.1))], shape=0.5)], UNTIL_S, rng)
    return Play(CHAT, work, load, Bounds(1, 8), 4, UNTIL_S)


SCENARIOS = (Scenario("idle", "Next to nothing to do", "llm-d autoscaling #380", 0.98, _play),)
