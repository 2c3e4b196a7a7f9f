"""Almost no traffic.

Complaint: llm-d autoscaling #380. Replicas were added while there was no load. Run: an occasional request with an
answer of ordinary length, at first with four replicas. A good policy goes down to one and stays.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("idle")
    work, load = drawn(CHAT, [LoadStream(CHATS, [(0, rng.uniform(0.04, 0.1))], shape=0.5)], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 8), 4, UNTIL_S)


SCENARIOS = (Scenario("idle", "Almost no traffic", "llm-d autoscaling #380", 0.98, _run),)
