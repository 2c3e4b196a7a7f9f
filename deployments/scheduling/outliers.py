"""Ejects replicas that decode far slower than the others (a throttled GPU, a noisy neighbour), for a while, and never the last one.

A replica is slow when its time per output token (a decayed mean of the engine's own account) is more than `SLOW` times the fleet's median. It comes
back after `PROBATION_S` with a clean slate: what it then shows decides.
"""

from statistics import median

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.replica import ReplicaStatus

SLOW = 2.5
PROBATION_S = 30.0
LEAST_REPLICAS = 3
"""Of two replicas nobody can say which is the slow one."""
CHECK_S = 5.0


class Outliers:
    """Judges the fleet every few seconds."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ejected: dict[str, float] = {}
        self._checked_s = 0.0

    def judge(self, now: float) -> None:
        """Ejects and forgives. Costs nothing between two checks."""
        if now - self._checked_s < CHECK_S:
            return
        self._checked_s = now
        for replica_id, since in list(self._ejected.items()):
            if now - since >= PROBATION_S:
                del self._ejected[replica_id]
                self._forgive(replica_id)
        measured = [replica for replica in self._fleet.by_id.values() if replica.status is ReplicaStatus.READY and replica.tpot_s is not None]
        if len(measured) < LEAST_REPLICAS:
            return
        limit = SLOW * median(replica.tpot_s for replica in measured if replica.tpot_s is not None)
        slow = [replica for replica in measured if replica.tpot_s is not None and replica.tpot_s > limit]
        for replica in slow[: len(measured) - 1]:
            self._ejected[replica.replica_id] = now
            self._fleet.set_status(replica.replica_id, ReplicaStatus.EJECTED)

    def _forgive(self, replica_id: str) -> None:
        replica = self._fleet.by_id.get(replica_id)
        if replica is not None and replica.told is ReplicaStatus.EJECTED:
            replica.tpot_s = None
            self._fleet.set_status(replica_id, ReplicaStatus.READY)
