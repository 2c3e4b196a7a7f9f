"""What outlives an owner of a model, so that the next one can go on.

A lease goes to its engine as a `Booking`, with the request: from what the engines then report, an owner that takes
over rebuilds its scheduler. What is lost is counted by the same bookings. Of queries of death
(`scheduling/suspects.py`) each gateway keeps a copy of what the owner tells, and hands it to its own scheduler when it
becomes the owner.
"""

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from deployments.protocol import Finished, Usage
from deployments.scheduling import Lease, Request, Suspicion
from deployments.scheduling.suspects import MAX
from deployments.wire import Natural, decoder, encode

_MAX_CHARS = 2_048


@dataclass(frozen=True, slots=True)
class Booking:
    """A lease in the words of its submitter, the gateway `gateway_id`."""

    gateway_id: str
    request_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    tenant: str
    prompt_tokens: Natural
    max_tokens: Natural | None
    sequences: Natural
    prefill_tokens: Natural
    kv_tokens: Natural
    output_tokens: Natural
    home: Natural
    digest: str = ""
    guest_of: str = ""

    @property
    def tokens(self) -> int:
        """All tokens that it stands for: what is lost if it is."""
        return (self.prompt_tokens + self.output_tokens) * self.sequences

    def encode(self) -> str:
        """As text for a header."""
        return b64encode(encode(self)).decode()

    def lease(self, replica_id: str, now: float) -> Lease:
        """The lease, for a new owner's scheduler; what only mattered while it waited is left out."""
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
            guest_of=self.guest_of,
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
    """What an engine keeps of a lease."""
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
        request.guest_of,
    )


_read = decoder(Booking)


def read_booking(text: str) -> Booking:
    """The booking in a header. Raises ValueError when it is none."""
    if len(text) > _MAX_CHARS:
        raise ValueError(f"{len(text)} characters; allowed: {_MAX_CHARS}")
    return _read(b64decode(text, validate=True))


@dataclass(frozen=True, slots=True)
class Running:
    """A lease that a replica says to run. `started`: its answer has begun."""

    lease: Lease
    started: bool


def peer_usage_of(told: Usage, lease: Lease) -> Usage:
    """What a request took by a peer cell's word: no more than it can have taken. What was cached there says nothing of
    the replicas here."""
    request = lease.request
    prompts = max(request.prompt_tokens, request.max_prompt_tokens) * request.sequences
    output = (lease.output_tokens if request.max_tokens is None else request.max_tokens) * request.sequences
    sequences = request.sequences if told.sequences else 0
    return Usage(min(told.prompt_tokens, prompts), 0, min(told.output_tokens, output), 0, sequences)


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
        if message.usage.sequences or not message.booking:
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


class KnownSuspicions:
    """A gateway's copy of what the owner knows of queries of death, on its own clock; the newest `MAX`."""

    def __init__(self) -> None:
        self._by_key: dict[str, Suspicion] = {}

    def take(self, reported: Iterable[Suspicion]) -> None:
        """The owner's word. One without deaths is clear again."""
        for one in reported:
            self._by_key.pop(one.key, None)
            if one.deaths:
                self._by_key[one.key] = one
            if len(self._by_key) > MAX:
                del self._by_key[next(iter(self._by_key))]

    def all(self) -> tuple[Suspicion, ...]:
        """The oldest first; what should be forgotten by now may be among them."""
        return tuple(self._by_key.values())
