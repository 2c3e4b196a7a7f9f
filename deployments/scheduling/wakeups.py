"""Times at which something becomes due for waiting jobs: a promotion, the end of a wait.

A heap with lazy deletion: an entry counts only while its job waits under the ticket with which it was added (a job gets a new one each time it begins
to wait, or its lanes change). Dead entries are dropped when they come to the top, or when they outnumber the living: what is kept is at most a small
multiple of what waits.
"""

import heapq
from collections.abc import Iterator

from deployments.scheduling.request import Job

_SLACK = 64


class Wakeups:
    """The times of one kind, in seconds of the shell's clock."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []

    def add(self, at_s: float, job: Job) -> None:
        """The job, which waits, is due then."""
        heapq.heappush(self._heap, (at_s, job.ticket, job))

    def clear(self) -> None:
        """Nothing is due any more."""
        self._heap.clear()

    def next_s(self) -> float | None:
        """The first time at which a job that still waits is due."""
        heap = self._heap
        while heap and not _waits(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

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
    return entry[2].ticket == entry[1] and entry[2].lane is not None
