"""Which replica gets a job, of those that it fits on: the contract of a pick, and the picks by name (`PICKS`).

The scheduler filters (does the job fit, `Replica.wait_reason`?), a pick scores and chooses, with the reason. Its
`load` is also the key of the heap in which the fleet keeps open replicas, so that the best few are found without
looking at all. A pick has no state. How to add one: docs/extending.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from deployments.scheduling.learned_state import PrefixIndex
from deployments.scheduling.reasons import PickReason
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Job


class Candidates(NamedTuple):
    """The replicas that `job` fits on. `fitting`: some with the least `load`, in that order, at least one. `cached`:
    those with the longest known part of its prompt in their cache. `stickiness_ms`: what a cached prefix may cost, in
    expected TTFT. `unequal`: those that fit are not of one kind, so that their tokens cannot be compared."""

    job: Job
    fitting: Sequence[Replica]
    cached: Sequence[Replica]
    prefixes: PrefixIndex
    stickiness_ms: float
    unequal: bool = False

    def ttft_ms(self, replica: Replica) -> float:
        """The time to first token to expect there: what is to be prefilled, the job's uncached prompt included."""
        return replica.ttft_ms(uncached_tokens(self.job, replica, self.prefixes))


class Pick(Protocol):
    """A way to choose a replica."""

    def load(self, replica: Replica) -> tuple[float, ...]:
        """The score of a replica whatever the job; the least is best. May depend only on the replica's bookings and
        capacity: each change of those moves it in the heap. Ties are broken by the replica's id."""

    def choose(self, candidates: Candidates) -> tuple[Replica, PickReason]:
        """One of `fitting` or `cached`, and why."""


def uncached_tokens(job: Job, replica: Replica, prefixes: PrefixIndex) -> int:
    """Prompt tokens of `job` that `replica` must prefill, over all its sequences (which share the prompt only where
    they are n of one)."""
    request = job.request
    credit = int(prefixes.known(request.prefix, replica.replica_id) * request.chunk_tokens * prefixes.trust)
    return max(1, request.prompt_tokens - credit) * request.sequences


class MinTtft:
    """The default: the least expected time to first token.

    That is the prefill backlog plus the job's own uncached prompt, at the replica's measured rate; among equals the
    fewest sequences, since each lengthens the decode step. Two rules that an SRE can reason about stand above it:

    - a replica that has the prompt's prefix cached wins unless it would cost more than `stickiness_ms` of expected TTFT
      (then the stickiness breaks);
    - a prompt of more than one step's tokens goes, among the candidates, to the one with the fewest sequences in
      decode, so that long prefills stay off the replicas that decode short requests whenever there is a choice.

    Equal replicas are compared by their tokens to prefill, which are exact; replicas of different kinds by the time
    to first token that the measured rates let expect.
    """

    def load(self, replica: Replica) -> tuple[int, int]:
        """The prefill backlog, then the sequences."""
        return replica.prefill_tokens, replica.sequences

    def choose(self, candidates: Candidates) -> tuple[Replica, PickReason]:
        """The least loaded, or the one with the prefix."""
        best, reason = _minimum(candidates)
        if not candidates.cached:
            return best, reason
        warm = min(
            candidates.cached, key=lambda replica: (replica.prefill_tokens, replica.sequences, replica.replica_id)
        )
        if warm is best:
            return best, PickReason.CACHED_PREFIX
        penalty_ms = candidates.ttft_ms(warm) - candidates.ttft_ms(best)
        return (
            (best, PickReason.STICKINESS_BROKEN)
            if penalty_ms > candidates.stickiness_ms
            else (warm, PickReason.CACHED_PREFIX)
        )


def _minimum(candidates: Candidates) -> tuple[Replica, PickReason]:
    job, fitting = candidates.job, candidates.fitting
    first = fitting[0]
    if len(fitting) == 1:
        return first, PickReason.ONLY_FIT
    if candidates.unequal:
        return min(fitting, key=lambda replica: _speed(candidates, replica)), PickReason.SHORTEST_TTFT
    if job.prefill_tokens > first.capacity.step_tokens:
        calm = min(fitting, key=lambda replica: (replica.sequences, replica.prefill_tokens, replica.replica_id))
        if calm is not first:
            return calm, PickReason.APART_FROM_SHORT
    if first.prefill_tokens != fitting[1].prefill_tokens:
        return first, PickReason.LEAST_PREFILL
    return first, PickReason.LEAST_DECODE


def _speed(candidates: Candidates, replica: Replica) -> tuple[float, float, float, str]:
    """By which replicas of different kinds are compared: the expected time to first token, then the time per output
    token, then the share of their sequences that is taken."""
    taken = replica.sequences / replica.capacity.sequences
    return candidates.ttft_ms(replica), replica.tpot_s or 0.0, taken, replica.replica_id


PICKS: Mapping[str, Pick] = {
    "min_ttft": MinTtft(),
}
"""By the name that a spec gives them (`scheduling.pick`)."""


def pick_named(name: str) -> Pick:
    """Raises ValueError where there is none of that name."""
    if name not in PICKS:
        raise ValueError(f"pick = {name!r}; allowed: {', '.join(PICKS)}")
    return PICKS[name]
