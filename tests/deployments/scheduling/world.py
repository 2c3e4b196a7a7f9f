"""Small helpers that the scheduler's tests share: policies, requests, replicas."""

from deployments.scheduling import Capacity, LanePolicy, Request, Scheduler, SchedulingPolicy
from deployments.scheduling.request import Job

CAPACITY = Capacity(sequences=4, ahead=1, kv_tokens=4_000, step_tokens=300, prefill_steps=2.0)
LANES = (
    LanePolicy("short", 200, weight=4, max_wait_s=10),
    LanePolicy("medium", 1_000, weight=2, max_wait_s=20),
    LanePolicy("long", None, max_wait_s=40),
)
POLICY = SchedulingPolicy(lanes=LANES, max_waiting=40, promoted_share=0.25, decode_weight=2.0)


def make_request(
    name: str,
    prompt: int = 100,
    output: int | None = 50,
    now: float = 0.0,
    patience: float = 600.0,
    slo: float = 5.0,
    sequences: int = 1,
    tenant: str = "",
    prefix: tuple[int, ...] = (),
) -> Request:
    """A request that arrives `now`, with a deadline `slo` and an end of its wait `patience` later."""
    return Request(
        name, prompt, output, now, now + slo, now + patience, sequences, tenant=tenant, prefix=prefix, chunk_tokens=64
    )


def make_job(sequences: int = 1, kv: int = 100, prefill: int = 10) -> Job:
    """One that is booked with that."""
    job = Job(make_request("j", prompt=prefill, sequences=sequences, prefix=(1, 2)), 1)
    job.kv_tokens, job.prefill_tokens = kv, prefill
    return job


def make_scheduler(replicas: int = 1, policy: SchedulingPolicy = POLICY, capacity: Capacity = CAPACITY) -> Scheduler:
    """A scheduler with that many ready replicas `r0`, `r1`, ..."""
    scheduler = Scheduler(policy)
    for number in range(replicas):
        scheduler.replica_up(f"r{number}", capacity, 0.0)
    return scheduler
