"""The gateway's settings: where it listens, what it refuses, and how long it waits at every hop."""

import ipaddress
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator, model_validator

from cluster.spec.base import Name, OptionalPath, RelativePath, Seconds, Section
from cluster.spec.engine import ModelName

Origin = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[a-z0-9._~\[\]:-]+)$", max_length=256)]
"""`*`, or a scheme and a host in lower case, and a port where it is not the scheme's own; no path and no slash at the
end."""


class Timeouts(Section):
    """How long each hop of a request may take, in seconds; each has its own error code.

    `queue_wait_s`: in the lane. `connect_s`: to the engine replica. `first_byte_s`: from the request sent to the engine
    until the first body byte of a streamed answer (one that is not streamed is bounded by `total_s` alone: its first
    byte comes after its last token). `between_bytes_s`: between two pieces of the engine's answer. `client_stall_s`: a
    client that does not read what is sent (or send what it announced). `total_s`: the whole request. `keep_alive_s`: an
    idle client connection.
    """

    queue_wait_s: Seconds = 360.0
    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 120.0
    between_bytes_s: Seconds = 60.0
    client_stall_s: Seconds = 30.0
    total_s: Seconds = 600.0
    keep_alive_s: Seconds = 75.0

    @model_validator(mode="after")
    def _total_is_the_largest(self) -> "Timeouts":
        for name in ("connect_s", "between_bytes_s", "client_stall_s"):
            if getattr(self, name) > self.total_s:
                raise ValueError(f"{name} = {getattr(self, name):g}: allowed: at most total_s = {self.total_s:g}")
        return self


class RequestLimits(Section):
    """Limits that are checked before a request is queued: `max_body_bytes` of a body, `max_values` JSON values in it
    (each token id is one), `max_sequences` (prompts x n) in one request, `max_waiting` requests of one model,
    `max_connections` of clients. `min_body_bytes_per_s`: a body may take `timeouts.client_stall_s`, plus one second for
    each so many bytes.

    Of what guides an answer (schemas, regular expressions, grammars, choices, stops, biases; tools may have eight times
    as much): `max_guide_bytes` and `max_guide_values` of a field, and `max_guide_weight` of its expressions, grammars,
    lengths and properties together (about the milliseconds that one core takes to compile them for a vocabulary of
    131,000 tokens). An engine that compiles more stalls, and so does one that writes more than `max_prompt_logprobs`
    log probabilities of a request's prompt (tokens x (`prompt_logprobs` + 1), about 10 microseconds each).
    """

    max_body_bytes: Annotated[int, Field(ge=1_024, le=1 << 30)] = 8 << 20
    min_body_bytes_per_s: Annotated[int, Field(ge=1, le=1 << 30)] = 1_024
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    max_values: Annotated[int, Field(ge=1_024, le=1 << 24)] = 1 << 18
    max_sequences: Annotated[int, Field(ge=1, le=1_000_000)] = 2_048
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_guide_bytes: Annotated[int, Field(ge=64, le=1 << 24)] = 32 << 10
    max_guide_values: Annotated[int, Field(ge=8, le=1 << 20)] = 1_024
    max_guide_weight: Annotated[int, Field(ge=8, le=1 << 30)] = 4_000
    max_prompt_logprobs: Annotated[int, Field(ge=1, le=1 << 30)] = 8_192


class CorsSpec(Section):
    """Which web pages may read the gateway's answers in a browser: those of these `origins`, as the browser writes them
    (`https://chat.example.org`).

    `*` allows any page. It needs tenants, so that pages need a key. A browser caches the permission for `max_age_s`
    (seconds).
    """

    origins: Annotated[tuple[Origin, ...], Field(min_length=1)]
    max_age_s: Seconds = 600.0


MEASURED = {"threshold": 0.959, "wrong": 0.053, "recall": 0.04}
"""Of all-MiniLM-L6-v2: the threshold with at most 1 % wrong answers on one half of the pairs, and what it did on the
other half, with the gate of marks (benchmarks/results/2026-11-semantic.md)."""


class SemanticSpec(Section):
    """Kept answers to first turns that are alike: by the vectors of `model`, which embeds. `threshold`: the lowest
    cosine that counts. Without `serve` it is in shadow: what it would have answered is counted, and nothing given."""

    model: ModelName
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    serve: bool = False

    @model_validator(mode="after")
    def _serves_by_a_threshold(self) -> "SemanticSpec":
        if self.serve and self.threshold is None:
            raise ValueError(
                "serve = true without `threshold`: needed: one that was chosen for this encoder and traffic"
            )
        return self

    @property
    def doubt(self) -> str | None:
        """What speaks against serving with it, as it was measured."""
        if not self.serve:
            return None
        threshold, wrong, recall = MEASURED.values()
        return (
            f"gateway.cache.semantic.serve: with the threshold for at most 1 % wrong answers ({threshold:g}), "
            f"{wrong:.1%} were wrong on other pairs, and {recall:.0%} of what means the same was answered "
            "(docs/caching.md)"
        )


class CacheSpec(Section):
    """Answers that each gateway keeps in its memory, and gives again to a request that means the same
    (`docs/caching.md`): at most `max_bytes` of them, none for longer than `max_age_s`."""

    max_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 256 << 20
    max_age_s: Seconds = 3_600.0
    semantic: SemanticSpec | None = None


class GatewayTls(Section):
    """TLS in the gateway: PEM files of the certificate (with its chain) and of its private key, on each node with a
    gateway, readable by the user that runs Ray. A gateway reads them when it starts."""

    cert: RelativePath
    key: RelativePath


class GatewaySpec(Section):
    """The HTTP front. An address beyond loopback needs `allow_public: true`.

    `trace_file` gets one line for each request, `decision_log` (a folder) every input and decision of the schedulers,
    for replay. `simulator_error` is a file written by `raylane rehearse`, `drift` one of `raylane plan --publish`;
    `/metrics` shows them. Relative paths start from the folder of the spec's file.

    `replicas` gateways share the port on one machine. In a cluster of several nodes there is at most one a node, on the
    nodes of `pool` (None: of any pool). A gateway that stops lets running requests end for `drain_s` (seconds). If
    others take over, it first serves its open connections for `lame_duck_s`, tells each client to reconnect, and waits
    until nothing waits in its lanes.

    Without `tls`, TLS ends at a load balancer in front; with it, clients speak TLS to the gateways themselves.

    Without `cors`, no web page of another origin may read an answer. Without `cache`, no answer is kept.

    Clients' paths are also served below `root_path` (`/llm/v1/models` beside `/v1/models`), for a proxy that forwards
    paths unchanged.

    A waiting streamed request gets its 200 and an SSE comment after `heartbeat_s` (seconds; 0: never), and further
    comments at that interval, until its first token.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65_535)] = 8_000
    allow_public: bool = False
    timeouts: Timeouts = Timeouts()
    limits: RequestLimits = RequestLimits()
    access_log: bool = True
    trace_file: OptionalPath = None
    decision_log: OptionalPath = None
    simulator_error: OptionalPath = None
    drift: OptionalPath = None
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    pool: Name | None = None
    drain_s: Seconds = 10.0
    lame_duck_s: Seconds = 1.0
    heartbeat_s: Annotated[float, Field(ge=0, le=3_600)] = 15.0
    cors: CorsSpec | None = None
    cache: CacheSpec | None = None
    tls: GatewayTls | None = None
    root_path: Annotated[str, Field(pattern=r"^((/[A-Za-z0-9._~-]+)+)?$", max_length=256)] = ""

    @property
    def stop_s(self) -> float:
        """The longest that a gateway may take to stop (seconds). Where there are others, what waits in its lanes gets
        its place first."""
        lane_s = self.timeouts.queue_wait_s if self.replicas > 1 else 0.0
        return lane_s + self.drain_s + self.lame_duck_s + 10

    @field_validator("root_path")
    @classmethod
    def _is_no_path_of_ours(cls, path: str) -> str:
        if path.partition("/")[2].partition("/")[0] in ("v1", "raylane"):
            raise ValueError(f"{path!r}: allowed: a path that does not begin with /v1 or /raylane")
        return path

    @field_validator("host")
    @classmethod
    def _is_an_address(cls, host: str) -> str:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(
                f"{host!r} is not an IP address; allowed: 127.0.0.1, ::1, or with allow_public an address of this "
                "machine"
            ) from None
        return host

    @model_validator(mode="after")
    def _is_loopback_unless_asked(self) -> "GatewaySpec":
        if not ipaddress.ip_address(self.host).is_loopback and not self.allow_public:
            raise ValueError(
                f"host {self.host} is reachable from other machines; allowed: a loopback address, or set allow_public: "
                "true"
            )
        return self
