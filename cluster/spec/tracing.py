"""Traces: which requests are sampled, and where their spans go."""

from typing import Annotated

from pydantic import Field

from cluster.spec.base import Section


class Tracing(Section):
    """Gateways and vLLM send the spans of sampled requests to `endpoint` (OTLP over HTTP, with the path: `/v1/traces`),
    which each node must reach.

    `ratio`: the share of traces that is sampled, by trace id. With `trust_clients`, a client that sends a `traceparent`
    decides by its sampled flag instead, and its `tracestate` is passed on.
    """

    endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s@?#]+/[^\s?#]*$", max_length=512)]
    ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    trust_clients: bool = False
