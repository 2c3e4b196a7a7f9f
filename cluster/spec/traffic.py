"""Tenants, traffic classes with their SLOs, and the lanes in which requests wait."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from cluster.spec.base import Name, Seconds, Section, no_truth_values

KeyDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
"""The SHA-256 of an API key. `raylane key` makes keys of 256 random bits, which no dictionary holds, so that a slow
hash would protect nothing."""

PerMinute = Annotated[float, Field(gt=0, le=1e12)]


RungName = Literal["clamp", "fallback", "shed"]


class RungSpec(Section):
    """One rung of the ladder (`docs/pressure.md`), for these `classes` one after another. `clamp` lowers `max_tokens`
    to the number given; `fallback` sends requests to the model's fallback; `shed` rejects them."""

    rung: RungName
    classes: Annotated[tuple[Name, ...], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _has_its_number(self) -> "RungSpec":
        if (self.max_tokens is None) == (self.rung == "clamp"):
            raise ValueError(f"max_tokens = {self.max_tokens}: allowed: a number for `clamp`, and none for other rungs")
        return self


class Tenant(Section):
    """A tenant of the endpoint. It is known by its `keys`; the spec holds only their digests.

    `classes`: those that it may claim (None: all); the first is the default for requests without the header. `weight`:
    its share of the work when several tenants wait, in whatever lanes. Limits apply to each model separately.
    `requests_per_minute` and `tokens_per_minute` (prompt plus expected output, corrected by the engine's count) allow
    one minute's worth at once.
    `max_concurrency` counts requests that wait or run.

    `residency`: the only regions that may serve it (None: all). `peers`: the regions whose capacity it may use if its
    requests arrive elsewhere (None: all; empty: none). `owner`: who answers for it, a label of metrics. `spare`: the
    rungs that never touch it.
    """

    name: Name
    keys: Annotated[tuple[KeyDigest, ...], Field(min_length=1)]
    classes: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    residency: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    peers: tuple[Name, ...] | None = None
    spare: tuple[RungName, ...] = ()
    owner: Name | None = None


class TrafficClass(Section):
    """A traffic class and its SLO: a share of `attainment` of its requests gets the first token within `ttft_ms`, and
    the others on average within `itl_ms` of one another.

    `patience_s`: the longest wait of a request in its lane, if that is less than `gateway.timeouts.queue_wait_s`. It
    also limits the wait for a replica to start. `context`: a conversation that is longer than the model's context is
    rejected, or loses its oldest turns (`deployments/openai/turns.py`). `residency`: the only regions that may serve it
    (None: all). `prefers`: which of the cells that hold the SLO serves it, the fastest or the cheapest one.
    """

    name: Name
    ttft_ms: Annotated[float, Field(gt=0, le=3_600_000)]
    itl_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    attainment: Annotated[float, Field(gt=0, lt=1)] = 0.99
    patience_s: Seconds | None = None
    context: Literal["reject", "drop_turns"] = "reject"
    residency: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    prefers: Literal["speed", "price"] = "speed"


@dataclass(frozen=True, slots=True)
class LanePolicy:
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
    _no_truth_values = no_truth_values


class Scheduling(Section):
    """How waiting requests are ordered and placed.

    `order` inside a tenant's queue: `shortest` (the least work first, and the longer one waits, the sooner) or
    `arrival`. `promoted_share`: the share of the work for requests past their lane's `max_wait_s`. `decode_weight`: the
    cost of an output token, in prefill tokens. `stickiness_ms`: a replica with the prompt's prefix in its cache is
    not used if its expected TTFT is longer than the best one's by more than this. `bind_ahead`: requests that are
    bound to a replica beyond those that it runs, as a share of its max_num_seqs; a finished request is then
    replaced one step earlier. `prefill_steps`: a replica gets the next prompt if its tokens to prefill are fewer
    than so many steps can process (max_num_batched_tokens each). `pick`: how a replica is chosen among those that
    have room (`deployments/scheduling/pick.py`).
    """

    order: Literal["shortest", "arrival"] = "shortest"
    promoted_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
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
    LanePolicy(name="short", up_to_tokens=384, weight=16.0, max_wait_s=60.0, cap_s=60.0),
    LanePolicy(name="medium", up_to_tokens=1_536, weight=8.0, max_wait_s=120.0, cap_s=120.0),
    LanePolicy(name="long", weight=1.0, max_wait_s=240.0, cap_s=300.0),
)
