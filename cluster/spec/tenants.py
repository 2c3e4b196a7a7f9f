"""Who may ask: tenants with their API keys, and what each may use."""

from typing import Annotated

from pydantic import Field, StringConstraints

from cluster.spec.base import Name, Section

KeyDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
"""The SHA-256 of an API key. `raylane key` makes keys of 256 random bits, which no dictionary holds, so that a slow hash would protect nothing."""

PerMinute = Annotated[float, Field(gt=0, le=1e12)]


class Tenant(Section):
    """A tenant of the endpoint, known by its `keys`, of which only the digests stand here.

    `classes` are those that it may claim (None: all; the first is what a request without the header gets). `weight` is its share of each lane when
    several tenants wait. The limits hold for each model by itself: `requests_per_minute` and `tokens_per_minute` (prompt plus expected output,
    corrected by the engine's count) let a minute's worth go at once, `max_concurrency` counts what waits and what runs.
    """

    name: Name
    keys: Annotated[tuple[KeyDigest, ...], Field(min_length=1)]
    classes: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
