"""A replica as the scheduler books it: what it can hold, what is leased on it, and whether one more request fits.

Late binding is the three budgets of `wait_reason`: a replica gets a request only when its sequences, its KV blocks and its prefill backlog leave
room, so that the engine's own queue stays near empty and the wait happens where it can be cancelled, shed and counted.
"""

from dataclasses import dataclass
from enum import StrEnum

from deployments.scheduling.lease import Lease
from deployments.scheduling.reasons import WaitReason
from deployments.scheduling.request import Request


class ReplicaStatus(StrEnum):
    """`SUSPECT`: its feed is silent or broken, so nothing new is placed there, but its leases stand."""

    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold.

    `sequences` run at once (vLLM's max_num_seqs), `ahead` more may be bound so that a finished one is replaced at the next step, `kv_tokens` fit
    its KV blocks, and `prefill_tokens` may be bound whose first token is not out yet.
    """

    sequences: int
    ahead: int
    kv_tokens: int
    prefill_tokens: int


class Replica:
    """The books of one replica. All sums are kept, never recounted; `leases` is the truth that they can be checked against."""

    def __init__(self, replica_id: str, capacity: Capacity) -> None:
        self.replica_id = replica_id
        self.capacity = capacity
        self.status = ReplicaStatus.READY
        self.leases: dict[int, Lease] = {}
        self.sequences = 0
        self.kv_tokens = 0
        self.prefill_tokens = 0
        self._prefilling: set[int] = set()

    def wait_reason(self, request: Request) -> WaitReason | None:
        """What keeps `request` off this replica, or None when it fits. A replica without leases takes any request that the engine accepts."""
        if self.status is not ReplicaStatus.READY:
            return WaitReason.NO_READY_REPLICA
        if not self.leases:
            return None
        if self.sequences + request.sequences > self.capacity.sequences + self.capacity.ahead:
            return WaitReason.SEQUENCES
        if self.kv_tokens + request.kv_tokens > self.capacity.kv_tokens:
            return WaitReason.KV_TOKENS
        if self.prefill_tokens and self.prefill_tokens + request.prefill_tokens > self.capacity.prefill_tokens:
            return WaitReason.PREFILL_BUDGET
        return None

    def bind(self, lease: Lease) -> None:
        """Books a lease."""
        self.leases[lease.lease_id] = lease
        self.sequences += lease.request.sequences
        self.kv_tokens += lease.request.kv_tokens
        self.prefill_tokens += lease.request.prefill_tokens
        self._prefilling.add(lease.lease_id)

    def first_token(self, lease: Lease) -> None:
        """Takes the lease's prompt off the prefill backlog; further calls change nothing."""
        if lease.lease_id in self._prefilling:
            self._prefilling.remove(lease.lease_id)
            self.prefill_tokens -= lease.request.prefill_tokens

    def unbind(self, lease: Lease) -> None:
        """Takes a lease off the books."""
        self.first_token(lease)
        del self.leases[lease.lease_id]
        self.sequences -= lease.request.sequences
        self.kv_tokens -= lease.request.kv_tokens
