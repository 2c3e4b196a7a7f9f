"""Guests wait until a replica prefills nothing, behind the cell's own requests, and not for ever."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.scheduling import AdmissionKind, Ending, LanePolicy, Lease, Request, Scheduler, SchedulingPolicy
from deployments.scheduling.replica import Capacity
from tests.deployments.scheduling.world import make_request, make_scheduler, submit_all

PATIENCE_S = 600.0
MAX_WAIT_S = 5.0
POLICY = SchedulingPolicy((LanePolicy("short", 200, max_wait_s=MAX_WAIT_S), LanePolicy("long", None, max_wait_s=20.0)))


def guest(name: str, now: float = 0.0, prompt: int = 50, patience_s: float = PATIENCE_S) -> Request:
    return Request(name, prompt, 50, now, now + 5.0, now + patience_s, guest_of="eu", hops=1)


def placed(scheduler: Scheduler, now: float) -> list[str]:
    return [one.request.request_id for one in scheduler.step(now).placements]


def prefilling(replicas: int = 1) -> tuple[Scheduler, list[Lease]]:
    """Each replica has a prompt of an own request to prefill, and room for more."""
    scheduler = make_scheduler(replicas, POLICY)
    submit_all(scheduler, replicas, "own", prompt=50)
    return scheduler, [one.lease for one in scheduler.step(0.0).placements]


def test_a_guest_begins_at_once_on_a_replica_that_prefills_nothing() -> None:
    scheduler = make_scheduler(2, POLICY)
    scheduler.submit(make_request("own", 50), 0.0)
    (busy,) = scheduler.step(0.0).placements
    assert scheduler.submit(guest("g"), 0.0).kind is AdmissionKind.ADMIT
    (other,) = scheduler.step(0.0).placements
    assert (other.request.request_id, other.lease.replica_id != busy.lease.replica_id) == ("g", True)


@pytest.mark.parametrize("prompt", [50, 500])
def test_no_guest_waits_for_longer_than_its_lane_allows(prompt: int) -> None:
    """Then it waits in its lane, and is promoted like everybody else."""
    scheduler, _ = prefilling()
    scheduler.submit(guest("g", prompt=prompt), 0.0)
    until_s = MAX_WAIT_S if prompt == 50 else 20.0
    assert scheduler.next_wakeup() == until_s
    assert placed(scheduler, until_s - 0.1) == []
    assert placed(scheduler, until_s) == ["g"]


def test_a_guest_whose_wait_is_given_up_is_told() -> None:
    scheduler, _ = prefilling()
    scheduler.submit(guest("g", patience_s=2.0), 0.0)
    scheduler.submit(guest("h", patience_s=3.0), 0.0)
    assert scheduler.next_wakeup() == 2.0
    assert [one.request_id for one in scheduler.step(2.0).expired] == ["g"]
    assert set(scheduler.lanes.guests) == {"h"}


def test_while_no_replica_takes_work_guests_wait_in_their_lanes() -> None:
    """Where it is decided whether that is in vain."""
    scheduler, _ = prefilling()
    scheduler.submit(guest("g"), 0.0)
    scheduler.replica_draining("r0", 1.0)
    scheduler.step(1.0)
    assert (set(scheduler.lanes.guests), set(scheduler.lanes.jobs)) == (set(), {"g"})


def test_who_waits_as_a_guest_is_counted_cancelled_and_known() -> None:
    scheduler, (lease,) = prefilling()
    scheduler.submit(guest("g"), 0.0)
    lane = scheduler.snapshot(0.0).lanes[0]
    assert (lane.name, lane.waiting, lane.work_tokens > 0, lane.work_s) == ("short", 1, True, None)
    assert scheduler.submit(guest("g"), 0.0).cause is not None, "twice the same"
    scheduler.first_token(lease, 1.0)
    scheduler.release(lease, Ending.FINISHED, None, 1.0)
    assert not scheduler.is_idle
    assert scheduler.cancel("g", 1.0)
    assert scheduler.is_idle
    assert placed(scheduler, 1.0) == []


def test_guests_wait_for_no_group_that_own_requests_wait_for() -> None:
    policy = SchedulingPolicy((LanePolicy("all"),), groups={"all": ("a", "b")}, contexts={"a": 1_000, "b": 1_000})
    scheduler = Scheduler(policy)
    for name in ("a", "b"):
        scheduler.replica_up(name, Capacity(2, 0, 10_000, 1_000, 2.0, name, 1_000), 0.0)
        scheduler.submit(make_request(f"own-{name}", 50), 0.0)
    scheduler.step(0.0)
    scheduler.submit(guest("g"), 0.0)
    for lease, _ in list(scheduler.leases.values()):
        if lease.replica_id == "b":
            scheduler.first_token(lease, 1.0)
    (one,) = scheduler.step(1.0).placements
    assert (one.request.request_id, one.lease.replica_id) == ("g", "b")


@pytest.mark.whole
@given(st.integers(0, 1 << 32))
def test_at_random_no_guest_begins_beside_a_prefill_or_before_own_requests(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(rng.randint(1, 3), POLICY)
    asked: set[str] = set()
    over: set[str] = set()
    running: dict[str, Lease] = {}
    for number in range(rng.randint(10, 80)):
        now = number * 0.05
        for _ in range(rng.choice((0, 1, 1, 6))):
            name = f"q{len(asked)}"
            own, there = (
                make_request(name, rng.choice((20, 150, 600)), now=now),
                guest(name, now, rng.choice((20, 600))),
            )
            if scheduler.submit(rng.choice((own, there)), now).accepted:
                asked.add(name)
        if rng.random() < 0.5 and (waits := sorted(asked - over - set(running))):
            gone = rng.choice(waits)
            assert scheduler.cancel(gone, now)
            over.add(gone)
        for name, lease in list(running.items()):
            if rng.random() < 0.4:
                scheduler.first_token(lease, now)
            if rng.random() < 0.2:
                assert scheduler.release(lease, Ending.FINISHED, None, now)
                over.add(name)
                del running[name]
        prefills = {name: one.prefill_tokens for name, one in scheduler.fleet.by_id.items()}
        placements = scheduler.step(now).placements
        for one in placements:
            if one.request.guest_of:
                assert prefills[one.lease.replica_id] == 0, "nothing was prefilled there"
                assert all(job.request.guest_of for job in scheduler.lanes.jobs.values()), "nobody else waits"
            prefills[one.lease.replica_id] += one.lease.prefill_tokens
            running[one.request.request_id] = one.lease
        places = [set(scheduler.lanes.jobs), set(scheduler.lanes.guests), set(running), over]
        assert sum(map(len, places)) == len(asked) == len(set().union(*places)), "each is in one place"


def test_what_is_no_guest_is_placed_as_if_there_were_no_room_for_guests() -> None:
    """The rule is for guests alone: an own request shares a prefill."""
    scheduler, _ = prefilling()
    scheduler.submit(dataclasses.replace(guest("g"), guest_of=""), 0.0)
    assert placed(scheduler, 0.1) == ["g"]
