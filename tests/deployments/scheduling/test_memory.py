"""What a scheduler keeps is bounded by what lives in it, and what a step looks at by a few replicas, whatever a client
does in a loop."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable

import pytest

from deployments.scheduling import Capacity, Ending, LanePolicy, Lease, Scheduler, SchedulingPolicy
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import FORGET_S
from tests.deployments.scheduling.world import CAPACITY, make_request, make_scheduler, submit_all

POLICY = SchedulingPolicy(
    (LanePolicy("short", 200, weight=4, max_wait_s=5), LanePolicy("long", None, max_wait_s=50)), decode_weight=1.0
)
TURNS = 2_000
A_FEW = 1_200
"""What a scheduler may keep beside what lives: heaps' slack, remembered tenants, windows and histograms of
estimates."""


def entries(root: object) -> int:
    """How many entries all containers hold that can be reached from an object of this room. Facts (requests, leases)
    are not looked into."""
    seen: set[int] = set()
    found, todo = 0, [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (str, int, float, type(None))):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            found += len(thing)
            todo += [*thing.keys(), *thing.values()]
        elif isinstance(thing, (list, set, frozenset, deque)):
            found += len(thing)
            todo += thing
        elif isinstance(thing, tuple):
            todo += thing
        elif type(thing).__module__.startswith("deployments.scheduling") and not isinstance(thing, type):
            slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            todo += [getattr(thing, name) for name in slots if hasattr(thing, name)]
            if not dataclasses.is_dataclass(thing) or not type(thing).__dataclass_params__.frozen:  # type: ignore[attr-defined]
                todo += list(getattr(thing, "__dict__", {}).values())
    return found


def forget_suspects(scheduler: Scheduler, now: float) -> None:
    """Who ran when a replica died is remembered for minutes (how many at most: test_suspects.py)."""
    scheduler.suspects.forget(now + 3 * FORGET_S)
    assert scheduler.suspects.all(now + 3 * FORGET_S) == ()
    scheduler.suspects.news()


def living(scheduler: Scheduler) -> int:
    """What waits, what runs and where."""
    return len(scheduler.lanes.jobs) + len(scheduler.leases) + len(scheduler.fleet.by_id)


def cancelled(scheduler: Scheduler, turn: int, now: float) -> None:
    """Submitted and cancelled at once."""
    scheduler.submit(make_request(f"q{turn}", now=now, tenant=f"t{turn % 7}"), now)
    scheduler.cancel(f"q{turn}", now)


def cancelled_from_a_lane_that_is_never_empty(scheduler: Scheduler, turn: int, now: float) -> None:
    """...beside one that waits for long."""
    if not turn:
        scheduler.submit(make_request("old", now=now, patience=1e9, tenant="old"), now)
    cancelled(scheduler, turn, now)


def cancelled_by_ever_new_tenants(scheduler: Scheduler, turn: int, now: float) -> None:
    """...each by a tenant of its own."""
    if not turn:
        scheduler.submit(make_request("old", now=now, patience=1e9, tenant="old"), now)
    scheduler.submit(make_request(f"q{turn}", now=now, tenant=f"t{turn}"), now)
    scheduler.cancel(f"q{turn}", now)


def promoted_and_cancelled(scheduler: Scheduler, turn: int, now: float) -> None:
    """Each is promoted before it goes."""
    scheduler.submit(make_request(f"q{turn}", now=now - 100.0, patience=1e6), now)
    scheduler.step(now)
    scheduler.cancel(f"q{turn}", now)


def finished(scheduler: Scheduler, turn: int, now: float) -> None:
    """Placed and finished at once, beside one that fits nowhere until its time is over."""
    if not turn:
        scheduler.submit(make_request("runs", 100, now=now), now)
        scheduler.submit(make_request("large", 3_999, now=now, patience=1e9), now)
    scheduler.submit(make_request(f"q{turn}", 10, 10, now=now, patience=1e6), now)
    for placement in scheduler.step(now).placements:
        if placement.request.request_id.startswith("q"):
            scheduler.first_token(placement.lease, now)
            scheduler.release(placement.lease, Ending.FINISHED, None, now)


def refused(scheduler: Scheduler, turn: int, now: float) -> None:
    """One that is refused over and over."""
    if not turn:
        scheduler.submit(make_request("again", now=now, patience=1e6), now)
    for placement in scheduler.step(now).placements:
        scheduler.release(placement.lease, Ending.REFUSED, None, now)


def replicas_come_and_go(scheduler: Scheduler, turn: int, now: float) -> None:
    """A fleet that is replaced all the time."""
    scheduler.replica_up(f"r{turn}", CAPACITY, now)
    scheduler.submit(make_request(f"q{turn}", now=now, prefix=(turn, turn + 1)), now)
    scheduler.step(now)
    scheduler.replica_lost(f"r{turn}", now)


def reloaded(scheduler: Scheduler, turn: int, now: float) -> None:
    """Lanes with ever new names, while one waits."""
    if not turn:
        scheduler.submit(make_request("old", now=now, patience=1e9), now)
    if not turn % 10:
        scheduler.configure(dataclasses.replace(POLICY, lanes=(LanePolicy(f"lane{turn}", 200), POLICY.lanes[1])), now)
    cancelled(scheduler, turn, now)


LOOPS = (
    (finished, 1),
    *itertools.product(
        [
            cancelled,
            cancelled_from_a_lane_that_is_never_empty,
            cancelled_by_ever_new_tenants,
            promoted_and_cancelled,
            refused,
            replicas_come_and_go,
            reloaded,
        ],
        (0, 1),
    ),
)


@pytest.mark.whole
@pytest.mark.parametrize(("loop", "open_replicas"), LOOPS)
def test_a_hostile_loop_leaves_nothing_behind(
    loop: Callable[[Scheduler, int, float], None], open_replicas: int
) -> None:
    scheduler = make_scheduler(open_replicas, POLICY)
    for turn in range(TURNS):
        loop(scheduler, turn, 0.01 * turn)
    forget_suspects(scheduler, 0.01 * TURNS)
    assert living(scheduler) < 50
    assert entries(scheduler) < A_FEW + 8 * living(scheduler)


def test_who_waits_beside_a_hostile_loop_is_placed_in_turn() -> None:
    """Entries of tenants that came and went are dropped, and not those of tenants that wait."""
    scheduler = make_scheduler(0, POLICY)
    for name in ("a", "b", "c"):
        scheduler.submit(make_request(name, patience=1e9, slo=1e6, tenant=name), 0.0)
    (lane,) = (lane for lane in scheduler.lanes.lanes if lane.count)
    for turn in range(300):
        cancelled(scheduler, turn, 0.001 * turn)
        if turn % 10 == 0:
            assert lane.head() is scheduler.lanes.jobs["a"]
    scheduler.submit(make_request("late", now=1.0, slo=1e6, tenant="late"), 1.0)
    scheduler.replica_up("r0", Capacity(8, 0, 10**6, 10**6, prefill_steps=2.0), 1.0)
    assert [placement.request.request_id for placement in scheduler.step(1.0).placements] == ["a", "b", "c", "late"]


@pytest.mark.whole
@pytest.mark.parametrize("how", ["cancelled", "placed", "lost"])
def test_after_a_crowd_has_gone_its_room_is_given_back(how: str) -> None:
    scheduler = make_scheduler(0, POLICY)
    for number in range(TURNS):
        scheduler.submit(make_request(f"q{number}", 10, 10, patience=1e6, tenant=f"t{number % 50}"), 0.0)
    if how == "cancelled":
        for number in range(1, TURNS):
            scheduler.cancel(f"q{number}", 0.0)
    else:
        scheduler.replica_up("r0", Capacity(TURNS, 0, 10**9, 10**9, prefill_steps=2.0), 0.0)
        scheduler.step(0.0)
        assert len(scheduler.leases) == TURNS
        if how == "lost":
            scheduler.replica_lost("r0", 0.0)
        else:
            for lease, _ in list(scheduler.leases.values()):
                scheduler.release(lease, Ending.FINISHED, None, 0.0)
    forget_suspects(scheduler, 0.0)
    assert living(scheduler) <= 1
    assert entries(scheduler) < A_FEW + 8


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The replicas that are asked from now on what a job waits for there."""
    asked: list[str] = []
    ask = Replica.wait_reason

    def listed(self: Replica, job: object) -> object:
        asked.append(self.replica_id)
        return ask(self, job)  # type: ignore[arg-type]

    monkeypatch.setattr(Replica, "wait_reason", listed)
    return asked


@pytest.mark.whole
@pytest.mark.parametrize("promoted", [False, True])
def test_a_request_that_fits_nowhere_costs_no_look_at_all_replicas(
    promoted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = SchedulingPolicy(
        (LanePolicy("short", 500, max_wait_s=1e6), LanePolicy("long", None, max_wait_s=1.0 if promoted else 1e6)),
        decode_weight=1.0,
    )
    scheduler = make_scheduler(
        400, policy, Capacity(sequences=6, ahead=0, kv_tokens=10**6, step_tokens=10**6, prefill_steps=2.0)
    )
    leases: deque[Lease] = deque()
    for number in range(1_600):
        scheduler.submit(make_request(f"q{number}", 50, 10), 0.0)
        leases += [placement.lease for placement in scheduler.step(0.0).placements]
    for number in range(20):
        scheduler.submit(make_request(f"n{number}", 200, 10, sequences=5), 0.0)  # each replica has two free seats
    asked = looked_at(monkeypatch)
    missing = []
    monkeypatch.setattr(
        "deployments.scheduling.placing._missing", lambda replica, job: missing.append(replica.replica_id) or 0.5
    )
    for number in range(100):
        scheduler.submit(make_request(f"s{number}", 50, 10, now=2.0), 2.0)
        scheduler.release(leases.popleft(), Ending.FINISHED, None, 2.0)
        scheduler.step(2.0)
    assert (len(asked) + len(missing)) / 100 < 40
    assert len(scheduler.snapshot(2.0).lanes) == 3


def test_a_request_that_fits_on_one_of_many_replicas_alone_finds_it() -> None:
    """All others are busy; the only one with free KV for it is not among the least loaded."""
    scheduler = make_scheduler(
        50, POLICY, Capacity(sequences=8, ahead=0, kv_tokens=4_000, step_tokens=10**6, prefill_steps=2.0)
    )
    submit_all(scheduler, 50, "q", prompt=3_000, output=1)
    leases = [placement.lease for placement in scheduler.step(0.0).placements]
    scheduler.release(leases[37], Ending.FINISHED, None, 0.0)
    scheduler.submit(make_request("fills", 100, 1), 0.0)
    scheduler.submit(make_request("small", 100, 1), 0.0)
    scheduler.step(0.0)
    for lease in leases:
        scheduler.first_token(lease, 0.0)  # ...so that those have no prefill backlog, where that one has
    scheduler.submit(make_request("wide", 3_500, 1), 0.0)
    (placement,) = scheduler.step(0.0).placements
    assert placement.replica_id == leases[37].replica_id
