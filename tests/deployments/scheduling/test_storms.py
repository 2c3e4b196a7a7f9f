"""Storms: callers that obey `Retry-After` settle; callers that do not are shed, and nobody else is."""

import heapq
from dataclasses import dataclass, field

import pytest

from deployments.scheduling import Capacity, Ending, LanePolicy, Scheduler, SchedulingPolicy, Usage
from tests.deployments.scheduling.world import make_request

CAPACITY = Capacity(sequences=4, ahead=1, kv_tokens=100_000, step_tokens=2_000, prefill_steps=2.0)
SERVICE_S = 0.2
CAP_S = 5.0


@dataclass
class World:
    """One replica that serves four requests at a time, and callers that come back when they want to. Time is
    simulated."""

    scheduler: Scheduler
    now: float = 0.0
    events: list[tuple[float, int, str, object]] = field(default_factory=list)
    count: int = 0
    tries: dict[str, int] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)

    def at(self, when: float, what: str, who: object) -> None:
        """Something happens then."""
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what, who))

    def run(self, until: float, obeys: dict[str, bool]) -> None:
        """Lets the world go on. A caller is `tenant/number`; who does not obey comes back every 0.1 s."""
        while self.events and self.events[0][0] <= until:
            self.now, _, what, who = heapq.heappop(self.events)
            if what == "ask":
                self._ask(str(who), obeys)
            else:
                usage = Usage(100, 0, 50, 0, 1, 0.05, SERVICE_S)
                self.scheduler.release(who, Ending.FINISHED, usage, self.now)  # type: ignore[arg-type]
            for placement in self.scheduler.step(self.now).placements:
                name = placement.request.request_id.rsplit("#", 1)[0]
                self.waits[name] = placement.waited_s
                self.scheduler.first_token(placement.lease, self.now)
                self.at(self.now + SERVICE_S, "end", placement.lease)

    def _ask(self, who: str, obeys: dict[str, bool]) -> None:
        tenant = who.split("/")[0]
        self.tries[who] = self.tries.get(who, 0) + 1
        request = make_request(f"{who}#{self.tries[who]}", 100, 50, self.now, tenant=tenant)
        admission = self.scheduler.submit(request, self.now)
        if not admission.accepted:
            assert admission.retry_after_s is not None
            self.at(self.now + (admission.retry_after_s if obeys[tenant] else 0.1), "ask", who)


def make_world() -> World:
    """A replica that is warm: its rate is known."""
    scheduler = Scheduler(SchedulingPolicy((LanePolicy("all", None, max_wait_s=60, cap_s=CAP_S),)))
    scheduler.replica_up("r0", CAPACITY, 0.0)
    world = World(scheduler)
    for number in range(60):
        world.at(number * 0.05, "ask", f"warm/{number}")
    world.run(100.0, {"warm": True})
    world.now = 100.0
    return world


@pytest.mark.whole
def test_a_storm_that_obeys_settles() -> None:
    world = make_world()
    callers = [f"a/{number}" for number in range(1_000)]
    for who in callers:
        world.at(100.0, "ask", who)
    world.run(100.0 + 600, {"a": True})
    assert all(who in world.waits for who in callers), "each is served at last"
    tries = [world.tries[who] for who in callers]
    assert sum(tries) / len(tries) < 3
    assert max(tries) <= 8
    assert max(world.waits[who] for who in callers) < 3 * CAP_S
    # It took about as long as the work itself: nobody was told to stay away for longer than there was something to do.
    assert world.now - 100.0 < 1.5 * len(callers) * SERVICE_S / (CAPACITY.sequences + CAPACITY.ahead) + 2 * CAP_S


@pytest.mark.whole
def test_callers_that_do_not_obey_are_shed_without_hurting_others() -> None:
    world = make_world()
    for number in range(300):
        world.at(100.0 + number * 1e-3, "ask", f"storm/{number}")
    calm = [f"calm/{number}" for number in range(100)]
    for number, who in enumerate(calm):
        world.at(101.0 + 0.2 * number, "ask", who)
    world.run(160.0, {"storm": False, "calm": True})
    assert all(world.tries[who] == 1 for who in calm), "none of the others was turned away"
    waits = sorted(world.waits[who] for who in calm)
    assert waits[int(0.99 * len(waits))] < CAP_S
    assert sum(world.tries[f"storm/{number}"] for number in range(300)) > 1_000
