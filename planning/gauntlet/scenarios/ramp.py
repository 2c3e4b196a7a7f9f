"""From 2 to 10 requests a second and down to 1, on at most 8 replicas.

Source: llm-d's own test of its SLO policy, which met 95.8 % of the SLO with 5.93 replicas on average instead of a
constant 8. Run: five minutes at 2, a climb of five minutes, ten minutes at 10, down in five minutes, five minutes at 1.
A good policy leads the climb, and trails the descent by no more than a start-up time.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn, rate_of

UNTIL_S = 1_800.0
PER_S = ((0, 2.0), (300, 2.0), (600, 10.0), (1_200, 10.0), (1_500, 1.0))


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("ramp")
    one = rate_of(CHAT, CHATS)
    work, load = drawn(CHAT, [LoadStream(CHATS, [(at_s, rate / one) for at_s, rate in PER_S])], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 8), 2, UNTIL_S)


SCENARIOS = (
    Scenario(
        "ramp", "2 to 10 to 1 requests a second, at most 8 replicas", "llm-d's SLO policy, its own ramp", 0.95, _run
    ),
)
