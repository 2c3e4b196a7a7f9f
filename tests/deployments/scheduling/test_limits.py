"""A tenant's own limits: what passes in any minute, what a wait is worth, what a change does to what was used."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.scheduling import Ending, RejectCause, Scheduler, SchedulingPolicy, TenantPolicy, Usage
from deployments.scheduling.policy import Bucket, TenantLimits, booked_tokens
from deployments.scheduling.request import Job
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


def test_more_than_a_bucket_passes_when_it_is_full_and_leaves_a_debt() -> None:
    bucket = Bucket(60.0, 0.0)
    assert bucket.wait_s(600.0, 0.0) == 0
    bucket.take(600.0)
    assert bucket.wait_s(1.0, 0.0) == pytest.approx(541.0)


def ask(
    scheduler: Scheduler, name: str, tenant: str, now: float = 0.0, prompt: int = 100, output: int = 50
) -> RejectCause | None:
    """Submits a request, and places what can be placed."""
    cause = scheduler.submit(make_request(name, prompt, output, now, tenant=tenant), now).cause
    scheduler.step(now)
    return cause


def limited(**limits: float) -> Scheduler:
    """A scheduler with one replica, on which tenant `a` has those limits."""
    scheduler = Scheduler(SchedulingPolicy(tenants={"a": TenantPolicy(**limits)}))  # type: ignore[arg-type]
    scheduler.replica_up("r0", CAPACITY, 0.0)
    return scheduler


@pytest.mark.whole
@given(
    st.sampled_from(["requests_per_minute", "tokens_per_minute"]),
    st.floats(0.5, 1_000),
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 2_000)), min_size=2, max_size=20),
    st.text(max_size=4),
)
def test_who_waits_as_told_passes(limit: str, per_minute: float, asks: list[tuple[float, int]], name: str) -> None:
    """Whatever the jitter of its request's id."""
    scheduler, now = limited(**{limit: per_minute}), 0.0
    for number, (passed, prompt) in enumerate(asks):
        now += passed
        asked = make_request(f"{name}{number}", prompt, now=now, tenant="a")
        told_s = scheduler.submit(asked, now).retry_after_s
        if told_s is not None:
            now += told_s + 1e-6
            assert scheduler.submit(asked, now).accepted


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


@pytest.mark.parametrize("leased", [False, True])
def test_what_is_submitted_again_is_charged_and_counted_once(leased: bool) -> None:
    """Its gateway's channel opened again, or it lost its replica."""
    scheduler, request = limited(requests_per_minute=1.0, max_concurrency=1), make_request("q", tenant="a")
    if not leased:
        scheduler.replica_draining("r0", 0.0)
    assert scheduler.submit(request, 0.0).accepted
    for number in range(3):
        assert len(scheduler.step(0.0).placements) == leased
        if leased:
            scheduler.replica_draining(f"r{number}", 0.0)
            scheduler.replica_lost(f"r{number}", 0.0)
            scheduler.replica_up(f"r{number + 1}", CAPACITY, 0.0)
        else:
            assert scheduler.cancel("q", 0.0)
        assert scheduler.submit(replace(request, attempts=number + 1), 0.0, admitted=True).accepted
    (use,) = scheduler.tenant_use()
    assert (use.requests, use.tokens, use.at_once) == (1, 150, 1)
    scheduler.replica_up("r9", CAPACITY, 0.0)
    (placement,) = scheduler.step(0.0).placements
    scheduler.first_token(placement.lease, 1.0)
    (flow,) = scheduler.snapshot(1.0).flows
    assert (flow.arrived, flow.met, flow.missed) == (1, not leased, leased)
    scheduler.release(placement.lease, Ending.FINISHED, None, 1.0)
    assert scheduler.submit(request, 1.0, admitted=True).accepted, "a new one that another owner had taken in"
    assert scheduler.tenant_use()[0].requests == 2


def test_what_comes_back_and_goes_to_a_peer_for_want_of_room_is_charged_once() -> None:
    scheduler, request = limited(requests_per_minute=9.0), make_request("q", tenant="a", patience=5.0)
    assert scheduler.submit(request, 0.0).accepted
    assert scheduler.cancel("q", 0.0)
    scheduler.replica_draining("r0", 0.0)
    scheduler.replica_lost("r0", 0.0)
    scheduler.expect_replica(1_000.0, 0.0)
    assert scheduler.submit(request, 0.0, admitted=True).cause is RejectCause.STARTING
    assert scheduler.begin_away(request, 0.0, True, False) is None
    assert [(use.requests, use.at_once) for use in scheduler.tenant_use()] == [(1, 1)]


def test_the_engines_count_settles_what_was_booked() -> None:
    scheduler = limited(tokens_per_minute=400.0)
    assert ask(scheduler, "q0", "a", prompt=100, output=250) is None
    (lease, _), *_ = scheduler.leases.values()
    assert ask(scheduler, "q1", "a", prompt=200, output=1) is RejectCause.TENANT_TOKENS
    scheduler.release(lease, Ending.FINISHED, Usage(100, 0, 10, 0), 0.0)
    assert ask(scheduler, "q2", "a", prompt=200, output=1) is None


def test_a_bucket_flows_back_evenly_and_is_never_fuller_than_a_minutes_worth() -> None:
    bucket = Bucket(60.0, 100.0)
    bucket.take(60.0)
    assert bucket.wait_s(1.0, 100.0) == pytest.approx(1.0)
    assert bucket.wait_s(30.0, 110.0) == pytest.approx(20.0)
    bucket.take(-1_000.0)
    assert bucket.wait_s(60.0, 110.0) == 0.0
    bucket.take(60.0)
    assert bucket.wait_s(60.0, 500.0) == 0.0
    bucket.take(60.0)
    assert bucket.wait_s(60.0, 500.0) == pytest.approx(60.0)


def test_a_larger_limit_is_resized_as_of_now() -> None:
    bucket = Bucket(60.0, 0.0)
    bucket.take(60.0)
    bucket.resize(120.0, 30.0)  # 30 flowed back before, 60 are new
    assert bucket.wait_s(90.0, 30.0) == 0.0
    assert bucket.wait_s(92.0, 30.0) == pytest.approx(1.0)


def job_of(tenant: str, prompt: int = 100, sequences: int = 1) -> Job:
    """A job of that tenant, with 50 tokens of output expected of each sequence."""
    job = Job(make_request("q", prompt, tenant=tenant, sequences=sequences), 1)
    job.output_tokens = 50
    return job


def limits_of(**settings: float) -> TenantLimits:
    """Limits of tenant a."""
    limits = TenantLimits()
    limits.configure({"a": TenantPolicy(**settings)}, 0.0)  # type: ignore[arg-type]
    return limits


def test_a_job_counts_its_prompt_and_output_for_each_sequence() -> None:
    assert booked_tokens(job_of("a", 100, 3)) == 450


def test_each_limit_names_itself_and_the_wait() -> None:
    limits = limits_of(requests_per_minute=2.0, tokens_per_minute=300.0, max_concurrency=3)
    jobs = [job_of("a") for _ in range(3)]
    assert limits.reject(jobs[0], 0.0) is None
    limits.begin(jobs[0])
    limits.begin(jobs[1])
    assert limits.reject(jobs[2], 0.0) == (RejectCause.TENANT_REQUESTS, pytest.approx(30.0))
    limits.begin(jobs[2])
    assert limits.reject(job_of("a"), 0.0) == (RejectCause.TENANT_CONCURRENCY, 1.0)
    limits.end(jobs[0])
    limits.end(jobs[0])  # once and for all
    assert limits.at_once("a") == 2
    assert limits.reject(job_of("a", 600), 60.0) == (RejectCause.TENANT_TOKENS, pytest.approx(30.0))
    assert limits.reject(job_of("a"), 60.0) is None


def test_tenants_without_a_policy_have_no_limits_and_are_not_remembered() -> None:
    limits = limits_of(max_concurrency=1)
    stranger = job_of("b")
    for _ in range(3):
        assert limits.reject(stranger, 0.0) is None
        limits.begin(stranger)
        limits.adopt(stranger)
    limits.settle("b", 1, 2)
    limits.end(stranger)
    assert limits.at_once("b") == 0
    assert not stranger.limited


def test_an_adopted_lease_counts_among_those_at_once_alone() -> None:
    limits = limits_of(requests_per_minute=1.0, tokens_per_minute=150.0, max_concurrency=3)
    adopted = [job_of("a") for _ in range(2)]
    for job in adopted:
        limits.adopt(job)
    assert limits.at_once("a") == 2
    assert limits.reject(job_of("a"), 0.0) is None
    for job in adopted:
        limits.end(job)
    assert limits.at_once("a") == 0


def test_a_reload_keeps_what_runs_and_what_was_used() -> None:
    limits = limits_of(requests_per_minute=1.0, max_concurrency=1)
    running = job_of("a")
    limits.begin(running)
    limits.configure({}, 0.0)
    assert limits.reject(job_of("a"), 0.0) is None, "no policy, no limit"
    assert limits.at_once("a") == 1
    limits.configure({"a": TenantPolicy(max_concurrency=1)}, 0.0)
    assert limits.reject(job_of("a"), 0.0) == (RejectCause.TENANT_CONCURRENCY, 1.0)
    limits.end(running)
    limits.configure({}, 0.0)
    limits.configure({"a": TenantPolicy(requests_per_minute=1.0)}, 0.0)
    assert limits.reject(job_of("a"), 0.0) is None, "what nobody used meanwhile is forgotten"
