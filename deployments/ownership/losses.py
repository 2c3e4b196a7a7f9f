"""The work that is lost when a gateway dies: its clients are gone, so its engines drop what they ran for it. Counted, not mended.

A replica tells every gateway of a request that it dropped, with its booking, which names the gateway that held it. Whether that one is dead is known
only a moment later, so what was dropped is remembered for as long as a death may take to be noticed.
"""

from collections import deque
from collections.abc import Iterable

from deployments.ownership.booking import Booking, read_booking
from deployments.protocol import Finished

_REMEMBER_S = 30.0
_MOST = 10_000


class Losses:
    """Of one model, as one gateway sees them. `requests` and `tokens` (booked) grow only."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self._dead: frozenset[str] = frozenset()
        self._dropped: deque[tuple[float, Booking]] = deque(maxlen=_MOST)

    def dropped(self, message: Finished, now: float) -> None:
        """A replica ended a request without statistics."""
        if message.sequences or not message.booking:
            return
        try:
            booking = read_booking(message.booking)
        except ValueError:
            return
        if booking.gateway_id in self._dead:
            self._count(booking)
        else:
            self._dropped.append((now, booking))

    def died(self, gateway_ids: Iterable[str], now: float) -> None:
        """Those gateways were given up."""
        dead = frozenset(gateway_ids)
        new, self._dead = dead - self._dead, dead
        if not new:
            return
        for at_s, booking in self._dropped:
            if booking.gateway_id in new and at_s >= now - _REMEMBER_S:
                self._count(booking)

    def _count(self, booking: Booking) -> None:
        self.requests += 1
        self.tokens += booking.tokens
