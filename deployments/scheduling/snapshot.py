"""What the scheduler shows of itself: read by metrics, `raylane status` and, later, the autoscaler."""

from dataclasses import dataclass

from deployments.scheduling.reasons import WaitReason


@dataclass(frozen=True, slots=True)
class LaneStats:
    """One lane: how many wait, their work in tokens, how long the head has waited and for what."""

    name: str
    waiting: int
    tokens: int
    oldest_wait_s: float
    head_waits_for: WaitReason | None


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """One replica's books."""

    replica_id: str
    status: str
    leases: int
    sequences: int
    kv_tokens: int
    prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The scheduler at one moment. `endings` counts ended leases by `Ending`; `placed` = leases now + the sum of `endings`: the books balance."""

    lanes: tuple[LaneStats, ...]
    replicas: tuple[ReplicaStats, ...]
    submitted: int
    placed: int
    endings: dict[str, int]
    rejections: dict[str, int]
    tokens_per_s: float | None
