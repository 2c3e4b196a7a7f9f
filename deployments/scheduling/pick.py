"""Which replica gets a request: filter (does it fit?) -> score -> pick, with the reason.

Score: the replica with the least prefill backlog, since that is what the request's first token waits behind; among equals the one with the fewest
sequences, since each lengthens the decode step; then the id, so that the same facts give the same decision.
"""

from collections.abc import Iterable

from deployments.scheduling.reasons import PickReason, WaitReason
from deployments.scheduling.replica import Replica
from deployments.scheduling.request import Request


def pick(request: Request, replicas: Iterable[Replica]) -> tuple[Replica, PickReason] | WaitReason:
    """The replica for `request` and why, or what the request waits for (of the replica that came nearest to taking it)."""
    fitting: list[Replica] = []
    waits = WaitReason.NO_READY_REPLICA
    for replica in replicas:
        reason = replica.wait_reason(request)
        if reason is None:
            fitting.append(replica)
        elif reason is not WaitReason.NO_READY_REPLICA:
            waits = reason
    if not fitting:
        return waits
    best = min(fitting, key=_score)
    if len(fitting) == 1:
        return best, PickReason.ONLY_FIT
    by_prefill = any(replica.prefill_tokens != best.prefill_tokens for replica in fitting)
    return best, PickReason.LEAST_PREFILL if by_prefill else PickReason.LEAST_DECODE


def _score(replica: Replica) -> tuple[int, int, str]:
    return replica.prefill_tokens, replica.sequences, replica.replica_id
