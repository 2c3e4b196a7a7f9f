"""A replica's budgets at their bounds, its books over the life of a lease, and what it learns of itself."""

import pytest

from deployments.scheduling import Capacity, Lease, WaitReason
from deployments.scheduling.replica import Replica, ReplicaStatus
from deployments.scheduling.request import Job
from tests.deployments.scheduling.world import make_job, make_request

CAPACITY = Capacity(sequences=4, ahead=1, kv_tokens=1_000, step_tokens=300, prefill_steps=2.0)


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
    assert replica().wait_reason(make_job(99, 99_999, 99_999)) is None


@pytest.mark.parametrize(
    ("runs", "asks", "waits"),
    [
        (lease(1, sequences=3), make_job(sequences=2), None),
        (lease(1, sequences=3), make_job(sequences=3), WaitReason.SEQUENCES),
        (lease(1, kv=600), make_job(kv=400), None),
        (lease(1, kv=600), make_job(kv=401), WaitReason.KV_TOKENS),
        (lease(1, prefill=599), make_job(prefill=1), None),
        (lease(1, prefill=599), make_job(prefill=5_000), None),
        (lease(1, prefill=600), make_job(prefill=1), WaitReason.PREFILL_BUDGET),
    ],
)
def test_each_budget_is_filled_and_not_overdrawn(runs: Lease, asks: Job, waits: WaitReason | None) -> None:
    assert replica(runs).wait_reason(asks) is waits


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
