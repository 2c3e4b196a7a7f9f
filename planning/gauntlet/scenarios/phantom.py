"""Requests that exist only in the scheduler's counts.

Complaint: Ray #61551. Counts of requests in flight leaked and kept replicas after the traffic had ended. Run: a load of
3.5 replicas for ten minutes, then of half a replica. Shortly before that, one full replica becomes unresponsive, and
counts as full for a quarter of an hour, until it is given up and replaced. A good policy counts what replicas report,
waits for a prudent time, and then releases the others.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn
from planning.simulator.faults import FeedOutage, ScalingFaults
from planning.simulator.fleet import FleetEvent, FleetEventKind

UNTIL_S = 1_800.0
_UNRESPONSIVE = 2


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("phantom")
    unresponsive_s = rng.uniform(560, 590)
    given_up_s = unresponsive_s + 900
    work, load = drawn(CHAT, [LoadStream(CHATS, [(0, 3.5), (600, 3.5), (620, 0.5)])], UNTIL_S, rng)
    return ScenarioRun(
        CHAT,
        work,
        load,
        Bounds(1, 8),
        5,
        UNTIL_S,
        fleet=(FleetEvent(given_up_s, FleetEventKind.FAIL, _UNRESPONSIVE),),
        faults=ScalingFaults((FeedOutage(_UNRESPONSIVE, unresponsive_s, given_up_s, phantom=True),)),
    )


SCENARIOS = (Scenario("phantom", "Requests that exist only in the counts", "Ray #61551", 0.97, _run),)
