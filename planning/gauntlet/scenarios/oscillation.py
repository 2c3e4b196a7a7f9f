"""Load that swings faster than replicas start.

Complaint: Ray #63279. A load that swung every minute drove 500 to 2,000 replicas up and down every minute; the worst
latency was 40 s. Run: a minute at a load of 1 replica, a minute at 4, for half an hour. A replica takes a minute to
start, so a policy that follows is always a minute late. A good policy holds what the busy minutes need and never
reverses: no replica could follow that load, so every reversal is a flap.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn

UNTIL_S = 1_800.0


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("oscillation")
    shift = rng.uniform(0, 60)
    knots: list[tuple[float, float]] = []
    for minute in range(-1, 31):
        level = 4.0 if minute % 2 else 1.0
        knots += [(shift + 60 * minute, level), (shift + 60 * minute + 60, level)]
    work, load = drawn(CHAT, [LoadStream(CHATS, [knot for knot in knots if knot[0] >= 0])], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 12), 3, UNTIL_S, followed=load.levelled())


SCENARIOS = (Scenario("oscillation", "A load that swings every minute", "Ray #63279", 0.97, _run),)
