"""When a rejected caller should come back: a place in an imaginary queue behind the real one, so that a storm of rejected callers returns spread out.

Each rejection books its cost behind those rejected before it; bookings drain at the service rate. A caller that obeys meets a lane with room; all of
them together offer no more than the cluster can do. Jitter of +-10 % is a hash of the request's id: no clock, no random state, the same in a replay.
"""

import math
import zlib

LEAST_S = 1.0
MOST_S = 600.0
_UNKNOWN_RATE_S = 5.0


class RetryQueue:
    """The imaginary queue of one lane."""

    __slots__ = ("_booked_until_s",)

    def __init__(self) -> None:
        self._booked_until_s = 0.0

    def retry_after_s(self, request_id: str, cost: float, excess: float, rate: float | None, now: float, start_s: float = 0.0) -> float:
        """Whole seconds to wait. `excess`: the work that must be done before there is room; `rate`: work a second, if known. Nothing is done before
        `start_s` seconds from now, when there is a replica, and nobody is told to come back sooner."""
        if rate is None:
            wait_s = start_s or _UNKNOWN_RATE_S
        else:
            start = max(now + start_s + excess / rate, self._booked_until_s)
            self._booked_until_s = min(start + cost / rate, now + MOST_S)
            wait_s = start - now
        return max(jittered_s(request_id, wait_s), float(math.ceil(min(MOST_S, start_s))))


def jittered_s(request_id: str, wait_s: float) -> float:
    """Whole seconds near `wait_s`, different for different requests."""
    jitter = 0.9 + 0.2 * (zlib.crc32(request_id.encode()) / 0xFFFFFFFF)
    return float(math.ceil(min(MOST_S, max(LEAST_S, wait_s * jitter))))
