"""Which replica gets a job: filter (does it fit?) -> score -> pick, with the reason.

Score: expected time to first token, that is the prefill backlog plus the job's own uncached prompt, at the replica's measured rate; among equals the
fewest sequences, since each lengthens the decode step. Two rules an SRE can reason about stand above it:

- a replica that has the prompt's prefix cached wins unless it would cost more than `stickiness_ms` of expected TTFT (then the stickiness breaks);
- a prompt of more than one step's tokens goes, among the candidates, to the one with the fewest sequences in decode, so that long prefills stay off
  the replicas that decode short requests whenever there is a choice.
"""

from collections.abc import Sequence

from deployments.scheduling.books import PrefixIndex
from deployments.scheduling.reasons import PickReason
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Job


def pick(job: Job, fitting: Sequence[Replica], cached: Sequence[Replica], prefixes: PrefixIndex, stickiness_ms: float) -> tuple[Replica, PickReason]:
    """The replica for `job` among those that it fits on. `fitting`: least loaded first, not empty; `cached`: those with the longest known prefix."""
    best, reason = _least(job, fitting)
    if not cached:
        return best, reason
    warm = min(cached, key=lambda replica: (replica.prefill_tokens, replica.sequences, replica.replica_id))
    if warm is best:
        return best, PickReason.CACHED_PREFIX
    penalty_ms = warm.ttft_ms(uncached_tokens(job, warm, prefixes)) - best.ttft_ms(uncached_tokens(job, best, prefixes))
    return (best, PickReason.STICKINESS_BROKEN) if penalty_ms > stickiness_ms else (warm, PickReason.CACHED_PREFIX)


def uncached_tokens(job: Job, replica: Replica, prefixes: PrefixIndex) -> int:
    """Prompt tokens of `job` that `replica` must prefill, over all its sequences (which share the prompt only where they are n of one)."""
    request = job.request
    credit = int(prefixes.known(request.prefix, replica.replica_id) * request.chunk_tokens * prefixes.trust)
    return max(1, request.prompt_tokens - credit) * request.sequences


def _least(job: Job, fitting: Sequence[Replica]) -> tuple[Replica, PickReason]:
    first = fitting[0]
    if len(fitting) == 1:
        return first, PickReason.ONLY_FIT
    if job.prefill_tokens > first.capacity.step_tokens:
        calm = min(fitting, key=lambda replica: (replica.sequences, replica.prefill_tokens, replica.replica_id))
        if calm is not first:
            return calm, PickReason.APART_FROM_SHORT
    if first.prefill_tokens != fitting[1].prefill_tokens:
        return first, PickReason.LEAST_PREFILL
    return first, PickReason.LEAST_DECODE
