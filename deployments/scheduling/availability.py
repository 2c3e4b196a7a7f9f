"""What holds while there is no replica: who waits for the next one (`Starting`), and which waits teach nothing
(`Outage`)."""

import math

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.request import Request


class Starting:
    """When the next replica is expected. `doubt`: something changed, so that what waits may wait in vain.

    While there is no replica the lanes are a waiting room: a request waits as long as the start of the next replica
    fits its patience (`expires_s`). When that will be is a fact from outside. While nobody knows, everybody waits: the
    first request is what makes a replica start.
    """

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


class Outage:
    """When no replica answers that should: what waits teach meanwhile is no measure of the lanes, and is not learned,
    or forgotten again.

    An outage begins when the last ready replica is lost or unresponsive, and ends when one is ready. One that hangs is
    found out only after a while, so the outage reaches back to the last sign of life: a first token, or the end of an
    answer. A replica that drains, or one that an operator keeps work off, makes no outage: that is somebody's plan.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sign_s = -math.inf
        self._began_s: float | None = None
        self._over_s = -math.inf

    def sign(self, now: float) -> None:
        """A replica has answered."""
        self._sign_s = now

    def down(self) -> None:
        """A replica was lost, or is unresponsive."""
        if self._began_s is None and not self._fleet.any_ready:
            self._began_s = self._sign_s

    def up(self, now: float) -> float | None:
        """A replica came, or came back. Returns since when nothing counts that was learned; None where that ends no
        outage."""
        if self._began_s is None or not self._fleet.any_ready:
            return None
        began_s, self._began_s, self._over_s = self._began_s, None, now
        return began_s

    def spoils(self, arrived_s: float) -> bool:
        """Whether an outage has been a part of the wait of a request that arrived then and waits still."""
        return self._began_s is not None or arrived_s < self._over_s
