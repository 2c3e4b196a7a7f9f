"""Replicas that have been unresponsive for so long that nobody may count on them: what the others cannot carry is asked
for beside them."""

from autoscaling.signals.signals import Signals
from deployments.scheduling.replica import ReplicaStatus

_AFTER_S = 10.0
"""A feed that breaks is there again after a second or two; a node that is lost is not."""


class UnresponsiveReplicas:
    """Since when each has been unresponsive."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def look(self, signals: Signals) -> int:
        """How many to leave out of those that are applied."""
        names = [replica.replica_id for replica in signals.replicas if replica.status == ReplicaStatus.UNRESPONSIVE]
        self._since_s = {name: self._since_s.get(name, signals.at_s) for name in names}
        gone = sum(signals.at_s - since_s >= _AFTER_S for since_s in self._since_s.values())
        return min(gone, max(0, signals.applied - 1))
