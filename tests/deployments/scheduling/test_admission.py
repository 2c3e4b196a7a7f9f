"""What a full lane and a full model let in, what a rejected caller is told, and how promises meet what happened."""

import dataclasses

import pytest

from deployments.scheduling import (
    Admission,
    AdmissionKind,
    Ending,
    LanePolicy,
    RejectCause,
    Scheduler,
    SchedulingPolicy,
    TenantPolicy,
    Usage,
    WaitReason,
)
from deployments.scheduling.admission import jittered_s
from deployments.scheduling.learned_state import LearnedState
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import ONE_AT_A_TIME, make_request, make_scheduler, submit_all

LANES = (LanePolicy("short", 200, max_wait_s=1e6, cap_s=10.0), LanePolicy("long", None, max_wait_s=1e6, cap_s=30.0))
POLICY = SchedulingPolicy(lanes=LANES, decode_weight=1.0, max_waiting=8)


def loaded(policy: SchedulingPolicy = POLICY, rate: float = 100.0) -> Scheduler:
    """No replica has room, and so much work a second was placed under load."""
    scheduler = make_scheduler(1, policy)
    scheduler.replica_unresponsive("r0", 0.0)
    scheduler.rate.placed.run(True, 0.0)
    for tenth in range(1, 601):
        scheduler.rate.placed.add(rate / 10, tenth / 10)
    return scheduler


def ask(scheduler: Scheduler, name: str, work: int = 100, tenant: str = "", now: float = 60.0) -> RejectCause | None:
    """Submits a request of so much work."""
    return scheduler.submit(make_request(name, work - 20, 20, now, tenant=tenant), now).cause


def test_a_lane_takes_its_cap_in_seconds_of_work() -> None:
    scheduler = loaded()
    rate = scheduler.rate.per_s
    assert rate == pytest.approx(100.0, rel=0.01)
    assert [ask(scheduler, f"q{number}", 190) for number in range(6)] == [None] * 5 + [RejectCause.LANE_FULL]
    assert ask(scheduler, "fits", 40) is None, "990 of 1,000"
    assert ask(scheduler, "long", 2_900) is None, "another lane has room of its own"
    assert ask(scheduler, "longer", 250) is RejectCause.LANE_FULL


def test_an_empty_lane_takes_whatever_comes_first() -> None:
    scheduler = loaded()
    assert ask(scheduler, "huge", 90_000) is None
    assert ask(scheduler, "next", 300) is RejectCause.LANE_FULL


def test_without_a_rate_no_lane_is_full() -> None:
    scheduler = make_scheduler(0, dataclasses.replace(POLICY, max_waiting=100))
    assert {ask(scheduler, f"q{number}", 190) for number in range(50)} == {None}


def test_a_full_lane_still_takes_from_who_holds_less_than_its_share() -> None:
    scheduler = loaded(dataclasses.replace(POLICY, max_waiting=100))
    for number in range(5):
        assert ask(scheduler, f"a{number}", 190, "a") is None
    assert ask(scheduler, "a5", 190, "a") is RejectCause.LANE_FULL
    assert [ask(scheduler, f"b{number}", 160, "b") for number in range(4)] == [
        None,
        None,
        None,
        RejectCause.LANE_FULL,
    ], "480 of its half, 500"
    assert ask(scheduler, "a6", 30, "a") is RejectCause.LANE_FULL
    assert ask(scheduler, "c0", 190, "c") is None
    assert ask(scheduler, "c1", 190, "c") is RejectCause.LANE_FULL, "a third of 1,000 is 333"


def test_the_model_takes_so_many_and_then_from_who_holds_less_than_its_share() -> None:
    scheduler = make_scheduler(0, POLICY)
    assert [ask(scheduler, f"a{number}", tenant="a") for number in range(9)] == [None] * 8 + [RejectCause.MODEL_FULL]
    assert [ask(scheduler, f"b{number}", tenant="b") for number in range(5)] == [None] * 4 + [RejectCause.MODEL_FULL]
    assert ask(scheduler, "long", 500, tenant="d") is RejectCause.MODEL_FULL, (
        "who is alone in its lane has no share to fall below"
    )


def test_a_rejection_says_when_there_will_be_room() -> None:
    scheduler = loaded()
    for number in range(5):
        ask(scheduler, f"q{number}", 190)
    rate = scheduler.rate.per_s
    assert rate is not None
    admissions = [scheduler.submit(make_request(f"z{number}", 180, 20, 60.0), 60.0) for number in range(2)]
    excess = 950 + 200 - 10 * rate
    for behind, admission in enumerate(admissions):
        reported = (admission.kind, admission.lane, admission.cause)
        assert reported == (AdmissionKind.REJECT, "short", RejectCause.LANE_FULL)
        assert admission.backlog_s == pytest.approx(950 / rate)
        assert admission.retry_after_s == jittered_s(f"z{behind}", (excess + behind * 200) / rate)
        assert admission.eta_s is not None
        assert 0 < admission.eta_s[0] <= admission.eta_s[1]
        assert not admission.accepted


def test_a_duplicate_is_told_to_come_back_soon() -> None:
    scheduler = make_scheduler(0, POLICY)
    assert ask(scheduler, "q") is None
    again = scheduler.submit(make_request("q", 80, 20, 60.0), 60.0)
    assert (again.cause, again.backlog_s, again.retry_after_s) == (RejectCause.DUPLICATE_ID, None, jittered_s("q", 5.0))


def test_a_tenants_limit_is_told_with_its_own_wait() -> None:
    scheduler = make_scheduler(0, dataclasses.replace(POLICY, tenants={"a": TenantPolicy(requests_per_minute=1.0)}))
    assert ask(scheduler, "q", tenant="a", now=0.0) is None
    reported = scheduler.submit(make_request("z", 900, 20, 15.0, tenant="a"), 15.0)
    assert reported == Admission(
        AdmissionKind.REJECT,
        "long",
        RejectCause.TENANT_REQUESTS,
        retry_after_s=45.0,  # its jitter would have made it 44
    )


def test_what_another_owner_had_taken_in_is_taken_in() -> None:
    scheduler = make_scheduler(
        0, dataclasses.replace(POLICY, max_waiting=1, tenants={"a": TenantPolicy(max_concurrency=1)})
    )
    for number in range(3):
        assert scheduler.submit(make_request(f"q{number}", tenant="a"), 0.0, admitted=True).accepted
    assert scheduler.limits.at_once("a") == 3
    assert scheduler.submit(make_request("q0"), 0.0, admitted=True).cause is RejectCause.DUPLICATE_ID


def test_one_that_finds_room_is_admitted_at_once_and_promised_nothing() -> None:
    scheduler = make_scheduler(1, POLICY)
    admission = scheduler.submit(make_request("q"), 0.0)
    assert admission == Admission(AdmissionKind.ADMIT, "short")
    queued = scheduler.submit(make_request("z"), 0.0)
    assert (queued.kind, queued.eta_s) == (
        AdmissionKind.QUEUE,
        scheduler.forecasts.shown(scheduler.lanes.lanes[0], 0.0) or queued.eta_s,
    )
    assert [placement.eta_s for placement in scheduler.step(0.0).placements] == [None, queued.eta_s]


def estimated(scheduler: Scheduler, name: str = "q", slo: float = 5.0) -> None:
    """One that waits, and was told for how long."""
    assert scheduler.submit(make_request(name, slo=slo), 0.0).eta_s is not None


def test_one_that_comes_to_wait_is_told_what_the_one_before_it_waits_for() -> None:
    scheduler = make_scheduler(1, capacity=ONE_AT_A_TIME)
    submit_all(scheduler, 2)
    scheduler.step(0.0)
    assert scheduler.submit(make_request("next"), 0.0).waits_for is WaitReason.SEQUENCES


def test_a_promise_is_settled_once_however_it_ends() -> None:
    scheduler = make_scheduler(0, POLICY)
    for name in ("cancelled", "expired", "turned away", "placed"):
        estimated(scheduler, name)
    eta = scheduler.forecasts.etas["short"]
    assert eta.open == 4
    assert scheduler.cancel("cancelled", 0.5)
    assert eta.open == 3
    scheduler.lanes.jobs["expired"].request = make_request("expired", patience=600.0)
    scheduler.expect_replica(700.0, 1.0)
    assert len(scheduler.step(1.0).turned_away) == 3
    assert eta.open == 0


def test_an_expired_wait_is_a_broken_promise() -> None:
    scheduler = make_scheduler(0, POLICY)
    estimated(scheduler)
    scheduler.step(600.0)
    eta = scheduler.forecasts.etas["short"]
    assert (eta.open, eta.p95.total, eta.p95.within, eta.p95.censored) == (0, 1, 0, 0)


def test_a_placement_settles_its_promise_with_the_wait() -> None:
    scheduler = make_scheduler(0, POLICY)
    estimated(scheduler, "soon")
    estimated(scheduler, "late", slo=1.0)
    scheduler.replica_up(
        "r0", dataclasses.replace(make_scheduler().fleet.by_id["r0"].capacity, sequences=1, ahead=0), 0.01
    )
    (first,) = scheduler.step(0.01).placements
    assert first.request.request_id == "late", "its deadline is earlier"
    eta = scheduler.forecasts.etas["short"]
    assert (eta.open, eta.p95.total, eta.p95.within) == (1, 1, 1)
    scheduler.release(first.lease, Ending.REFUSED, None, 2.0)
    (again,) = scheduler.step(2.0).placements
    assert again.request.request_id == "late"
    assert (eta.open, eta.p95.total) == (1, 1), "what was refused was settled by its first placement"
    scheduler.release(again.lease, Ending.FINISHED, None, 9.0)
    scheduler.step(9.0)
    assert (eta.open, eta.p95.total, eta.p95.within) == (0, 2, 1)


def test_what_a_request_like_the_last_one_would_be_told() -> None:
    scheduler = loaded()
    assert scheduler.forecasts.shown(scheduler.lanes.lanes[0], 60.0) is None, "nobody was told anything"
    assert ask(scheduler, "q") is None
    eta, outlooks = scheduler.forecasts.etas["short"], scheduler.forecasts.outlooks
    reported = eta.predict(outlooks.of_lane(scheduler.lanes.lanes[0], 61.0 + eta.span_s, 0.0, 61.0))
    assert scheduler.forecasts.shown(scheduler.lanes.lanes[0], 61.0) == (reported.p50_s, reported.p95_s)
    assert scheduler.forecasts.shown(scheduler.lanes.lanes[1], 61.0) is None


def test_a_job_is_booked_with_what_is_known() -> None:
    learned_state, policy = LearnedState(), dataclasses.replace(POLICY, decode_weight=3.0)
    learned_state.prefixes.add((1, 2), "r0", 9)
    learned_state.prefixes.trust = 0.5
    for tokens in [16] * 13 + [64, 64]:
        learned_state.outputs.observe(150, 0, tokens)
    mean, p90 = learned_state.outputs.expect(150, 400)
    assert (mean, p90) == (22, 64)
    job = Job(make_request("q", 150, 400, sequences=2, prefix=(1, 2, 3)), 1)
    learned_state.book(job, policy)
    assert (job.credit_tokens, job.prefill_tokens, job.output_tokens, job.kv_tokens) == (64, 2 * 86, 22, 2 * (150 + 64))
    assert job.cost == 2 * 86 + 3.0 * 22 * 2
    small = Job(make_request("q", 30, 400, prefix=(1, 2)), 1)
    learned_state.book(small, policy)
    assert small.prefill_tokens == 1


def test_an_account_teaches_output_trust_and_which_lane_it_was() -> None:
    scheduler = make_scheduler(1, POLICY)
    learned_state = scheduler.learned_state
    prefix = (1, 2)
    scheduler.submit(make_request("first", 150, 20, prefix=prefix), 0.0)
    scheduler.step(0.0)
    scheduler.submit(make_request("q", 150, 20, sequences=2, prefix=prefix), 0.0)
    (placement,) = scheduler.step(0.0).placements
    lease = placement.lease
    assert lease.prefill_tokens == 2 * (150 - 128)
    learned_state.settle(lease, Usage(300, 64, 60, 0, 2), POLICY)
    assert learned_state.outputs.error == pytest.approx(10 / 30)
    assert learned_state.prefixes.trust == pytest.approx(1 - 0.02 * (1 - 64 / 256))
    assert (lease.home, learned_state.settled, learned_state.other_lane) == (0, 1, 1), (
        "300 - 64 + 60 tokens are for the long lane"
    )
    learned_state.settle(lease, Usage(300, 100, 0, 0, 0), POLICY)
    assert (learned_state.settled, learned_state.other_lane) == (2, 1), "200 are what a short one may have"
    learned_state.settle(dataclasses.replace(lease, prefill_tokens=161), Usage(300, 100, 0, 0, 0), POLICY)
    assert (learned_state.settled, learned_state.other_lane) == (3, 2)
