"""A tenant's own limits: what passes in any minute, what a wait is worth, what a change does to what was used."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.scheduling import AdmissionKind, Ending, Policy, RejectCause, Scheduler, TenantPolicy, Usage
from deployments.scheduling.limits import Bucket
from tests.deployments.scheduling.world import CAPACITY, make_request

ASKS = st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 150)), min_size=1, max_size=60)


@given(st.floats(1, 1_000), ASKS)
def test_no_minute_passes_more_than_two_buckets(per_minute: float, asks: list[tuple[float, float]]) -> None:
    bucket = Bucket(per_minute, 0.0)
    now, taken = 0.0, []
    for passed, cost in asks:
        now += passed
        if cost <= per_minute and bucket.wait_s(cost, now) == 0:
            bucket.take(cost)
            taken.append((now, cost))
    for start, _ in taken:
        assert sum(cost for at, cost in taken if start <= at < start + 60) <= 2 * per_minute * (1 + 1e-9)


@given(st.floats(1, 1_000), ASKS)
def test_after_the_wait_it_passes(per_minute: float, asks: list[tuple[float, float]]) -> None:
    bucket = Bucket(per_minute, 0.0)
    now = 0.0
    for passed, cost in asks:
        now += passed
        wait_s = bucket.wait_s(cost, now)
        assert bucket.wait_s(cost, now + wait_s + 1e-6) <= 1e-6
        now += wait_s + 1e-6
        bucket.take(cost)


def test_more_than_a_bucket_passes_when_it_is_full_and_leaves_a_debt() -> None:
    bucket = Bucket(60.0, 0.0)
    assert bucket.wait_s(600.0, 0.0) == 0
    bucket.take(600.0)
    assert bucket.wait_s(1.0, 0.0) == pytest.approx(541.0)


def test_a_changed_limit_keeps_what_was_used() -> None:
    bucket = Bucket(60.0, 0.0)
    bucket.take(50.0)
    bucket.resize(100.0, 0.0)
    assert bucket.wait_s(50.0, 0.0) == 0
    assert bucket.wait_s(51.0, 0.0) == pytest.approx(0.6)


def ask(scheduler: Scheduler, name: str, tenant: str, now: float = 0.0, prompt: int = 100, output: int = 50) -> RejectCause | None:
    """Submits a request, and places what can be placed."""
    cause = scheduler.submit(make_request(name, prompt, output, now, tenant=tenant), now).cause
    scheduler.step(now)
    return cause


def limited(**limits: float) -> Scheduler:
    """A scheduler with one replica, on which tenant `a` has those limits."""
    scheduler = Scheduler(Policy(tenants={"a": TenantPolicy(**limits)}))  # type: ignore[arg-type]
    scheduler.replica_up("r0", CAPACITY, 0.0)
    return scheduler


def test_each_limit_has_its_cause_and_others_are_unharmed() -> None:
    for limits, cause in (
        ({"requests_per_minute": 2.0}, RejectCause.TENANT_REQUESTS),
        ({"tokens_per_minute": 300.0}, RejectCause.TENANT_TOKENS),
        ({"max_concurrency": 2}, RejectCause.TENANT_CONCURRENCY),
    ):
        scheduler = limited(**limits)
        assert [ask(scheduler, f"q{number}", "a") for number in range(3)] == [None, None, cause]
        assert ask(scheduler, "q9", "b") is None
        assert scheduler.snapshot(0.0).rejections == {("all", cause.value): 1}


def test_the_wait_that_is_told_is_right() -> None:
    scheduler = limited(requests_per_minute=60.0)
    for number in range(60):
        ask(scheduler, f"q{number}", "a")
    admission = scheduler.submit(make_request("late", tenant="a"), 0.0)
    assert (admission.kind, admission.cause) == (AdmissionKind.REJECT, RejectCause.TENANT_REQUESTS)
    assert admission.retry_after_s == 1
    assert ask(scheduler, "again", "a", now=1.0) is None


def test_an_ended_request_makes_room_whatever_its_end() -> None:
    scheduler = limited(max_concurrency=1)
    for number, ending in enumerate((Ending.FINISHED, Ending.CANCELLED, Ending.FAILED)):
        assert ask(scheduler, f"q{number}", "a") is None
        (lease, _), *_ = scheduler.leases.values()
        scheduler.release(lease, Ending.REFUSED, None, 0.0)
        assert ask(scheduler, "too many", "a") is RejectCause.TENANT_CONCURRENCY
        (lease, _), *_ = scheduler.leases.values()
        scheduler.release(lease, ending, None, 0.0)
    assert ask(scheduler, "q8", "a") is None
    scheduler.replica_lost("r0", 0.0)
    assert ask(scheduler, "q9", "a") is None
    assert scheduler.cancel("q9", 0.0)
    assert scheduler.limits.at_once("a") == 0


def test_the_engines_count_settles_what_was_booked() -> None:
    scheduler = limited(tokens_per_minute=400.0)
    assert ask(scheduler, "q0", "a", prompt=100, output=250) is None
    (lease, _), *_ = scheduler.leases.values()
    assert ask(scheduler, "q1", "a", prompt=200, output=1) is RejectCause.TENANT_TOKENS
    scheduler.release(lease, Ending.FINISHED, Usage(100, 0, 10, 0), 0.0)
    assert ask(scheduler, "q2", "a", prompt=200, output=1) is None
