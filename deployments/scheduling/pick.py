"""Which replica gets a job, of those that it fits on: the contract of a pick.

The scheduler filters (does the job fit, `Replica.wait_reason`?), a pick scores and chooses, with the reason. Its
`load` is also the key of the heap in which the fleet keeps open replicas, so that the best few are found without
looking at all. A pick has no state; the registry is `registry.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from deployments.scheduling.learned_state import PrefixIndex
from deployments.scheduling.reasons import PickReason
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Job


class Candidates(NamedTuple):
    """The replicas that `job` fits on. `fitting`: some with the least `load`, in that order, at least one. `cached`:
    those with the longest known part of its prompt in their cache. `stickiness_ms`: what a cached prefix may cost, in
    expected TTFT."""

    job: Job
    fitting: Sequence[Replica]
    cached: Sequence[Replica]
    prefixes: PrefixIndex
    stickiness_ms: float

    def ttft_ms(self, replica: Replica) -> float:
        """The time to first token to expect there: what is to be prefilled, the job's uncached prompt included."""
        return replica.ttft_ms(uncached_tokens(self.job, replica, self.prefixes))


class Pick(Protocol):
    """A way to choose a replica."""

    def load(self, replica: Replica) -> tuple[float, ...]:
        """The score of a replica whatever the job; the least is best. May depend only on the replica's books and
        capacity: each change of those moves it in the heap. Ties are broken by the replica's id."""

    def choose(self, candidates: Candidates) -> tuple[Replica, PickReason]:
        """One of `fitting` or `cached`, and why."""


def uncached_tokens(job: Job, replica: Replica, prefixes: PrefixIndex) -> int:
    """Prompt tokens of `job` that `replica` must prefill, over all its sequences (which share the prompt only where
    they are n of one)."""
    request = job.request
    credit = int(prefixes.known(request.prefix, replica.replica_id) * request.chunk_tokens * prefixes.trust)
    return max(1, request.prompt_tokens - credit) * request.sequences
