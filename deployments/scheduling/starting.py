"""The lanes as a waiting room: while there is no replica, a request waits as long as the start of the next fits its patience.

When that will be is a fact from outside (whoever starts replicas says so); a request's patience is the end of its wait, `expires_s`. While nobody
knows when, everybody waits: the first request is what makes a replica start.
"""

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.request import Request


class Starting:
    """When the next replica is expected. `doubt`: something changed, so that what waits may wait in vain."""

    def __init__(self, fleet: Fleet) -> None:
        self.ready_at_s: float | None = None
        self.doubt = False
        self._fleet = fleet

    def expect(self, ready_at_s: float | None) -> None:
        """The next replica should be ready then; None: nobody knows of any."""
        self.ready_at_s = ready_at_s
        self.doubt = True

    @property
    def any_ready(self) -> bool:
        """Whether a replica takes work, now or once it has room: else the lanes are a waiting room."""
        return self._fleet.any_ready

    @property
    def any_open(self) -> bool:
        """Whether whoever comes now would find room somewhere."""
        return self._fleet.any_open

    def wait_s(self, now: float) -> float:
        """How long every request must wait for a replica to be there; 0 where one is, and where nobody knows."""
        if self.ready_at_s is None or self.ready_at_s <= now or not self._fleet.is_deserted:
            return 0.0
        return self.ready_at_s - now

    def is_too_late_for(self, request: Request, now: float) -> bool:
        """Whether the request would give up before there is a replica."""
        wait_s = self.wait_s(now)
        return wait_s > 0 and now + wait_s > request.expires_s
