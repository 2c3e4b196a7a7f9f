"""The pure scheduling core: lanes, leases, placement. No clock, no I/O, no Ray, vLLM or HTTP."""

from cluster.spec import LanePolicy
from deployments.ladder_stats import LadderMode, LadderOrder, LadderStats
from deployments.lane_stats import LaneStats
from deployments.protocol import Usage
from deployments.scheduling.answers import Admission, Placement, Step, TurnedAway
from deployments.scheduling.policy import Order, SchedulingPolicy, TenantPolicy, TenantUse
from deployments.scheduling.reasons import AdmissionKind, Blame, Ending, PickReason, RejectCause, Rung, WaitReason
from deployments.scheduling.replica import Binding, Capacity
from deployments.scheduling.request import Lease, Request, Suspicion
from deployments.scheduling.scheduler import Scheduler
from deployments.scheduling.snapshot import ReplicaStats, Snapshot, WaitingRequest
