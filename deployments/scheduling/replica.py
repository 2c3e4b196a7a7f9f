"""A replica as the scheduler sees it: what it can hold, what is leased on it, and whether one more job fits.

Late binding is the three budgets of `wait_reason`: a replica gets a job only when its sequences, its KV blocks and its
prefill backlog leave room, so that the engine's own queue stays near empty and the wait happens where it can be
reordered, cancelled, shed and counted.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cluster.spec import DEFAULT_GROUP, Scheduling
from deployments.protocol import Usage
from deployments.scheduling.itl_cap import ItlCap
from deployments.scheduling.reasons import WaitReason
from deployments.scheduling.request import Job, Lease

FIRST_PREFILL_TOKENS_PER_S = 10_000.0
_WEIGHT = 0.05
ANY_CONTEXT = 1 << 62
"""The context of a replica that takes whatever is sent to it."""
_SCHEDULING = Scheduling()


class ReplicaStatus(StrEnum):
    """`UNRESPONSIVE`: its feed is unresponsive or broken, so nothing new is placed there, but its leases stand.
    `EJECTED`: far slower than the others. `CORDONED`: an operator keeps new work off it."""

    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    DRAINING = "draining"
    EJECTED = "ejected"
    CORDONED = "cordoned"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold.

    `sequences` run at once (vLLM's max_num_seqs), `ahead` more may be bound so that a finished one is replaced at the
    next step, `kv_tokens` fit its KV blocks, and `step_tokens` is the token budget of one step (vLLM's
    max_num_batched_tokens): a prompt is bound while less than `prefill_steps` steps' worth of tokens are to be
    prefilled. `group` is the model's group that it belongs to, `context_tokens` the longest sequence that it takes
    (vLLM's max_model_len).
    """

    sequences: int
    ahead: int
    kv_tokens: int
    step_tokens: int
    prefill_steps: float
    group: str = DEFAULT_GROUP
    context_tokens: int = ANY_CONTEXT

    @property
    def prefill_budget(self) -> float:
        """Tokens to prefill from which on a replica gets no other prompt."""
        return self.prefill_steps * self.step_tokens


@dataclass(frozen=True, slots=True)
class Binding:
    """How late requests are bound to a replica: see `Scheduling.bind_ahead` and `.prefill_steps` of the spec."""

    ahead: float = _SCHEDULING.bind_ahead
    prefill_steps: float = _SCHEDULING.prefill_steps

    def capacity(
        self,
        max_num_seqs: int,
        kv_tokens: int,
        step_tokens: int,
        group: str = DEFAULT_GROUP,
        context_tokens: int = ANY_CONTEXT,
    ) -> Capacity:
        """The budgets of a replica whose engine has these limits."""
        ahead = round(max_num_seqs * self.ahead)
        return Capacity(max_num_seqs, ahead, kv_tokens, step_tokens, self.prefill_steps, group, context_tokens)


OrderEntries = list[tuple[Any, str, int, "Replica"]]
"""A heap of (key, replica id, version, replica)."""


@dataclass(eq=False, slots=True)
class Kind:
    """The replicas of one group with one context, and the open ones among them in two orders (`fleet.py`)."""

    group: str
    context_tokens: int
    replicas: dict[str, "Replica"] = field(default_factory=dict)
    by_load: OrderEntries = field(default_factory=list)
    by_kv: OrderEntries = field(default_factory=list)

    @property
    def key(self) -> tuple[str, int]:
        return self.group, self.context_tokens


@dataclass(eq=False, slots=True)
class Replica:
    """The bookings of one replica. All sums are kept, never recounted; they can be checked against `leases`.

    `reported` is what its feed (or a verdict of the scheduler's) made of it, `cordoned` an operator's word, which
    outlasts all of that; `status` is what follows from both.
    """

    replica_id: str
    capacity: Capacity
    kind: Kind | None = None
    reported: ReplicaStatus = ReplicaStatus.READY
    status: ReplicaStatus = ReplicaStatus.READY
    cordoned: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)
    sequences: int = 0
    kv_tokens: int = 0
    prefill_tokens: int = 0
    prefill_tokens_per_s: float = FIRST_PREFILL_TOKENS_PER_S
    tpot_s: float | None = None
    held_by: str | None = None
    itl: ItlCap | None = None
    """None where no class names an `itl_ms`."""
    version: int = 0
    _prefilling: set[int] = field(default_factory=set)

    @property
    def open(self) -> bool:
        """Whether anything at all could be placed here."""
        return (
            self.status is ReplicaStatus.READY
            and self.held_by is None
            and self.sequences < self.capacity.sequences + self.capacity.ahead
            and self.prefill_tokens < self.capacity.prefill_budget
            and not self.capped(1)
        )

    def capped(self, sequences: int) -> bool:
        """Whether the cap that keeps the time between tokens leaves no room for so many more sequences."""
        itl = self.itl
        return itl is not None and (self.sequences + sequences > itl.sequences or len(self._prefilling) >= itl.prompts)

    @property
    def max_sequences(self) -> int:
        """How many may run at once."""
        return self.capacity.sequences if self.itl is None else min(self.capacity.sequences, self.itl.sequences)

    def become(self, reported: ReplicaStatus, cordoned: bool) -> None:
        """Its state was reported. One that drains or is unresponsive is shown as that, cordoned or not: it is the worse
        news."""
        self.reported, self.cordoned = reported, cordoned
        self.status = (
            ReplicaStatus.CORDONED
            if cordoned and reported in (ReplicaStatus.READY, ReplicaStatus.EJECTED)
            else reported
        )

    @property
    def may_serve(self) -> bool:
        """Whether it takes work, or may again without anybody's doing: an unresponsive one may speak, an ejected one is
        forgiven."""
        return self.reported is not ReplicaStatus.DRAINING and not self.cordoned

    def wait_reason(self, job: Job) -> WaitReason | None:
        """What keeps `job` off this replica, or None when it fits. A replica without leases takes any job that the
        engine accepts.

        The prefill backlog is judged without the job's own prompt. So a large prompt needs no more room to begin than a
        small one, which would else fill each gap before it; and a step is filled up, since the engine takes what is
        left of the step from the last prompt and goes on with it.
        """
        if not self.leases:
            return None
        capacity = self.capacity
        if self.sequences + job.request.sequences > capacity.sequences + capacity.ahead:
            return WaitReason.SEQUENCES
        if self.kv_tokens + job.kv_tokens > capacity.kv_tokens:
            return WaitReason.KV_TOKENS
        if self.prefill_tokens >= capacity.prefill_budget:
            return WaitReason.PREFILL_BUDGET
        return WaitReason.ITL if self.capped(job.request.sequences) else None

    def suits(self, job: Job) -> bool:
        """Whether `job` may run here at all: its lane names the group, and its context fits."""
        capacity = self.capacity
        return job.groups is None or (capacity.group in job.groups and job.context_tokens <= capacity.context_tokens)

    @property
    def free_kv_tokens(self) -> int:
        """Tokens that still fit its KV blocks."""
        return self.capacity.kv_tokens - self.kv_tokens

    def ttft_ms(self, uncached_tokens: int) -> float:
        """Expected time to first token of a prompt placed here now: what is to be prefilled, at the measured rate."""
        return 1e3 * (self.prefill_tokens + uncached_tokens) / self.prefill_tokens_per_s

    def bind(self, lease: Lease) -> None:
        self.leases[lease.lease_id] = lease
        self.sequences += lease.request.sequences
        self.kv_tokens += lease.kv_tokens
        self.prefill_tokens += lease.prefill_tokens
        self._prefilling.add(lease.lease_id)
        if self.itl is not None:
            self.itl.began(lease, self.sequences)

    def first_token(self, lease: Lease) -> bool:
        """Takes the lease's prompt off the prefill backlog. False when that was done before."""
        if lease.lease_id not in self._prefilling:
            return False
        self._prefilling.remove(lease.lease_id)
        self.prefill_tokens -= lease.prefill_tokens
        return True

    def is_prefilling(self, lease: Lease) -> bool:
        """Whether the lease stands and its first token is not there yet."""
        return lease.lease_id in self._prefilling

    def unbind(self, lease: Lease) -> None:
        self.first_token(lease)
        del self.leases[lease.lease_id]
        self.sequences -= lease.request.sequences
        self.kv_tokens -= lease.kv_tokens

    def learn(self, usage: Usage) -> None:
        """Measures the replica by the engine's own account of a finished request."""
        uncached = usage.prompt_tokens - usage.cached_tokens
        if usage.prefill_s > 0 and uncached >= 16:
            self.prefill_tokens_per_s += _WEIGHT * (uncached / usage.prefill_s - self.prefill_tokens_per_s)
        after_first = usage.output_tokens / usage.sequences - 1
        if usage.decode_s > 0 and after_first >= 4:
            tpot_s = usage.decode_s / after_first
            self.tpot_s = tpot_s if self.tpot_s is None else self.tpot_s + _WEIGHT * (tpot_s - self.tpot_s)
