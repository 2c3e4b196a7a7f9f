"""The queue of one tenant in one lane: earliest deadline first, and those that can no longer meet theirs after those that can.

Heaps with lazy deletion: a job that left (cancelled, promoted, expired) is known by its `lane` and dropped when it comes to the top, or when the dead
outnumber the living; so leaving costs nothing and entering O(log n).
"""

import heapq
from typing import TYPE_CHECKING

from deployments.scheduling.fair import Flow
from deployments.scheduling.request import Job

if TYPE_CHECKING:
    from deployments.scheduling.lane import Lane

_Heap = list[tuple[float, int, Job]]
_SLACK = 8


class TenantQueue:
    """Holds jobs; `flow` is the tenant's claim to a share of its lane, `entry` names its valid place in the lane's heap, `work` is what waits."""

    __slots__ = ("_lane", "_late", "_viable", "count", "entry", "flow", "work")

    def __init__(self, lane: "Lane", weight: float) -> None:
        self.flow = Flow(weight)
        self.count = 0
        self.entry = 0
        self.work = 0.0
        self._lane = lane
        self._viable: _Heap = []
        self._late: _Heap = []

    def push(self, job: Job, key: float) -> None:
        """Adds a job, ordered by `key` and then by `job.sequence`."""
        self.count += 1
        self.work += job.cost
        heapq.heappush(self._viable, (key, job.sequence, job))

    def left(self, job: Job) -> None:
        """A job left, from wherever it stood."""
        lane = self._lane
        self.count -= 1
        if job.late:
            job.late = False
            lane.late -= 1
            lane.late_work = lane.late_work - job.cost if lane.late else 0.0
        if not self.count:
            self.work = 0.0
            self._viable.clear()
            self._late.clear()
            return
        self.work -= job.cost
        if len(self._viable) + len(self._late) > 2 * self.count + _SLACK:
            self._viable = [entry for entry in self._viable if entry[2].lane is lane]
            self._late = [entry for entry in self._late if entry[2].lane is lane]
            heapq.heapify(self._viable)
            heapq.heapify(self._late)

    def head(self, now: float) -> Job | None:
        """The next job."""
        viable, late, lane = self._viable, self._late, self._lane
        while viable:
            entry = viable[0]
            job = entry[2]
            if job.lane is not lane:
                heapq.heappop(viable)
            elif job.latest_start_s < now:
                heapq.heappush(late, heapq.heappop(viable))
                job.late = True
                lane.late += 1
                lane.late_work += job.cost
                lane.turned_late.append(job)
            else:
                return job
        while late and late[0][2].lane is not lane:
            heapq.heappop(late)
        return late[0][2] if late else None
