"""More than there is room for.

Complaints: Ray #65193 (503s of an overload paged the on-call and ejected healthy replicas), Dynamo #6145 (the target
ran away without bound). Run: 2 replicas' worth, for five minutes 5.5, then 1; there is room for 4. No policy can meet
the SLO meanwhile: a good one goes to the most that it may, stays there as long as work waits, and comes back.
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
