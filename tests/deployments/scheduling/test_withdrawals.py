"""Requests that a peer cell serves: what becomes of their place, their tenant's limits, their SLO, their estimate."""

import pytest

from deployments.scheduling import (
    Ending,
    LanePolicy,
    RejectCause,
    Request,
    Scheduler,
    SchedulingPolicy,
    TenantPolicy,
    Usage,
)
from deployments.scheduling.request import Suspicion
from tests.deployments.scheduling.world import CAPACITY, make_request, make_scheduler

ONE_LANE = SchedulingPolicy((LanePolicy("all", None),), tenants={"t": TenantPolicy(max_concurrency=2)})


def busy(policy: SchedulingPolicy = ONE_LANE) -> Scheduler:
    """One replica, which is full."""
    scheduler = make_scheduler(1, policy)
    for number in range(CAPACITY.sequences + CAPACITY.ahead):
        scheduler.submit(make_request(f"runs{number}", 50), 0.0)
        scheduler.step(0.0)
    return scheduler


def waiting(scheduler: Scheduler, *names: str, tenant: str = "", now: float = 1.0) -> None:
    for name in names:
        assert scheduler.submit(make_request(name, now=now, tenant=tenant), now).accepted


def placed_when_free(scheduler: Scheduler, now: float) -> list[str]:
    """Ends all that runs; what is placed then, in that order."""
    for lease, _ in list(scheduler.leases.values()):
        scheduler.release(lease, Ending.FINISHED, None, now)
    return [placement.request.request_id for placement in scheduler.step(now).placements]


def slo(scheduler: Scheduler) -> tuple[int, int]:
    """Met and missed."""
    flows = scheduler.snapshot(0.0).flows
    return sum(flow.met for flow in flows), sum(flow.missed for flow in flows)


def test_what_is_withdrawn_is_in_no_lane_and_not_given_up() -> None:
    scheduler = busy()
    waiting(scheduler, "a", "b")
    assert scheduler.withdraw("a", 99.0)
    snapshot = scheduler.snapshot(99.0)
    assert (snapshot.withdrawn, snapshot.away, snapshot.lanes[0].waiting) == (1, 1, 1)
    assert slo(scheduler) == (0, 0), "though its deadline has passed"
    assert snapshot.flows[0].arrived == CAPACITY.sequences + CAPACITY.ahead + 2, "it is still this cell's demand"
    assert placed_when_free(scheduler, 100.0) == ["b"]


@pytest.mark.parametrize("name", ["nobody", "runs0", "gone"])
def test_only_what_waits_is_withdrawn(name: str) -> None:
    scheduler = busy()
    waiting(scheduler, "gone")
    scheduler.cancel("gone", 1.0)
    assert not scheduler.withdraw(name, 2.0)
    assert not scheduler.put_back(name, 2.0)
    assert scheduler.snapshot(2.0).withdrawn == 0


def test_what_comes_back_waits_at_the_head_of_its_lane() -> None:
    scheduler = busy()
    waiting(scheduler, "first", "second", "third")
    assert scheduler.withdraw("third", 2.0)
    assert scheduler.put_back("third", 3.0)
    assert not scheduler.put_back("third", 3.0), "once"
    assert (scheduler.snapshot(3.0).away, scheduler.snapshot(3.0).withdrawn) == (0, 1)
    assert placed_when_free(scheduler, 4.0) == ["third", "first", "second"]


def test_it_counts_against_its_tenants_limits_until_it_is_over() -> None:
    scheduler = busy()
    waiting(scheduler, "a", "b", tenant="t")
    scheduler.withdraw("a", 2.0)
    refused = scheduler.submit(make_request("c", now=2.0, tenant="t"), 2.0)
    assert refused.cause is RejectCause.TENANT_CONCURRENCY
    assert scheduler.cancel("a", 3.0)
    assert not scheduler.cancel("a", 3.0)
    assert scheduler.snapshot(3.0).away == 0
    waiting(scheduler, "d", tenant="t", now=3.0)


@pytest.mark.parametrize(("at_s", "counts"), [(5.9, (1, 0)), (6.1, (0, 1))])
def test_its_slo_is_met_or_missed_by_the_first_token_that_its_client_gets(at_s: float, counts: tuple[int, int]) -> None:
    scheduler = busy()
    waiting(scheduler, "a")
    scheduler.withdraw("a", 2.0)
    for _ in range(2):
        scheduler.first_token_away("a", at_s)
    scheduler.first_token_away("nobody", at_s)
    assert slo(scheduler) == counts
    scheduler.cancel("a", 60.0)
    assert slo(scheduler) == counts, "the end is no news"


@pytest.mark.parametrize(("at_s", "missed"), [(5.9, 0), (6.1, 1)])
def test_one_that_is_cancelled_without_a_token_has_missed_its_slo_after_its_deadline(at_s: float, missed: int) -> None:
    scheduler = busy()
    waiting(scheduler, "a")
    scheduler.withdraw("a", 2.0)
    scheduler.cancel("a", at_s)
    assert slo(scheduler) == (0, missed)


def test_its_id_is_taken_while_it_is_away() -> None:
    scheduler = busy()
    waiting(scheduler, "a")
    scheduler.withdraw("a", 2.0)
    assert scheduler.submit(make_request("a", now=2.0), 2.0).cause is RejectCause.DUPLICATE_ID


def test_its_wait_estimate_teaches_nothing() -> None:
    scheduler = busy()
    waiting(scheduler, "a")
    (eta,) = scheduler.forecasts.etas.values()
    assert eta.open == 1
    scheduler.withdraw("a", 600.0)
    assert (eta.open, eta.p95.total, eta.p95.censored) == (0, 0, 1)
    scheduler.put_back("a", 601.0)
    placed_when_free(scheduler, 602.0)
    assert (eta.open, eta.p95.total, eta.p95.censored) == (0, 0, 1)


def test_a_suspect_is_withdrawn_from_where_it_waits_and_comes_back_there() -> None:
    scheduler = busy()
    (lease, _) = next(iter(scheduler.leases.values()))
    scheduler.died(lease, 1.0)
    scheduler.submit(make_request("other", now=1.0), 1.0)
    key = lease.request.request_id
    scheduler.submit(Request("again", 50, 50, 1.0, 6.0, 600.0, digest=key), 1.0)
    assert set(scheduler.lanes.aside) == {"again"}
    assert scheduler.waiting.of("again", 1.0) is None, "nobody else is to serve a suspect"
    assert [one.request.request_id for one in scheduler.waiting.all(1.0)] == ["other"]
    assert scheduler.withdraw("again", 2.0)
    assert scheduler.put_back("again", 3.0)
    assert set(scheduler.lanes.aside) == {"again"}


@pytest.mark.parametrize("answers", [False, True])
def test_a_death_at_the_peer_makes_a_suspect_here(answers: bool) -> None:
    scheduler = busy()
    waiting(scheduler, "a")
    scheduler.died_away("a", 1.5)
    assert scheduler.suspects.all(1.5) == (), "it waits here"
    scheduler.withdraw("a", 2.0)
    if answers:
        scheduler.first_token_away("a", 2.5)
    scheduler.died_away("a", 3.0)
    assert scheduler.suspects.all(3.0) == (Suspicion("a", 1, answers, 3.0),)
    scheduler.died_away("a", 4.0)
    assert scheduler.suspects.all(4.0) == (Suspicion("a", 2, answers, 4.0),)
    scheduler.cancel("a", 5.0)
    again = scheduler.submit(Request("again", 50, 50, 6.0, 9.0, 600.0, digest="a"), 6.0)
    assert again.cause is RejectCause.QUERY_OF_DEATH


# What may be read of the requests that wait.
def test_a_waiting_request_is_shown_with_what_is_left_of_its_estimate() -> None:
    scheduler = busy()
    admission = scheduler.submit(make_request("a", 100, 30, now=1.0), 1.0)
    assert admission.eta_s is not None
    shown = scheduler.waiting.of("a", 1.0)
    assert shown is not None
    assert (shown.request.request_id, shown.lane, shown.p95_s) == ("a", "all", admission.eta_s[1])
    assert (shown.output_tokens, shown.cached_tokens) == (30, 0)
    later = scheduler.waiting.of("a", 1.0 + admission.eta_s[1] / 2)
    assert later is not None
    assert later.p95_s == pytest.approx(admission.eta_s[1] / 2)
    assert scheduler.waiting.of("nobody", 1.0) is None


def test_one_whose_estimate_is_used_up_waits_no_longer_than_whoever_comes_now() -> None:
    scheduler = busy()
    for lease, _ in list(scheduler.leases.values()):  # a rate is known
        scheduler.release(lease, Ending.FINISHED, Usage(50, 0, 50, 0), 0.5)
    for number in range(9):
        scheduler.submit(make_request(f"q{number}", now=0.5), 0.5)
        scheduler.step(0.5)
    last_s = scheduler.waiting.of("q8", 0.5)
    assert last_s is not None
    assert last_s.p95_s is not None
    now = 0.5 + 2 * last_s.p95_s
    stats = scheduler.snapshot(now).lanes[0]
    assert stats.eta_s is not None
    for one in (scheduler.waiting.of("q8", now), scheduler.waiting.all(now)[-1]):
        assert one is not None
        assert one.p95_s == stats.eta_s[1]


def test_all_that_wait_are_shown_as_each_alone() -> None:
    scheduler = busy()
    waiting(scheduler, "a", "b", "c")
    found = scheduler.waiting.all(2.0)
    assert [one.request.request_id for one in found] == ["a", "b", "c"]
    assert list(found) == [scheduler.waiting.of(name, 2.0) for name in "abc"]


def test_a_request_is_shown_as_it_would_wait() -> None:
    idle = make_scheduler(1, ONE_LANE)
    expected = idle.waiting.expected(make_request("a", 100, 30), 0.0)
    assert (expected.lane, expected.p95_s, expected.output_tokens, expected.cached_tokens) == ("all", 0.0, 30, 0)
    full = busy()
    assert full.waiting.expected(make_request("a"), 1.0).p95_s is None, "nothing is known of its waits yet"
    waiting(full, "b", "c")
    placed_when_free(full, 1.0)  # so that a rate is known
    full.step(2.0)
    waiting(full, *(f"w{number}" for number in range(9)))
    shown, stats = full.waiting.expected(make_request("a"), 1.0), full.snapshot(1.0).lanes[0]
    assert stats.eta_s is not None
    assert shown.p95_s == stats.eta_s[1]
    assert "a" not in full.lanes.jobs


def test_cached_tokens_are_those_that_some_replica_should_have() -> None:
    scheduler = make_scheduler(1, ONE_LANE)
    scheduler.submit(make_request("a", 1_000, prefix=(1, 2, 3)), 0.0)
    scheduler.step(0.0)
    known = scheduler.waiting.expected(make_request("b", 1_000, prefix=(1, 2, 9)), 0.0)
    assert known.cached_tokens == 128 * scheduler.learned_state.prefixes.trust


# Guests.
def guest(name: str, now: float = 1.0, tenant: str = "") -> Request:
    return Request(name, 50, 50, now, now + 5.0, now + 600.0, tenant=tenant, guest_of="eu", hops=1)


def test_a_guest_is_load_and_no_demand() -> None:
    scheduler = busy()
    before = scheduler.snapshot(1.0)
    assert scheduler.submit(guest("g@eu"), 1.0).accepted
    after = scheduler.snapshot(1.0)
    assert (after.guests, after.submitted) == (1, before.submitted + 1)
    assert after.flows == before.flows
    assert (after.lanes[0].waiting, after.lanes[0].work_tokens > 0) == (1, True)
    placed_when_free(scheduler, 2.0)
    (lease, _) = next(iter(scheduler.leases.values()))
    scheduler.first_token(lease, 2.0)
    met = slo(scheduler)
    scheduler.release(lease, Ending.FINISHED, Usage(50, 0, 50, 0), 3.0)
    assert slo(scheduler) == met == (0, 0), "its home counts that"
    assert scheduler.snapshot(3.0).finished == after.finished + CAPACITY.sequences + CAPACITY.ahead + 1


@pytest.mark.parametrize("how", ["expires", "cancelled", "lost", "rejected"])
def test_a_guest_that_is_not_served_misses_no_slo_here(how: str) -> None:
    scheduler = busy()
    scheduler.submit(guest("g@eu"), 1.0)
    if how == "expires":
        assert scheduler.step(700.0).expired
    elif how == "cancelled":
        scheduler.cancel("g@eu", 60.0)
    elif how == "lost":
        for lease, _ in list(scheduler.leases.values()):
            scheduler.first_token(lease, 1.0)
        met = slo(scheduler)
        placed_when_free(scheduler, 2.0)
        scheduler.replica_lost("r0", 60.0)
        assert slo(scheduler) == met
        return
    else:
        assert scheduler.submit(guest("g@eu"), 1.0).cause is RejectCause.DUPLICATE_ID
        scheduler.configure(SchedulingPolicy((LanePolicy("all", None),), max_waiting=1), 1.0)
        assert scheduler.submit(guest("h@eu"), 1.0).cause is RejectCause.MODEL_FULL
    assert slo(scheduler) == (0, 0)


def test_a_guest_counts_against_its_tenants_limits_at_its_home_alone() -> None:
    limited = TenantPolicy(max_concurrency=1, requests_per_minute=1.0, tokens_per_minute=10.0)
    scheduler = make_scheduler(1, SchedulingPolicy((LanePolicy("all", None),), tenants={"t": limited}))
    for number in range(3):
        assert scheduler.submit(guest(f"g{number}@eu", tenant="t"), 1.0).accepted
    assert scheduler.limits.at_once("t") == 0
    (placement, *_) = scheduler.step(1.0).placements
    scheduler.release(placement.lease, Ending.FINISHED, Usage(50, 0, 5_000, 0), 2.0)
    assert scheduler.submit(make_request("own", 2, 2, now=2.0, tenant="t"), 2.0).accepted, "nothing was taken of it"
