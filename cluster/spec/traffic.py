"""Who may ask, what is promised to whom, and the lanes in which requests wait: tenants, traffic classes with their
SLOs, lanes."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cluster.spec.base import Name, Seconds, Section

KeyDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
"""The SHA-256 of an API key. `raylane key` makes keys of 256 random bits, which no dictionary holds, so that a slow
hash would protect nothing."""

PerMinute = Annotated[float, Field(gt=0, le=1e12)]


class Tenant(Section):
    """A tenant of the endpoint, known by its `keys`, of which only the digests stand here.

    `classes` are those that it may claim (None: all; the first is what a request without the header gets). `weight` is
    its share of each lane when several tenants wait. The limits hold for each model by itself: `requests_per_minute`
    and `tokens_per_minute` (prompt plus expected output, corrected by the engine's count) let a minute's worth go at
    once, `max_concurrency` counts what waits and what runs.
    """

    name: Name
    keys: Annotated[tuple[KeyDigest, ...], Field(min_length=1)]
    classes: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class TrafficClass(Section):
    """A traffic class and its service-level objective: `attainment` of requests see their first token within `ttft_ms`.

    `patience_s`: a request of the class waits at most so long in its lane, where that is less than
    `gateway.timeouts.queue_wait_s`; and so for a replica to start, while there is none.
    """

    name: Name
    ttft_ms: Annotated[float, Field(gt=0, le=3_600_000)]
    itl_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    attainment: Annotated[float, Field(gt=0, lt=1)] = 0.99
    patience_s: Seconds | None = None


class LaneSpec(Section):
    """The queue of one length class of a model.

    `up_to_tokens` is the largest uncached prompt plus expected output that belongs here (None: no bound). `weight` is
    the lane's share of the work when all lanes wait, `max_wait_s` the wait after which a request is promoted, `cap_s`
    the seconds of work that may wait.
    """

    name: Name
    up_to_tokens: Annotated[int, Field(ge=1)] | None = None
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    max_wait_s: Seconds = 30.0
    cap_s: Seconds = 600.0


class Scheduling(Section):
    """How waiting requests are ordered and placed.

    `order` inside a tenant's queue: `deadline` (by the class's TTFT) or `arrival`. `promoted_share`: the share of the
    work for requests past their lane's `max_wait_s`. `decode_weight`: what an output token costs, in prefill tokens.
    `stickiness_ms`: a cached prefix is left alone when using it would cost so much more expected TTFT than the best
    replica. `bind_ahead`: requests bound to a replica beyond those that it runs, as a share of its max_num_seqs, so
    that a finished one is replaced at the next step and not at the one after. `prefill_steps`: a replica gets the next
    prompt while less than so many steps' worth of tokens (of max_num_batched_tokens) are to be prefilled there. `pick`:
    how a replica is chosen among those that have room (`deployments/scheduling/pick.py`).
    """

    order: Literal["deadline", "arrival"] = "deadline"
    promoted_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    decode_weight: Annotated[float, Field(gt=0, le=1_000)] = 4.0
    stickiness_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 100.0
    bind_ahead: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    prefill_steps: Annotated[float, Field(gt=0, le=100_000)] = 1.0
    pick: Literal["min_ttft"] = "min_ttft"


DEFAULT_CLASSES = (
    TrafficClass(name="interactive", ttft_ms=500),
    TrafficClass(name="completion", ttft_ms=100),
    TrafficClass(name="batch", ttft_ms=30_000),
)
DEFAULT_LANES = (
    LaneSpec(name="short", up_to_tokens=512, weight=8, max_wait_s=15, cap_s=60),
    LaneSpec(name="medium", up_to_tokens=4_096, weight=3, max_wait_s=30, cap_s=120),
    LaneSpec(name="long", weight=1, max_wait_s=60, cap_s=300),
)
