"""One replica that does not report, while the load grows.

Complaint: AIBrix #1032. The metrics of one replica could not be read, and nothing was scaled any more. Play: from 1.5 to 4 replicas' worth in ten
minutes; one of three replicas is silent during most of the climb, so that nothing new is placed there. A good law scales up for what the others have
to carry.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Play, Scenario
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, Stream, drawn
from planning.simulator.faults import Faults, Silence

UNTIL_S = 1_500.0


def _play(draw: Draw) -> Play:
    rng = draw.rng("silent")
    silent_s = rng.uniform(200, 280)
    work, load = drawn(CHAT, [Stream(CHATS, [(0, 1.5), (300, 1.5), (900, 4.0)])], UNTIL_S, rng)
    return Play(CHAT, work, load, Bounds(1, 10), 3, UNTIL_S, faults=Faults((Silence(1, silent_s, silent_s + 600),)))


SCENARIOS = (Scenario("silent", "One silent replica while the load grows", "AIBrix #1032", 0.95, _play),)
