"""The upstream fails for less than half an hour, and its whole load returns at once.

Complaint: on a recorded day of ServeGen's m-mid almost nothing arrives from 15:00 to 17:00. A policy that takes this
for the end of the day removes the whole fleet within minutes. Run: a load of five replicas, then a stray request now
and then for 22 to 28 minutes, then five again within a second. A good policy removes replicas step by step, ignores
stray requests, and has some left when the load returns.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn

UNTIL_S = 3_000.0
_OUT_S = 600.0
_FULL, _STRAY = 5.0, 0.002


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("outage")
    back_s = _OUT_S + rng.uniform(1_320, 1_680)
    knots = [(0, _FULL), (_OUT_S, _FULL), (_OUT_S, _STRAY), (back_s, _STRAY), (back_s, _FULL)]
    work, load = drawn(CHAT, [LoadStream(CHATS, knots)], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 12), 6, UNTIL_S)


SCENARIOS = (Scenario("outage", "The upstream fails and returns", "a recorded day", 0.93, _run),)
