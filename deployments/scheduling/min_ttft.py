"""The default pick: the least expected time to first token.

That is the prefill backlog plus the job's own uncached prompt, at the replica's measured rate; among equals the
fewest sequences, since each lengthens the decode step. Two rules that an SRE can reason about stand above it:

- a replica that has the prompt's prefix cached wins unless it would cost more than `stickiness_ms` of expected TTFT
  (then the stickiness breaks);
- a prompt of more than one step's tokens goes, among the candidates, to the one with the fewest sequences in decode, so
  that long prefills stay off the replicas that decode short requests whenever there is a choice.
"""

from collections.abc import Sequence

from deployments.scheduling.pick import Candidates
from deployments.scheduling.reasons import PickReason
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Job


class MinTtft:
    """See the module's docstring."""

    def load(self, replica: Replica) -> tuple[int, int]:
        """The prefill backlog, then the sequences."""
        return replica.prefill_tokens, replica.sequences

    def choose(self, candidates: Candidates) -> tuple[Replica, PickReason]:
        """The least loaded, or the one with the prefix."""
        best, reason = _minimum(candidates.job, candidates.fitting)
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


def _minimum(job: Job, fitting: Sequence[Replica]) -> tuple[Replica, PickReason]:
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
