"""A lease: the right to run one request on one replica. It ends in exactly one way (`reasons.Ending`)."""

from dataclasses import dataclass

from deployments.scheduling.reasons import PickReason
from deployments.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Lease:
    """`lease_id` is unique in its scheduler; `attempt` counts the placements of the request from 1 on, under whatever owner.

    `prefill_tokens` (uncached prompt, over all sequences), `kv_tokens` and `sequences` are what the replica is booked with;
    `output_tokens` is what was expected of each sequence, `home` the index of the lane by length, as the lanes were when it was placed.
    """

    lease_id: int
    request: Request
    replica_id: str
    placed_s: float
    attempt: int
    prefill_tokens: int
    kv_tokens: int
    output_tokens: int
    home: int

    @property
    def engine_id(self) -> str:
        """The id under which the engine gets the request: one for each placement, since an engine must never see an id twice."""
        return f"{self.request.request_id}-{self.attempt}"

    @property
    def sequences(self) -> int:
        """Sequences that it runs."""
        return self.request.sequences

    @property
    def tokens(self) -> int:
        """All tokens that it stands for, prompt and expected output over all sequences: what is lost if it is."""
        return (self.request.prompt_tokens + self.output_tokens) * self.sequences


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine's own finished-request statistics say that a request took, over all its sequences; durations in seconds of the engine's
    clock."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    sequences: int = 1
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision of `Scheduler.step`: this request runs there, for this reason. `waited_s` in its lane, of which `eta_s` was promised (p50, p95)."""

    request: Request
    lease: Lease
    reason: PickReason
    lane: str
    promoted: bool
    waited_s: float
    eta_s: tuple[float, float] | None

    @property
    def replica_id(self) -> str:
        """The replica that got the request."""
        return self.lease.replica_id
