"""A request as the scheduler sees it (sizes, times and owner, never text), the job that the scheduler makes of it and
when something is due for it, the lease it runs under, and the record of one that ran when a replica died."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from deployments.scheduling.eta import LaneEta, WaitEstimate
from deployments.scheduling.reasons import Rung

Groups = tuple[str, ...] | None
"""The groups that may serve a request, in the order in which they are tried; None: any (the model has only one)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a model.

    `prompt_tokens` is known or estimated for one sequence, `max_tokens` the client's bound on a sequence's output
    (None: the context's end), `sequences` counts prompts x n. `arrived_s` is when the gateway had it whole,
    `deadline_s` when its first token is due by its class, `expires_s` when its wait is given up, all on the shell's
    monotonic clock. `prefix` holds chained hashes of the prompt's first chunks of `chunk_tokens` tokens each.
    `attempts`: how often it was placed before, under an owner that is gone. `digest`: of its body, keyed
    (`suspects.py`). `max_prompt_tokens`: the prompt hardly has more, where `prompt_tokens` is an estimate (0: it is
    exact). `guest_of`: the cell that handed it over to this one (empty: it arrived here), where it counts as demand and
    against its tenant's limits. `hops`: how many cells it has left; after one it is handed over no more. `body_bytes`:
    of the body that a hand-over would carry (0: there are no peers). `impatient`: it is rejected where it would wait
    for longer than it may, since there is another model for it. `counted`: it is demand of that other model, or has
    been counted before, and is only load here. `rungs` of the ladder may touch it; `clamped`: one has lowered its
    `max_tokens`. `cached`: its answer is there, so that it is only counted against its tenant's limits; it has no
    tokens.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int | None
    arrived_s: float
    deadline_s: float
    expires_s: float
    sequences: int = 1
    traffic_class: str = "interactive"
    tenant: str = ""
    prefix: tuple[int, ...] = ()
    chunk_tokens: int = 0
    attempts: int = 0
    digest: str = ""
    max_prompt_tokens: int = 0
    guest_of: str = ""
    hops: int = 0
    body_bytes: int = 0
    impatient: bool = False
    counted: bool = False
    rungs: tuple[Rung, ...] = ()
    clamped: bool = False
    cached: bool = False

    @property
    def key(self) -> str:
        """Under which it is suspected where a replica dies: a client's retry has the same."""
        return self.digest or self.request_id


class JobQueue(Protocol):
    """Where a job waits: a lane."""

    def remove(self, job: "Job") -> None:
        """The job leaves without being served."""


@dataclass(eq=False, slots=True)
class Job:
    """A request in the scheduler: what it is booked with. Mutable, and never seen outside.

    `cost` is its work in prefill tokens (uncached prompt plus weighted output), `kv_tokens` what its KV blocks are
    booked with. `lane` is the lane (or the promoted one) in which it waits; None once it is placed or gone. `home`
    is the index of its lane by length, `home_name` that lane's name; both change only with the lanes, while it
    waits. `context_tokens` is the context that a sequence of it needs, `groups` are those of its lane's groups that
    have it, in order (None: any group may serve it, and the context is not looked at). `sequence` orders it in its
    lane; `wait_id` names this time that it waits. `key` is what orders it in its lane. `limited`: it counts against
    its tenant's limits. `wait_estimate`: the estimate that it got (`eta.py`); `eta`: what gave it, and learns from
    the outcome, whatever the lanes are called by then. `judged`: it has met or missed its SLO.
    """

    request: Request
    sequence: int
    wait_id: int = 0
    attempt: int = 0
    home: int = 0
    home_name: str = ""
    lane: JobQueue | None = None
    cost: float = 0.0
    credit_tokens: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    kv_tokens: int = 0
    context_tokens: int = 0
    groups: Groups = None
    deadline_s: float = 0.0
    key: float = 0.0
    limited: bool = False
    judged: bool = False
    promoted_s: float | None = None
    wait_estimate: WaitEstimate | None = None
    eta: LaneEta | None = None

    def __post_init__(self) -> None:
        self.deadline_s = self.request.deadline_s


_SLACK = 64


@dataclass(eq=False, slots=True)
class Wakeups:
    """Times at which something becomes due for waiting jobs (a promotion, the end of a wait), in seconds of the shell's
    clock.

    A heap with lazy deletion: an entry counts only while its job waits under the wait id with which it was
    added (a job gets a new one each time it begins to wait, or its lanes change). Dead entries are dropped when they
    come to the top, or when they outnumber the living.
    """

    _heap: list[tuple[float, int, Job]] = field(default_factory=list)

    def add(self, at_s: float, job: Job) -> None:
        """The job, which waits, is due then."""
        heapq.heappush(self._heap, (at_s, job.wait_id, job))

    def clear(self) -> None:
        """Nothing is due any more."""
        self._heap.clear()

    def next_s(self) -> float | None:
        """The first time at which a job that still waits is due."""
        heap = self._heap
        while heap and not _waits(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def is_due(self, now: float) -> bool:
        """Whether the first time has come, be it that of a job that waits no more."""
        return bool(self._heap) and self._heap[0][0] <= now

    def due(self, now: float) -> Iterator[Job]:
        """Takes out the jobs that are due, first of all the one whose time came first; what is not asked for stays."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            if _waits(entry):
                yield entry[2]

    def trim(self, waiting: int) -> None:
        """So many jobs wait in all."""
        if len(self._heap) > 2 * waiting + _SLACK:
            self._heap = [entry for entry in self._heap if _waits(entry)]
            heapq.heapify(self._heap)


def _waits(entry: tuple[float, int, Job]) -> bool:
    return entry[2].wait_id == entry[1] and entry[2].lane is not None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run one request on one replica. It ends in exactly one way (`reasons.Ending`).

    `lease_id` is unique in its scheduler; `attempt` counts the placements of the request from 1 on, under whatever
    owner.

    `prefill_tokens` (uncached prompt, over all sequences), `kv_tokens` and `sequences` are what the replica is booked
    with; `output_tokens` is what was expected of each sequence, `home` the index of the lane by length, as the lanes
    were when it was placed.
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
    def attempt_id(self) -> str:
        """The id under which the engine gets the request: one for each placement, since an engine must never see an id
        twice."""
        return f"{self.request.request_id}-{self.attempt}"

    @property
    def tokens(self) -> int:
        """All tokens that it stands for, prompt and expected output over all sequences: what is lost if it is."""
        return (self.request.prompt_tokens + self.output_tokens) * self.request.sequences


def lease_away(request: Request, now: float, output_tokens: int = 0, home: int = 0) -> Lease:
    """A lease at a peer cell: nothing is booked with it here, and what the peer has cached is not known."""
    return Lease(
        lease_id=0,
        request=request,
        replica_id="",
        placed_s=now,
        attempt=request.attempts,
        prefill_tokens=request.prompt_tokens * request.sequences,
        kv_tokens=0,
        output_tokens=output_tokens,
        home=home,
    )


FORGET_S = 600.0
"""After so long one death is forgotten. A ban becomes a suspicion: whoever is deadly then costs one replica, not
two."""
DEADLY = 2


class Suspicion(NamedTuple):
    """A record of a query of death (`suspects.py`): `deaths` so far, of which the last came at `since_s`.

    `answered`: a run of it has got its first token, so that a long prompt or its parameters alone are not deadly.
    `deaths` is 0 for one that is clear again.
    """

    key: str
    deaths: int
    answered: bool
    since_s: float

    @property
    def banned(self) -> bool:
        """Whether it is not placed any more."""
        return self.deaths >= DEADLY

    @property
    def forgotten_s(self) -> float:
        """When one of the deaths will be forgotten."""
        return self.since_s + FORGET_S
