"""Requests that exist in the books only.

Complaint: Ray #61551. Counts of requests in flight leaked, and pinned replicas after the traffic had gone. Play: 3.5 replicas' worth for ten minutes,
then half a replica's; shortly before, one replica falls silent with all its books full, and they stay full for a quarter of an hour, until it is
given up and replaced. A good law counts what replicas report, waits as long as is prudent, and then lets go of the others.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Play, Scenario
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, Stream, drawn
from planning.simulator.faults import Faults, Silence
from planning.simulator.fleet import FleetEvent, FleetEventKind

UNTIL_S = 1_800.0
_SILENT = 2


def _play(draw: Draw) -> Play:
    rng = draw.rng("phantom")
    silent_s = rng.uniform(560, 590)
    given_up_s = silent_s + 900
    work, load = drawn(CHAT, [Stream(CHATS, [(0, 3.5), (600, 3.5), (620, 0.5)])], UNTIL_S, rng)
    return Play(
        CHAT,
        work,
        load,
        Bounds(1, 8),
        5,
        UNTIL_S,
        fleet=(FleetEvent(given_up_s, FleetEventKind.FAIL, _SILENT),),
        faults=Faults((Silence(_SILENT, silent_s, given_up_s, phantom=True),)),
    )


SCENARIOS = (Scenario("phantom", "Requests that exist in the books only", "Ray #61551", 0.97, _play),)
