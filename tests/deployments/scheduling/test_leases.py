"""The life of a lease in the scheduler's books: attempts, refusals, ends, what is forgotten with them."""

import dataclasses

import pytest

from deployments.scheduling import Ending, Lease, PickReason, RejectCause, Scheduler, Usage
from deployments.scheduling.fleet import _best
from tests.deployments.scheduling.world import CAPACITY, POLICY, make_request, make_scheduler


def placed(scheduler: Scheduler, name: str = "q", now: float = 0.0, **sizes: object) -> Lease:
    """Submits a request that is placed at once."""
    assert scheduler.submit(make_request(name, now=now, **sizes), now).accepted  # type: ignore[arg-type]
    (placement,) = scheduler.step(now).placements
    return placement.lease


def test_every_placement_of_a_request_is_another_attempt() -> None:
    scheduler = make_scheduler(2)
    scheduler.submit(dataclasses.replace(make_request("q"), attempts=3), 0.0)
    seen = []
    for _ in range(4):
        (placement,) = scheduler.step(0.0).placements
        seen.append(placement.lease.attempt_id)
        scheduler.release(placement.lease, Ending.REFUSED, None, 0.0)
    assert seen == ["q-4", "q-5", "q-6", "q-7"]


@pytest.mark.parametrize("ending", [Ending.FINISHED, Ending.CANCELLED, Ending.FAILED])
def test_the_name_of_an_ended_request_may_be_used_again(ending: Ending) -> None:
    scheduler = make_scheduler()
    lease = placed(scheduler)
    assert scheduler.submit(make_request("q"), 0.0).cause is RejectCause.DUPLICATE_ID
    assert scheduler.release(lease, ending, None, 1.0)
    assert not scheduler.release(lease, ending, None, 1.0), "a lease ends once"
    assert scheduler.submit(make_request("q", now=1.0), 1.0).accepted


def test_a_request_that_was_refused_and_gave_up_may_come_again() -> None:
    scheduler = make_scheduler()
    scheduler.release(placed(scheduler), Ending.REFUSED, None, 0.0)
    assert scheduler.submit(make_request("q"), 0.0).cause is RejectCause.DUPLICATE_ID
    assert scheduler.cancel("q", 0.0)
    assert scheduler.submit(make_request("q"), 0.0).accepted


def test_a_lost_replicas_prefixes_are_forgotten() -> None:
    scheduler = make_scheduler(2)
    prefix = tuple(range(4))
    lease = placed(scheduler, prompt=250, prefix=prefix)
    scheduler.replica_lost(lease.replica_id, 0.0)
    assert scheduler.learned_state.prefixes.longest(prefix) == (0, frozenset())
    scheduler.replica_up(lease.replica_id, CAPACITY, 1.0)
    scheduler.submit(make_request("again", prompt=250, now=1.0, prefix=prefix), 1.0)
    assert scheduler.lanes.jobs["again"].credit_tokens == 0, "its new process has an empty cache"
    (placement,) = scheduler.step(1.0).placements
    assert placement.lease.prefill_tokens == 250
    assert placement.reason is not PickReason.CACHED_PREFIX


def test_a_placement_tells_what_was_booked_and_how_long_it_waited() -> None:
    scheduler = make_scheduler(0)
    scheduler.submit(make_request("q", prompt=100, output=50, sequences=2), 0.0)
    scheduler.replica_up("r0", CAPACITY, 3.0)
    (placement,) = scheduler.step(3.5).placements
    assert placement.lease == Lease(
        1, make_request("q", prompt=100, output=50, sequences=2), "r0", 3.5, 1, 200, 300, 50, 1
    )
    assert (placement.lane, placement.promoted, placement.waited_s, placement.reason) == (
        "medium",
        False,
        3.5,
        PickReason.ONLY_FIT,
    )
    assert placement.eta_s == (0.0, pytest.approx(0.2))


def test_an_adopted_lease_is_booked_as_it_is_told() -> None:
    scheduler = make_scheduler(1)
    reported = Lease(77, dataclasses.replace(make_request("q", tenant="b"), attempts=2), "r0", 1.0, 4, 120, 200, 40, 9)
    lease = scheduler.adopt(reported, False, 5.0)
    assert lease == dataclasses.replace(reported, lease_id=1, home=0)
    replica = scheduler.fleet.by_id["r0"]
    assert (replica.kv_tokens, replica.prefill_tokens, replica.sequences) == (200, 120, 1)
    (_, job), *_ = scheduler.leases.values()
    assert (job.cost, job.attempt, job.home_name) == (120 + POLICY.decode_weight * 40, 2, "short")
    assert scheduler.submit(make_request("q"), 5.0).cause is RejectCause.DUPLICATE_ID
    assert scheduler.adopt(dataclasses.replace(reported, replica_id="nobody"), False, 5.0) is None
    assert (scheduler.tally.adopted, scheduler.snapshot(5.0).adopted) == (1, 1)
    assert scheduler.release(lease, Ending.REFUSED, None, 6.0)
    (placement,) = scheduler.step(6.0).placements
    assert placement.lease.attempt == 5


def test_an_adopted_lease_that_has_begun_to_answer_has_no_prefill_left() -> None:
    scheduler = make_scheduler(2)
    assert scheduler.adopt(Lease(0, make_request("q"), "r0", 1.0, 1, 120, 200, 40, 0), True, 5.0) is not None
    assert scheduler.fleet.by_id["r0"].prefill_tokens == 0
    assert scheduler.snapshot(5.0).flows == ()
    assert [replica.replica_id for replica in _best(scheduler.fleet.kinds[0].by_load)[:2]] == ["r1", "r0"]


def test_a_first_token_counts_once_and_only_while_the_lease_stands() -> None:
    scheduler = make_scheduler(1)
    one, two = placed(scheduler, "one"), placed(scheduler, "two")
    for _ in range(2):
        scheduler.first_token(one, 1.0)
    scheduler.release(two, Ending.CANCELLED, None, 1.0)
    scheduler.first_token(two, 1.0)
    (flow,) = scheduler.snapshot(1.0).flows
    assert (flow.met, flow.missed) == (1, 0)


def test_a_request_meets_its_slo_once_though_its_replica_dies_after_the_first_token() -> None:
    """The replica told of the token, and no byte had reached the gateway."""
    scheduler = make_scheduler(1)
    lease = placed(scheduler, "q")
    scheduler.first_token(lease, 1.0)
    scheduler.release(lease, Ending.REFUSED, None, 1.0)
    (again,) = scheduler.step(2.0).placements
    scheduler.first_token(again.lease, 9.0)
    (flow,) = scheduler.snapshot(9.0).flows
    assert (flow.arrived, flow.met, flow.missed) == (1, 1, 0)


def test_an_end_before_the_first_token_counts_by_its_reason() -> None:
    scheduler = make_scheduler(1)
    for name, ending, now in (
        ("failed", Ending.FAILED, 1.0),
        ("in time", Ending.CANCELLED, 5.0),
        ("too late", Ending.CANCELLED, 5.1),
    ):
        scheduler.release(placed(scheduler, name), ending, None, now)
    answered = placed(scheduler, "answered", 6.0)
    scheduler.first_token(answered, 7.0)
    scheduler.release(answered, Ending.FAILED, None, 99.0)
    (flow,) = scheduler.snapshot(99.0).flows
    assert (flow.arrived, flow.met, flow.missed) == (4, 1, 2)


def test_only_finished_work_counts_for_the_rate() -> None:
    scheduler = make_scheduler(1)
    for number, ending in enumerate((Ending.FINISHED, Ending.CANCELLED, Ending.FAILED, Ending.FINISHED)):
        scheduler.release(placed(scheduler, f"q{number}", float(number)), ending, None, number + 0.5)
    snapshot = scheduler.snapshot(9.0)
    assert (snapshot.finished, snapshot.finished_work) == (2, 2 * (100 + 2.0 * 50))
    assert snapshot.endings == {"finished": 2, "cancelled": 1, "failed": 1, "refused": 0}
    assert scheduler.rate.finished.per_s == pytest.approx(400 / 2.0, rel=0.1), "two seconds in all did anything run"


def test_the_engines_account_teaches_once_it_is_there() -> None:
    scheduler = make_scheduler(1)
    lease = placed(scheduler, prompt=100, output=400)
    scheduler.release(lease, Ending.CANCELLED, Usage(100, 0, 30, 0, 1, 0.01, 3.0), 1.0)
    assert scheduler.snapshot(1.0).counted == 0, "what was cancelled says nothing of how long answers are"
    scheduler.learn(lease, Usage(100, 0, 0, 0, 0), 1.0)
    assert scheduler.snapshot(1.0).counted == 0, "nor does an account of nothing"
    scheduler.replica_lost("r0", 2.0)
    scheduler.learn(lease, Usage(100, 0, 30, 0, 1, 0.01, 3.0), 2.0)
    snapshot = scheduler.snapshot(2.0)
    assert (snapshot.counted, snapshot.output_tokens) == (1, 30)
    assert scheduler.learned_state.outputs.expect(100, None) == (32, 32)


def test_a_lost_replicas_leases_are_returned_and_end() -> None:
    scheduler = make_scheduler(1)
    leases = [placed(scheduler, name) for name in "ab"]
    assert scheduler.replica_lost("nobody", 1.0) == ()
    assert scheduler.replica_lost("r0", 1.0) == tuple(leases)
    assert (scheduler.leases, scheduler.fleet.by_id) == ({}, {})
    assert scheduler.snapshot(1.0).endings["failed"] == 2
    assert scheduler.submit(make_request("a", now=1.0), 1.0).accepted, "their names are free again"
