"""When no replica answers that should: what waits teach meanwhile is no measure of the lanes, and is not learned, or forgotten again.

An outage begins when the last ready replica is lost or silent, and ends when one is ready. One that hangs is found out only after a while, so the
outage reaches back to the last sign of life: a first token, or the end of an answer. A replica that drains, or one that an operator keeps work off,
makes no outage: that is somebody's plan.
"""

import math

from deployments.scheduling.fleet import Fleet


class Outage:
    """Of one model. The scheduler tells it of signs of life, losses and returns."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sign_s = -math.inf
        self._began_s: float | None = None
        self._over_s = -math.inf

    def sign(self, now: float) -> None:
        """A replica has answered."""
        self._sign_s = now

    def down(self) -> None:
        """A replica was lost, or is silent."""
        if self._began_s is None and not self._fleet.any_ready:
            self._began_s = self._sign_s

    def up(self, now: float) -> float | None:
        """A replica came, or came back. Returns since when nothing counts that was learned; None where that ends no outage."""
        if self._began_s is None or not self._fleet.any_ready:
            return None
        began_s, self._began_s, self._over_s = self._began_s, None, now
        return began_s

    def spoils(self, arrived_s: float) -> bool:
        """Whether an outage has been a part of the wait of a request that arrived then and waits still."""
        return self._began_s is not None or arrived_s < self._over_s
