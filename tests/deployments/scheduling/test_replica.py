"""A replica's budgets at their bounds, its books over the life of a lease, and what it learns of itself."""

import pytest

from deployments.scheduling import Capacity, Lease, Usage, WaitReason
from deployments.scheduling.replica import FIRST_PREFILL_TOKENS_PER_S, Replica, ReplicaStatus
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import make_request

CAPACITY = Capacity(sequences=4, ahead=1, kv_tokens=1_000, step_tokens=300, prefill_steps=2.0)


def job(sequences: int = 1, kv: int = 100, prefill: int = 10) -> Job:
    """One that is booked with that."""
    made = Job(make_request("j", sequences=sequences), 1)
    made.kv_tokens, made.prefill_tokens = kv, prefill
    return made


def lease(number: int, sequences: int = 1, kv: int = 100, prefill: int = 10) -> Lease:
    """One that is booked with that."""
    return Lease(number, make_request(f"q{number}", sequences=sequences), "r0", 0.0, 1, prefill, kv, 5, 0)


def replica(*leases: Lease) -> Replica:
    """One that runs these."""
    made = Replica("r0", CAPACITY)
    for each in leases:
        made.bind(each)
    return made


def test_an_empty_replica_takes_anything() -> None:
    assert replica().wait_reason(job(99, 99_999, 99_999)) is None


@pytest.mark.parametrize(
    ("runs", "asks", "waits"),
    [
        (lease(1, sequences=3), job(sequences=2), None),
        (lease(1, sequences=3), job(sequences=3), WaitReason.SEQUENCES),
        (lease(1, kv=600), job(kv=400), None),
        (lease(1, kv=600), job(kv=401), WaitReason.KV_TOKENS),
        (lease(1, prefill=599), job(prefill=1), None),
        (lease(1, prefill=599), job(prefill=5_000), None),
        (lease(1, prefill=600), job(prefill=1), WaitReason.PREFILL_BUDGET),
    ],
)
def test_each_budget_is_filled_and_not_overdrawn(runs: Lease, asks: Job, waits: WaitReason | None) -> None:
    assert replica(runs).wait_reason(asks) is waits


def test_the_books_follow_a_lease() -> None:
    one, two = lease(1, 2, 100, 30), lease(2, 1, 50, 20)
    made = replica(one, two)
    assert (made.sequences, made.kv_tokens, made.prefill_tokens, set(made.leases)) == (3, 150, 50, {1, 2})
    assert made.first_token(one)
    assert not made.first_token(one)
    assert (made.sequences, made.kv_tokens, made.prefill_tokens) == (3, 150, 20)
    made.unbind(one)
    assert (made.sequences, made.kv_tokens, made.prefill_tokens, set(made.leases)) == (1, 50, 20, {2})
    made.unbind(two)
    assert (made.sequences, made.kv_tokens, made.prefill_tokens) == (0, 0, 0)


def test_it_is_open_while_one_more_may_be_bound_and_no_lane_holds_it() -> None:
    made = replica(lease(1, sequences=4))
    assert made.open
    made.held_by = "long"
    assert not made.open
    made.held_by = None
    made.bind(lease(2))
    assert not made.open
    made.unbind(made.leases[2])
    made.become(ReplicaStatus.UNRESPONSIVE, False)
    assert not made.open


@pytest.mark.parametrize(
    ("reported", "cordoned", "shown", "may_serve"),
    [
        (ReplicaStatus.READY, False, ReplicaStatus.READY, True),
        (ReplicaStatus.READY, True, ReplicaStatus.CORDONED, False),
        (ReplicaStatus.EJECTED, True, ReplicaStatus.CORDONED, False),
        (ReplicaStatus.EJECTED, False, ReplicaStatus.EJECTED, True),
        (ReplicaStatus.UNRESPONSIVE, True, ReplicaStatus.UNRESPONSIVE, False),
        (ReplicaStatus.UNRESPONSIVE, False, ReplicaStatus.UNRESPONSIVE, True),
        (ReplicaStatus.DRAINING, True, ReplicaStatus.DRAINING, False),
        (ReplicaStatus.DRAINING, False, ReplicaStatus.DRAINING, False),
    ],
)
def test_the_worse_news_is_shown(
    reported: ReplicaStatus, cordoned: bool, shown: ReplicaStatus, may_serve: bool
) -> None:
    made = replica()
    made.become(reported, cordoned)
    assert (made.reported, made.cordoned, made.status, made.may_serve) == (reported, cordoned, shown, may_serve)


def test_the_time_to_first_token_is_the_backlog_at_the_measured_rate() -> None:
    made = replica(lease(1, prefill=150))
    assert made.ttft_ms(50) == pytest.approx(200 / FIRST_PREFILL_TOKENS_PER_S * 1_000) == pytest.approx(20.0)


def test_it_learns_its_rates_a_twentieth_at_a_time() -> None:
    made = replica()
    made.learn(
        Usage(116, 100, 5, 0, 1, 0.001, 1.0)
    )  # 16 uncached tokens in a millisecond; four after the first in a second
    assert made.prefill_tokens_per_s == pytest.approx(10_000 + 0.05 * (16_000 - 10_000))
    assert made.tpot_s == 0.25
    made.learn(Usage(115, 100, 12, 0, 2, 0.001, 2.25))  # 15 are too few; five each, after the first
    assert made.prefill_tokens_per_s == pytest.approx(10_300)
    assert made.tpot_s == pytest.approx(0.25 + 0.05 * (0.45 - 0.25))
    before = made.tpot_s
    made.learn(Usage(100, 0, 4, 0, 1, 0.0, 1.0))  # three after the first are too few, and no time tells nothing
    made.learn(Usage(100, 0, 9, 0, 1, 0.0, 0.0))
    assert (made.tpot_s, made.prefill_tokens_per_s) == (before, pytest.approx(10_300))
