"""What a server allows its clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """A body must have come `body_s` seconds after its head, and a second later for each `body_bytes_per_s` bytes of
    it. `connections`: so many at once; one more is refused."""

    body_s: float = 30.0
    body_bytes_per_s: int = 1_024
    connections: int = 1_000_000
