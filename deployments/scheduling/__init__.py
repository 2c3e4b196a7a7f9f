"""The pure scheduling core: lanes, leases, placement. No clock, no I/O, no Ray, vLLM or HTTP."""

from deployments.scheduling.admission import Admission
from deployments.scheduling.lease import Lease, Placement, Usage
from deployments.scheduling.reasons import AdmissionKind, Ending, PickReason, RejectCause, WaitReason
from deployments.scheduling.replica import Capacity
from deployments.scheduling.request import Request
from deployments.scheduling.scheduler import Scheduler, Settings, Step
from deployments.scheduling.snapshot import LaneStats, ReplicaStats, Snapshot

__all__ = [
    "Admission",
    "AdmissionKind",
    "Capacity",
    "Ending",
    "LaneStats",
    "Lease",
    "PickReason",
    "Placement",
    "RejectCause",
    "ReplicaStats",
    "Request",
    "Scheduler",
    "Settings",
    "Snapshot",
    "Step",
    "Usage",
    "WaitReason",
]
