"""Who is rejected at submit: the contract of a rejection rule, and the built-in rules. `registry.py` has their order,
`admission.py` asks them."""

import math
import zlib
from dataclasses import dataclass
from typing import Protocol

from deployments.scheduling.availability import Starting
from deployments.scheduling.lanes import Lanes
from deployments.scheduling.limits import TenantLimits
from deployments.scheduling.placing import Placing
from deployments.scheduling.rate import ServiceRate
from deployments.scheduling.reasons import RejectCause
from deployments.scheduling.request import Job
from deployments.scheduling.suspects import Suspects

MIN_RETRY_S = 1.0
MAX_RETRY_S = 600.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules may look at, and must not change: the scheduler's own parts."""

    lanes: Lanes
    limits: TenantLimits
    placing: Placing
    rate: ServiceRate
    starting: Starting
    suspects: Suspects


@dataclass(frozen=True, slots=True)
class Rejection:
    """`retry_after_s`: seconds after which the request would pass; None: once the work that waits before it is done."""

    cause: RejectCause
    retry_after_s: float | None = None


class RejectionRule(Protocol):
    """One reason to reject a request at submit."""

    def __call__(self, job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
        """None: this rule lets the job in. `admitted`: an earlier owner had taken it in, so that no limit or cap may
        reject it."""


def jittered_s(request_id: str, wait_s: float) -> float:
    """Whole seconds within 10 % of `wait_s`, by a hash of the request's id: no clock, no random state, the same in a
    replay."""
    jitter = 0.9 + 0.2 * (zlib.crc32(request_id.encode()) / 0xFFFFFFFF)
    return float(math.ceil(min(MAX_RETRY_S, max(MIN_RETRY_S, wait_s * jitter))))


def duplicate_id(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """A request with that id waits or runs. Of one that an earlier owner admitted a lease may stand: it waits for the
    next."""
    request_id = job.request.request_id
    waits = request_id in facts.lanes.jobs or request_id in facts.lanes.aside
    return Rejection(RejectCause.DUPLICATE_ID) if waits or (not admitted and facts.placing.runs(request_id)) else None


def query_of_death(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """Its body is banned (`suspects.py`), until one of the deaths is forgotten."""
    record = facts.suspects.of(job.request.key, now)
    return (
        Rejection(RejectCause.QUERY_OF_DEATH, record.forgotten_s - now)
        if record is not None and record.banned
        else None
    )


def starts_too_late(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """There is no replica, and the next will be ready after the request has given up."""
    return Rejection(RejectCause.STARTING) if facts.starting.is_too_late_for(job.request, now) else None


def tenant_limits(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """Its tenant is at a limit of its own (`limits.py`)."""
    over = None if admitted else facts.limits.reject(job, now)
    return None if over is None else Rejection(over[0], jittered_s(job.request.request_id, over[1]))


def model_full(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """As many requests wait as may. What is full still takes from a tenant that holds less than its share of it: who
    floods the model is rejected, and nobody else."""
    lanes, maximum = facts.lanes, facts.lanes.policy.max_waiting
    if admitted or len(lanes.jobs) + len(lanes.aside) < maximum:
        return None
    claim = lanes.lanes[job.home].claim(job.request.tenant)
    return Rejection(RejectCause.MODEL_FULL) if claim.count >= claim.share * maximum or claim.share == 1.0 else None


def lane_full(job: Job, admitted: bool, facts: Facts, now: float) -> Rejection | None:
    """As many seconds of work wait in its lane as may; for who holds less than its share as `model_full`. So a lane
    holds at most twice its cap.

    Without a ready replica only a rate that was seen under load says how much is too much: what a little traffic needed
    is no measure of a replica.
    """
    lane = facts.lanes.lanes[job.home]
    if admitted or not lane.count:
        return None
    rate = facts.rate.per_s if facts.starting.any_ready else facts.rate.placed.per_s
    if rate is None:
        return None
    maximum = facts.lanes.policy.lanes[job.home].cap_s * rate
    if lane.work + job.cost <= maximum:
        return None
    claim = lane.claim(job.request.tenant)
    return Rejection(RejectCause.LANE_FULL) if claim.work + job.cost > claim.share * maximum else None
