"""More load than the replicas can carry.

Complaints: Ray #65193 (503s of an overload paged the on-call engineer and ejected healthy replicas), Dynamo #6145 (the
target grew without bound). Run: a load of 2 replicas, 5.5 for five minutes, then 1; there is room for 4. No policy can
meet the SLO meanwhile. A good one goes to its maximum, stays there while work waits, and comes back.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("overload")
    at_s = rng.uniform(450, 600)
    work, load = drawn(
        CHAT,
        [LoadStream(CHATS, [(0, 2.0), (at_s, 2.0), (at_s + 60, 5.5), (at_s + 360, 5.5), (at_s + 420, 1.0)])],
        UNTIL_S,
        rng,
    )
    return ScenarioRun(CHAT, work, load, Bounds(1, 4), 3, UNTIL_S)


SCENARIOS = (Scenario("overload", "More load than the replicas can carry", "Ray #65193, Dynamo #6145", 0.5, _run),)
