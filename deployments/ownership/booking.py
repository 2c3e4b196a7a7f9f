"""What an engine is told of a lease with its request, so that an owner that takes over can rebuild its books from what
the engines report.

Also what is counted as lost, by the same account. Pure.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from deployments.protocol import Finished
from deployments.scheduling import Lease, Request, Usage

_MAX_CHARS = 2_048


@dataclass(frozen=True, slots=True)
class Booking:
    """A lease in the words of its submitter, the gateway `gateway_id`."""

    gateway_id: str
    request_id: str
    attempt: int
    tenant: str
    prompt_tokens: int
    max_tokens: int | None
    sequences: int
    prefill_tokens: int
    kv_tokens: int
    output_tokens: int
    home: int
    digest: str = ""

    @property
    def tokens(self) -> int:
        """All tokens that it stands for: what is lost if it is."""
        return (self.prompt_tokens + self.output_tokens) * self.sequences

    def encode(self) -> str:
        """One line of ASCII, for a header."""
        return json.dumps([getattr(self, name) for name in self.__slots__], separators=(",", ":"))

    def lease(self, replica_id: str, now: float) -> Lease:
        """The lease, for a new owner's books; what only mattered while it waited is left out."""
        request = Request(
            self.request_id,
            self.prompt_tokens,
            self.max_tokens,
            now,
            now,
            now,
            self.sequences,
            tenant=self.tenant,
            digest=self.digest,
        )
        return Lease(
            0,
            request,
            replica_id,
            now,
            self.attempt,
            self.prefill_tokens,
            self.kv_tokens,
            self.output_tokens,
            self.home,
        )


def booking_of(lease: Lease, gateway_id: str) -> Booking:
    """What is told of a lease."""
    request = lease.request
    return Booking(
        gateway_id,
        request.request_id,
        lease.attempt,
        request.tenant,
        request.prompt_tokens,
        request.max_tokens,
        request.sequences,
        lease.prefill_tokens,
        lease.kv_tokens,
        lease.output_tokens,
        lease.home,
        request.digest,
    )


def read_booking(text: str) -> Booking:
    """The booking in a header. Raises ValueError when it is none."""
    try:
        if len(text) > _MAX_CHARS:
            raise ValueError(f"{len(text)} characters; allowed: {_MAX_CHARS}")
        fields = json.loads(text)
        booking = Booking(*fields)
    except TypeError as error:
        raise ValueError(f"not a booking: {text[:200]!r}") from error
    names = (booking.gateway_id, booking.request_id, booking.tenant, booking.digest)
    sizes = (
        booking.prompt_tokens,
        booking.sequences,
        booking.prefill_tokens,
        booking.kv_tokens,
        booking.output_tokens,
        booking.home,
    )
    whole = all(type(size) is int and size >= 0 for size in (booking.attempt, *sizes))
    if not whole or booking.attempt == 0 or not all(type(name) is str for name in names):
        raise ValueError(f"not a booking: {text[:200]!r}")
    return booking


@dataclass(frozen=True, slots=True)
class Running:
    """A lease that a replica says to run. `started`: its answer has begun."""

    lease: Lease
    started: bool


def usage_of(done: Finished) -> Usage:
    """What an engine's account says that a request took."""
    return Usage(
        done.prompt_tokens,
        done.cached_tokens,
        done.output_tokens,
        done.preemptions,
        done.sequences,
        done.prefill_s,
        done.decode_s,
    )


_REMEMBER_S = 30.0
_MAX = 10_000


class Losses:
    """The work that is lost when a gateway dies: its clients are gone, so its engines drop what they ran for it.
    `requests` and `tokens` (booked) of one model, as one gateway sees them, grow only.

    A replica tells every gateway of a request that it dropped, with its booking, which names the gateway that held it.
    Whether that one is dead is known only a moment later, so what was dropped is remembered for as long as a death may
    take to be noticed.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self._dead: frozenset[str] = frozenset()
        self._dropped: deque[tuple[float, Booking]] = deque(maxlen=_MAX)

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
