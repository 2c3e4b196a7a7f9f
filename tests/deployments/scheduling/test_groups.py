"""Groups of replicas: no request is placed where it does not fit or where its lane names no group; what one group has
no room for, the next one serves; a job that waits for one group keeps none from another."""

import dataclasses

import pytest

from deployments.scheduling import (
    AdmissionKind,
    Capacity,
    Ending,
    LanePolicy,
    PickReason,
    Placement,
    RejectCause,
    Scheduler,
    SchedulingPolicy,
    Usage,
)
from deployments.scheduling.replica import ReplicaStatus
from tests.deployments.scheduling.world import make_request, submit_all

CHEAP = Capacity(2, 0, 2_000, 400, 2.0, "cheap", 1_000)
DEAR = Capacity(4, 0, 16_000, 2_000, 2.0, "dear", 8_000)
CONTEXTS = {"cheap": 1_000, "dear": 8_000}
LANES = (LanePolicy("short", 500, 4.0, 20.0), LanePolicy("long", None, 1.0, 40.0))
POLICY = SchedulingPolicy(
    LANES, decode_weight=1.0, groups={"short": ("cheap", "dear"), "long": ("dear",)}, contexts=CONTEXTS
)
ALL = dataclasses.replace(
    POLICY, lanes=(LANES[0], LanePolicy("long")), groups=dict.fromkeys(("short", "long"), ("cheap", "dear"))
)


def make(policy: SchedulingPolicy = POLICY, **replicas: Capacity) -> Scheduler:
    scheduler = Scheduler(policy)
    for name, capacity in replicas.items():
        scheduler.replica_up(name, capacity, 0.0)
    return scheduler


def submit(
    scheduler: Scheduler, name: str, prompt: int = 100, output: int | None = 50, now: float = 0.0
) -> AdmissionKind:
    return scheduler.submit(make_request(name, prompt, output, now), now).kind


def placed(scheduler: Scheduler, now: float = 0.0) -> dict[str, str]:
    """Which request went where."""
    return {one.request.request_id: one.replica_id for one in step(scheduler, now)}


def step(scheduler: Scheduler, now: float) -> tuple[Placement, ...]:
    return scheduler.step(now).placements


def test_the_first_group_with_room_serves_and_then_the_next() -> None:
    scheduler = make(c=CHEAP, d=DEAR)
    for number in range(4):
        submit(scheduler, f"q{number}")
    found = {one.request.request_id: (one.replica_id, one.reason) for one in step(scheduler, 0.0)}
    assert found["q0"] == ("c", PickReason.ONLY_FIT)
    assert found["q1"][0] == "c", "the dear one is empty, but its turn comes when the cheap one is full"
    assert found["q2"] == found["q3"] == ("d", PickReason.NEXT_GROUP)


def test_a_request_without_a_bound_counts_with_the_outputs_of_its_kind() -> None:
    scheduler = make(ALL, c=CHEAP, d=DEAR)
    submit(scheduler, "first", prompt=700, output=None)
    assert placed(scheduler) == {"first": "c"}, "256 are assumed before any was seen"
    (lease, _), *_ = scheduler.leases.values()
    scheduler.release(lease, Ending.FINISHED, Usage(700, 0, 400, 0), 1.0)
    submit(scheduler, "second", prompt=700, output=None, now=1.0)
    assert placed(scheduler, 1.0) == {"second": "d"}, "700 and 400 are more than the context"


def test_an_estimated_prompt_counts_with_its_likely_maximum() -> None:
    scheduler = make(c=CHEAP, d=DEAR)
    request = dataclasses.replace(make_request("q", 900, 50), max_prompt_tokens=960)
    scheduler.submit(request, 0.0)
    assert placed(scheduler) == {"q": "d"}
    beyond = dataclasses.replace(make_request("r", 7_900, 50), max_prompt_tokens=9_000)
    assert scheduler.submit(beyond, 0.0).accepted, "its engine knows better whether it fits"
    assert placed(scheduler) == {"r": "d"}


def test_what_fits_no_group_is_rejected() -> None:
    admission = make(c=CHEAP, d=DEAR).submit(make_request("q", 7_990, 50), 0.0)
    assert (admission.kind, admission.cause) == (AdmissionKind.REJECT, RejectCause.CONTEXT)


def test_a_lane_without_a_group_of_that_context_passes_the_request_on() -> None:
    lanes = (LanePolicy("short", 5_000), LanePolicy("long"))
    policy = SchedulingPolicy(lanes, groups={"short": ("cheap",), "long": ("dear",)}, contexts=CONTEXTS)
    scheduler = make(policy, c=CHEAP, d=DEAR)
    assert scheduler.submit(make_request("q", 2_000, 50), 0.0).lane == "long"
    assert placed(scheduler) == {"q": "d"}
    shorter = dataclasses.replace(policy, groups={"short": ("dear",), "long": ("cheap",)})
    scheduler = make(shorter, c=CHEAP, d=DEAR)
    assert scheduler.submit(make_request("q", 6_000, 50), 0.0).lane == "short", "no longer one has it"


def test_who_waits_longest_for_a_group_is_served_first_whatever_else_it_may_use() -> None:
    scheduler = make(ALL, c=dataclasses.replace(CHEAP, sequences=1), d=dataclasses.replace(DEAR, sequences=1))
    submit(scheduler, "on c", prompt=600)
    submit(scheduler, "on d", prompt=2_000)
    assert placed(scheduler) == {"on c": "c", "on d": "d"}
    submit(scheduler, "first", prompt=2_000, now=1.0)
    submit(scheduler, "second", prompt=600, now=2.0)
    assert placed(scheduler, 2.0) == {}
    lease = next(lease for lease, _ in scheduler.leases.values() if lease.replica_id == "d")
    scheduler.release(lease, Ending.FINISHED, None, 3.0)
    assert placed(scheduler, 3.0) == {"first": "d"}


def test_the_replicas_of_a_group_with_two_contexts_are_compared_by_speed() -> None:
    """As they are while a group's context changes."""
    scheduler = make(
        SchedulingPolicy((LanePolicy("all"),), groups={"all": ("g", "h")}, contexts={"g": 8_000, "h": 8_000}),
        old=Capacity(8, 0, 90_000, 4_000, 2.0, "g", 4_000),
        new=Capacity(8, 0, 90_000, 4_000, 2.0, "g", 8_000),
    )
    scheduler.fleet.by_id["old"].prefill_tokens_per_s = 1_000.0
    scheduler.fleet.by_id["new"].prefill_tokens_per_s = 20_000.0
    submit(scheduler, "a", prompt=3_000)
    (first,) = step(scheduler, 0.0)
    submit(scheduler, "b", prompt=3_000)
    (second,) = step(scheduler, 0.0)
    assert [(one.replica_id, one.reason) for one in (first, second)] == [("new", PickReason.SHORTEST_TTFT)] * 2, (
        "6,000 tokens there are sooner than 3,000 on the slow one"
    )


def test_a_replica_is_compared_with_its_own_group() -> None:
    scheduler = Scheduler(POLICY)
    for number in range(3):
        scheduler.replica_up(f"c{number}", CHEAP, 0.0)
        scheduler.replica_up(f"d{number}", DEAR, 0.0)
        scheduler.fleet.by_id[f"c{number}"].tpot_s = 0.09
        scheduler.fleet.by_id[f"d{number}"].tpot_s = 0.01
    scheduler.step(10.0)
    assert {one.status for one in scheduler.fleet.by_id.values()} == {ReplicaStatus.READY}, "cheap is not broken"
    scheduler.fleet.by_id["d1"].tpot_s = 0.09
    scheduler.step(20.0)
    assert [name for name, one in scheduler.fleet.by_id.items() if one.status is ReplicaStatus.EJECTED] == ["d1"]


def drain_at(scheduler: Scheduler, replica_id: str, service_s: float, now: float, until_s: float) -> dict[str, float]:
    """Runs what waits for a replica of one sequence, `service_s` each, until then: when each request was placed."""
    at: dict[str, float] = {}
    while now < until_s:
        for one in step(scheduler, now):
            at[one.request.request_id] = now
        now += service_s
        for lease, _ in list(scheduler.leases.values()):
            if lease.replica_id == replica_id:
                scheduler.first_token(lease, now)
                scheduler.release(lease, Ending.FINISHED, None, now)
    return at


def test_the_wait_is_estimated_by_what_the_lane_may_use() -> None:
    """The cheap replica does ten requests a second, and nothing waits for it; the dear one does one in five seconds."""
    scheduler = make(POLICY, c=dataclasses.replace(CHEAP, sequences=1), d=dataclasses.replace(DEAR, sequences=1))
    submit_all(scheduler, 10, "long", prompt=2_000, slo=900.0)
    now = 0.0
    for turn in range(200):
        submit(scheduler, f"short{turn}", now=now)
        scheduler.step(now)
        now += 0.1
        for lease, _ in list(scheduler.leases.values()):
            if lease.replica_id == "c" or now - lease.placed_s >= 4.95:
                scheduler.first_token(lease, now)
                scheduler.release(lease, Ending.FINISHED, None, now)
    waiting = sum(lane.count for lane in scheduler.lanes.all)
    assert waiting == 6, "four of the long ones are done or run"
    admission = scheduler.submit(make_request("last", 2_000, 50, now, slo=900.0), now)
    assert admission.eta_s is not None
    assert admission.eta_s[0] == pytest.approx(5.0 * waiting, rel=0.4), "not by the rate of both groups together"
    assert {one.group: one.tokens_per_s for one in scheduler.snapshot(now).groups}["dear"] == pytest.approx(
        (2_000 + 50) / 5.0, rel=0.25
    )
    at = drain_at(scheduler, "d", 5.0, now, now + 60.0)
    assert at["last"] - now == pytest.approx(admission.eta_s[0], rel=0.4)


def test_what_waits_for_other_groups_alone_is_not_waited_for_and_each_groups_work_is_counted() -> None:
    scheduler = make(dataclasses.replace(POLICY, groups={"short": ("cheap",), "long": ("dear",)}), c=CHEAP, d=DEAR)
    for now in (0.0, 10.0, 20.0, 30.0):
        for name, prompt in (("short", 100), ("long", 600)):
            submit(scheduler, f"{name}{now}", prompt, now=now)
        for one in step(scheduler, now):
            usage = Usage(one.request.prompt_tokens, 0, 40, 0)
            scheduler.release(one.lease, Ending.FINISHED, usage, now + 5.0)
    rows = {one.group: one for one in scheduler.snapshot(40.0).groups}
    assert {(one.finished, one.counted, one.output_tokens) for one in rows.values()} == {(4, 4, 160)}
    assert rows["dear"].finished_work == pytest.approx(4 * 645, rel=0.01)
    for number in range(8):
        submit(scheduler, f"l{number}", 600, now=40.0)
    step(scheduler, 40.0)
    last = make_request("last", 600, 50, 40.0)
    before = scheduler.waiting.expected(last, 40.0)
    for number in range(9):
        submit(scheduler, f"s{number}", now=40.0)
    assert scheduler.waiting.expected(last, 40.0) == before
    submit(scheduler, "one more", 600, now=40.0)
    assert (scheduler.waiting.expected(last, 40.0).p95_s or 0.0) > (before.p95_s or 0.0)


def test_a_lane_is_full_by_the_rate_of_its_own_groups() -> None:
    lanes = (LANES[0], dataclasses.replace(LANES[1], cap_s=10.0))
    scheduler = make(dataclasses.replace(POLICY, lanes=lanes), c=CHEAP, d=dataclasses.replace(DEAR, sequences=1))
    for number in range(8):
        submit(scheduler, f"first{number}", prompt=2_000)
    drain_at(scheduler, "d", 5.0, 0.0, 40.0)
    kinds = [submit(scheduler, f"q{number}", prompt=2_000, now=40.0) for number in range(8)]
    scheduler.step(40.0)
    assert kinds.count(AdmissionKind.REJECT) >= 4, "two requests are ten seconds of the dear one"
    assert submit(scheduler, "short", now=40.0) is not AdmissionKind.REJECT


def test_a_waiting_room_is_one_of_its_own_groups() -> None:
    scheduler = make(POLICY, c=CHEAP)
    scheduler.expect_replica(90.0, 0.0, "dear")
    patient, hasty = make_request("a", 3_000, patience=100.0), make_request("b", 3_000, patience=50.0)
    assert scheduler.submit(hasty, 0.0).cause is RejectCause.STARTING
    assert scheduler.submit(patient, 0.0).accepted
    assert scheduler.submit(make_request("c", 100, patience=5.0), 0.0).kind is AdmissionKind.ADMIT, (
        "the cheap one is up"
    )
    scheduler.expect_replica(200.0, 1.0, "dear")
    assert [gone.request.request_id for gone in scheduler.step(1.0).turned_away] == ["a"]


def test_an_outage_of_one_group_is_none_where_another_one_serves() -> None:
    scheduler = make(POLICY, c=CHEAP, d=DEAR)
    scheduler.replica_lost("d", 1.0)
    short, long = make_request("s", now=1.0), make_request("l", 3_000, now=1.0)
    for request in (short, long):
        scheduler.submit(request, 1.0)
    jobs = scheduler.lanes.jobs
    assert [scheduler.outage.spoils(jobs[name]) for name in ("s", "l")] == [False, True]
    scheduler.replica_up("d", DEAR, 2.0)
    assert [scheduler.outage.spoils(jobs[name]) for name in ("s", "l")] == [False, True], "it was a part of its wait"


def test_a_snapshot_shows_where_the_requests_of_each_lane_run_and_the_promoted_that_wait() -> None:
    scheduler = make(c=CHEAP, d=DEAR)
    for number in range(4):
        submit(scheduler, f"q{number}")
    submit(scheduler, "long", prompt=600)
    placements = {one.request.request_id: one for one in step(scheduler, 0.0)}
    rows = scheduler.snapshot(0.0).demands
    assert {one.lane: one.running for one in rows} == {"short": (("cheap", 2), ("dear", 2)), "long": (("dear", 1),)}
    for name in ("q0", "long"):
        scheduler.release(placements[name].lease, Ending.FINISHED, None, 1.0)
    assert {one.lane: one.running for one in scheduler.snapshot(1.0).demands} == {
        "short": (("cheap", 1), ("dear", 2)),
        "long": (),
    }
    waiting = make(d=dataclasses.replace(DEAR, sequences=1))
    for number in range(2):
        submit(waiting, f"q{number}")
    step(waiting, 0.0)
    step(waiting, 30.0)
    found = [(one.lane, one.waiting, one.arrived) for one in waiting.snapshot(30.0).demands]
    assert found == [("short", 0, 2), ("promoted", 1, 0)]
