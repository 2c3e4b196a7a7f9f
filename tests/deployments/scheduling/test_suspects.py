"""Queries of death: at most two replicas are lost to one, bystanders are answered, and what is suspected is
forgotten."""

from collections import Counter
from dataclasses import replace

import pytest

from deployments.scheduling import AdmissionKind, Capacity, Ending, Lease, RejectCause, Request, Scheduler, Suspicion
from deployments.scheduling.request import FORGET_S
from deployments.scheduling.suspects import MAX, RECENT_S, SuspectRun, Suspects
from tests.deployments.scheduling.world import POLICY, make_request, make_scheduler

BIG = Capacity(sequences=16, ahead=0, kv_tokens=100_000, step_tokens=100_000, prefill_steps=2.0)


def ask(name: str, body: str = "", now: float = 0.0, patience: float = 600.0) -> Request:
    return replace(make_request(name, now=now, patience=patience), digest=body or f"body of {name}")


def placed(replicas: int, digest: str) -> tuple[Scheduler, Lease]:
    """One of so many replicas runs a request."""
    scheduler = make_scheduler(replicas)
    return scheduler, place(scheduler, ask("first", digest), 0.0)


def place(scheduler: Scheduler, request: Request, now: float) -> Lease:
    assert scheduler.submit(request, now).accepted
    (placement,) = scheduler.step(now).placements
    return placement.lease


def lose(scheduler: Scheduler, lease: Lease, now: float) -> None:
    """The lease's replica dies, as the shell hears of it first: the request waits again, and then the process is
    gone."""
    scheduler.died(lease, now)
    scheduler.release(lease, Ending.REFUSED, None, now)
    scheduler.replica_lost(lease.replica_id, now)


def test_a_request_that_ran_when_two_replicas_died_is_not_placed_a_third_time_and_neither_is_its_like() -> None:
    scheduler = make_scheduler(3)
    first = place(scheduler, ask("first", "deadly"), 1.0)
    lose(scheduler, first, 2.0)
    (again,) = scheduler.step(2.0).placements
    assert again.request == first.request
    lose(scheduler, again.lease, 3.0)
    step = scheduler.step(3.0)
    assert step.placements == ()
    (gone,) = step.turned_away
    assert (gone.request, gone.admission.cause) == (first.request, RejectCause.QUERY_OF_DEATH)
    assert gone.admission.retry_after_s == FORGET_S
    assert step.suspicions == (Suspicion("deadly", 2, False, 3.0),)
    retried = scheduler.submit(ask("retried", "deadly"), 4.0)
    assert (retried.kind, retried.cause, retried.retry_after_s) == (
        AdmissionKind.REJECT,
        RejectCause.QUERY_OF_DEATH,
        FORGET_S - 1.0,
    )
    assert place(scheduler, ask("another"), 4.0).replica_id == "r2"


def test_one_completed_run_clears_it() -> None:
    scheduler = make_scheduler(4)
    for number in range(3):
        lease = place(scheduler, ask(f"crash-{number}", "bystander"), 10.0 * number)
        lose(scheduler, lease, 10.0 * number + 1)
        (again,) = scheduler.step(10.0 * number + 1).placements
        scheduler.release(again.lease, Ending.FINISHED, None, 10.0 * number + 2)
        assert scheduler.step(10.0 * number + 2).suspicions == (Suspicion("bystander", 0, False, 0.0),)
    assert scheduler.suspects.bans == 0


@pytest.mark.parametrize("ending", [Ending.CANCELLED, Ending.FAILED])
def test_a_run_that_did_not_complete_clears_nothing(ending: Ending) -> None:
    scheduler = make_scheduler(3)
    lose(scheduler, place(scheduler, ask("one", "body"), 0.0), 1.0)
    (again,) = scheduler.step(1.0).placements
    scheduler.release(again.lease, ending, None, 2.0)
    lose(scheduler, place(scheduler, ask("two", "body"), 20.0), 21.0)
    assert scheduler.submit(ask("three", "body"), 22.0).cause is RejectCause.QUERY_OF_DEATH


def test_a_death_is_forgotten_in_time_and_a_ban_becomes_a_suspicion() -> None:
    scheduler, lease = placed(4, "deadly")
    lose(scheduler, lease, 1.0)
    (again,) = scheduler.step(1.0).placements
    lose(scheduler, again.lease, 2.0)
    scheduler.step(2.0)
    assert not scheduler.submit(ask("early", "deadly", 601.9), 601.9).accepted
    lose(scheduler, place(scheduler, ask("late", "deadly", 602.0), 602.0), 603.0)
    assert not scheduler.submit(ask("later", "deadly", 604.0), 604.0).accepted, "it costs one replica, not two"
    scheduler.step(603.0 + FORGET_S)
    (reported,) = scheduler.suspects.all(603.0 + FORGET_S)
    assert reported.deaths == 1
    assert scheduler.step(603.0 + 2 * FORGET_S).suspicions == (Suspicion("deadly", 0, False, 0.0),)
    assert scheduler.suspects.all(603.0 + 2 * FORGET_S) == ()


def test_a_replica_that_drains_and_goes_proves_nothing() -> None:
    scheduler, lease = placed(3, "body")
    scheduler.replica_draining(lease.replica_id, 1.0)
    scheduler.died(lease, 2.0)
    scheduler.replica_lost(lease.replica_id, 2.0)
    assert scheduler.suspects.all(2.0) == ()


def test_a_replica_that_is_back_was_not_dead() -> None:
    scheduler, lease = placed(2, "body")
    scheduler.died(lease, 1.0)  # its connection broke
    scheduler.release(lease, Ending.REFUSED, None, 1.0)
    scheduler.replica_unresponsive(lease.replica_id, 1.0)
    scheduler.replica_up(lease.replica_id, BIG, 1.5)
    assert scheduler.suspects.all(2.0) == ()


def test_what_failed_long_before_its_replica_went_has_nothing_to_do_with_it() -> None:
    scheduler, lease = placed(1, "body")
    scheduler.release(lease, Ending.FAILED, None, 1.0)
    scheduler.replica_lost("r0", 1.1 + RECENT_S)
    assert scheduler.suspects.all(30.0) == ()


def test_whose_client_left_a_replica_that_hung_is_suspected_too() -> None:
    scheduler, lease = placed(1, "body")
    scheduler.release(lease, Ending.CANCELLED, None, 5.0)
    scheduler.replica_lost("r0", 15.0)
    assert [reported.key for reported in scheduler.suspects.all(15.0)] == ["body"]


def test_those_that_ran_beside_a_trial_are_not_suspected_for_it() -> None:
    """r0 dies with a killer and two bystanders; r1 with the killer, which is tried, one of the bystanders, and
    another."""
    scheduler = make_scheduler(1, POLICY, BIG)
    for name in ("tried-before", "killer", "answered"):
        lease = place(scheduler, ask(name), 0.0)
        if name == "answered":
            scheduler.first_token(lease, 0.5)
    for lease in [lease for lease, _ in scheduler.leases.values()]:
        scheduler.died(lease, 1.0)
        scheduler.release(lease, Ending.REFUSED, None, 1.0)
    scheduler.replica_lost("r0", 1.0)
    scheduler.replica_up("r1", BIG, 1.0)
    scheduler.submit(ask("another"), 1.0)
    running = {placement.request.request_id: placement.lease for placement in scheduler.step(1.0).placements}
    assert set(running) == {"tried-before", "another"}
    scheduler.first_token(running["tried-before"], 1.5)
    running |= {placement.request.request_id: placement.lease for placement in scheduler.step(1.5).placements}
    assert set(running) == {"tried-before", "another", "killer"}
    for name in ("another", "tried-before", "killer"):
        scheduler.died(running[name], 2.0)
        scheduler.release(running[name], Ending.REFUSED, None, 2.0)
    scheduler.replica_lost("r1", 2.0)
    scheduler.replica_up("r2", BIG, 2.0)
    step = scheduler.step(2.0)
    assert {placement.request.request_id for placement in step.placements} == {"tried-before", "answered", "another"}
    assert [gone.request.request_id for gone in step.turned_away] == ["killer"]
    assert {reported.key: reported.deaths for reported in scheduler.suspects.all(2.0)} == {
        "body of killer": 2,
        "body of tried-before": 1,
        "body of answered": 1,
    }


def test_suspects_are_tried_one_at_a_time_and_nobody_waits_behind_them() -> None:
    scheduler = make_scheduler(1, POLICY, BIG)
    leases = [place(scheduler, ask(f"q{number}"), 0.0) for number in range(3)]
    scheduler.replica_lost("r0", 1.0)
    scheduler.replica_up("r1", BIG, 1.0)
    scheduler.replica_up("r2", BIG, 1.0)
    for lease in leases:
        assert scheduler.submit(replace(lease.request, attempts=1), 1.0, admitted=True).accepted
    scheduler.submit(ask("new"), 1.0)
    order = []
    for second in range(1, 4):
        step = scheduler.step(second)
        tried = [placement for placement in step.placements if placement.request.request_id != "new"]
        assert len(tried) == 1
        order.append(tried[0].request.request_id)
        assert ("new" in {placement.request.request_id for placement in step.placements}) == (second == 1)
        assert scheduler.step(second + 0.5).placements == ()
        scheduler.first_token(tried[0].lease, second + 0.5)
    assert order == ["q0", "q1", "q2"]


def test_who_is_tried_comes_before_all_others_of_its_lane() -> None:
    scheduler = make_scheduler(1, POLICY, BIG)
    suspect = place(scheduler, ask("suspect"), 0.0)
    scheduler.replica_lost("r0", 1.0)
    for number in range(3):
        scheduler.submit(ask(f"q{number}"), 1.0)
    scheduler.submit(replace(suspect.request, attempts=1), 1.0, admitted=True)
    scheduler.replica_up("r1", Capacity(2, 0, 4_000, 300, prefill_steps=2.0), 1.0)
    placements = scheduler.step(1.0).placements
    assert [(placement.request.request_id, placement.lane) for placement in placements] == [
        ("suspect", "short"),
        ("q0", "short"),
    ]


@pytest.mark.parametrize("home", ["", "eu"])
def test_of_one_suspect_one_run_goes_on_until_its_outcome_settles_it_for_all(home: str) -> None:
    """Its like that waited in the lane, or as a guest, when the replica died waits aside as well."""
    scheduler = make_scheduler(1, POLICY, Capacity(1, 0, 4_000, 300, prefill_steps=2.0))
    first = place(scheduler, ask("q0", "same"), 0.0)
    scheduler.first_token(first, 0.2)
    for number in range(1, 4):
        scheduler.submit(replace(ask(f"q{number}", "same"), guest_of=home), 0.5)
    assert scheduler.step(0.5).placements == ()
    scheduler.replica_lost("r0", 1.0)
    scheduler.replica_up("r1", BIG, 1.0)
    (only,) = scheduler.step(1.0).placements
    assert len(scheduler.lanes.aside) == 2
    scheduler.release(only.lease, Ending.FINISHED, None, 2.0)
    assert len(scheduler.step(2.0).placements) == 2


def test_who_waits_aside_can_be_cancelled_expires_and_is_no_news_twice() -> None:
    scheduler = make_scheduler(1, POLICY, BIG)
    leases = [place(scheduler, ask(f"q{number}", patience=30.0), 0.0) for number in range(3)]
    scheduler.replica_lost("r0", 1.0)
    for lease in leases:
        scheduler.submit(replace(lease.request, attempts=1), 1.0, admitted=True)
    scheduler.step(1.0)
    assert set(scheduler.lanes.aside) == {"q1", "q2"}
    assert scheduler.submit(ask("q1"), 2.0).cause is RejectCause.DUPLICATE_ID
    assert scheduler.cancel("q1", 2.0)
    assert not scheduler.cancel("q1", 2.0)
    assert scheduler.next_wakeup() == 10.0
    scheduler.step(10.0)
    assert scheduler.next_wakeup() == 30.0
    assert {request.request_id for request in scheduler.step(30.0).expired} == {"q0", "q2"}
    assert not scheduler.lanes.aside


def test_waiting_aside_counts_for_the_models_bound() -> None:
    scheduler = make_scheduler(1, POLICY, BIG)
    place(scheduler, ask("q0", "same"), 0.0)
    scheduler.replica_lost("r0", 1.0)
    kinds = Counter(
        scheduler.submit(ask(f"again-{number}", "same"), 2.0).cause for number in range(POLICY.max_waiting + 5)
    )
    assert kinds == {None: POLICY.max_waiting, RejectCause.MODEL_FULL: 5}


def test_a_new_owner_knows_what_it_is_told() -> None:
    scheduler = make_scheduler(1)
    scheduler.recall(Suspicion("deadly", 2, False, 90.0), 100.0)
    scheduler.recall(Suspicion("deadly", 1, True, 95.0), 100.0)
    assert scheduler.submit(ask("try", "deadly"), 100.0).retry_after_s == FORGET_S - 10.0
    scheduler.recall(Suspicion("old", 1, False, -600.0), 100.0)
    assert {reported.key for reported in scheduler.suspects.all(100.0)} == {"deadly"}


def test_what_is_remembered_is_bounded() -> None:
    suspects = Suspects()
    for number in range(MAX + 10):
        suspects.died(SuspectRun(f"r{number}", f"q{number}", False, False), None, float(number) / 100)
        suspects.gone(f"r{number}", float(number) / 100)
    assert len(suspects.all(50.0)) == MAX
    assert suspects.of("q0", 50.0) is None
    suspects.news()
    assert suspects._inquests == {}
    assert len(suspects._failed) == 0
