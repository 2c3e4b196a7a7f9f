"""What is promised to whom: traffic classes with their SLOs, and the lanes in which requests wait."""

from typing import Annotated

from pydantic import Field

from cluster.spec.base import Name, Seconds, Section


class TrafficClass(Section):
    """A traffic class and its service-level objective: `attainment` of requests see their first token within `ttft_ms`."""

    name: Name
    ttft_ms: Annotated[float, Field(gt=0, le=3_600_000)]
    itl_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    attainment: Annotated[float, Field(gt=0, lt=1)] = 0.99


class Lane(Section):
    """The queue of one length class of a model.

    `up_to_tokens` is the largest uncached prompt plus expected output that belongs here (None: no bound). `weight` is the lane's share of the work
    when all lanes wait, `max_wait_s` the wait after which a request is promoted, `cap_s` the seconds of work that may wait.
    """

    name: Name
    up_to_tokens: Annotated[int, Field(ge=1)] | None = None
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    max_wait_s: Seconds = 30.0
    cap_s: Seconds = 600.0


DEFAULT_CLASSES = (
    TrafficClass(name="interactive", ttft_ms=500),
    TrafficClass(name="completion", ttft_ms=100),
    TrafficClass(name="batch", ttft_ms=30_000),
)
DEFAULT_LANES = (Lane(name="all"),)
