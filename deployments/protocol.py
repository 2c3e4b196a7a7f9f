"""What a gateway and an engine replica say to each other over HTTP, beside the OpenAI requests themselves.

Every request to a replica carries `Authorization: Bearer <the cluster's secret>`. The gateway keeps one `GET FEED_PATH`
open to each replica: the replica answers with messages (`deployments/wire.py`), each a `Hello`, `Load`, `FirstTokens`,
`Finished` or `Failed`, for as long as it lives; the end of that stream is how a gateway learns, within milliseconds,
that a replica's process is gone. Durations are seconds, measured on the replica's own monotonic clock; no absolute time
crosses the wire.
"""

from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Literal

from cluster.group_key import DEFAULT_GROUP
from deployments.wire import FramedMessages, Wire, framed

REQUEST_ID_HEADER = "x-request-id"
"""Carries the gateway's own id of the request (never a client's): unique, so that the engine's statistics can be joined
by it."""

PRIORITY_HEADER = "x-raylane-priority"
"""The index of the request's lane by length. A back-stop: where the engine itself must queue or preempt, short requests
come first."""

EPOCH_HEADER = "x-raylane-epoch"
"""The epoch of the owner that gave the lease. A replica refuses an epoch lower than the highest that it has seen."""
BOOKING_HEADER = "x-raylane-booking"
"""What the lease is booked with, in the gateway's own words, for a replica to tell an owner that takes over."""

SIMULATED_HEADER = "x-raylane-simulated"
"""`true` on every answer of a simulated engine; the gateway hands it on to the client."""

FEED_PATH = "/raylane/feed"
FEED_VERSION = 2
DRAIN_PATH = "/raylane/drain"
"""POST, with `{"reason": ...}` (`DrainReason`) or nothing, which is an operator's: the replica takes no new work from
now on."""
CLAIM_PATH = "/raylane/claim"
"""POST `{"epoch": n}`: a new owner makes itself known, and gets what runs: `{"epoch": n, "running":
[{"request_id": ..., "booking": ..., "started": ...}]}`; `started`: its answer has begun."""
DRAINING_CODE = "draining"
"""The `error.code` of the 503 with which a draining replica refuses a request before any work."""
UNHEALTHY_CODE = "unhealthy"
"""...and with which a replica does whose engine is dead or stuck. After either, the request may be placed elsewhere."""

ENGINE_DIED_HEADER = "x-raylane-engine-died"
"""`true` on an error answer, or a stream that begins with an error, given while the engine is dead or stuck: it is not
the request's fault."""

ERROR_EVENT = b'data: {"error":'
"""How vLLM's event begins that tells of an error in a stream; a token's text cannot, since its quotation marks are
escaped."""
NAMED_ERROR_EVENT = b"event: error\n"
"""...and where events have names."""
ERROR_EVENTS = (ERROR_EVENT, NAMED_ERROR_EVENT)

ENGINE_DIED_CODE = "engine_died"
"""The `error.code` of the error event that a replica puts into a stream in place of vLLM's, once its engine is dead or
stuck."""

STALE_EPOCH_CODE = "stale_epoch"
"""The `error.code` of the 409 for an epoch that was overtaken; `error.highest` is the highest. Nothing was done."""
DUPLICATE_CODE = "duplicate_request_id"
"""...and of the 409 for a request id that this replica is serving now."""

LOAD_INTERVAL_S = 0.05
"""A replica sends `Load` when it changed, at most this often."""
HEARTBEAT_S = 0.5
"""...and at least this often, so that an unresponsive feed means a stopped process."""


class ReplicaState(StrEnum):
    """Where a replica stands in its life."""

    READY = "ready"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


class DrainReason(StrEnum):
    """Why a replica drains. `STOP`: Serve stops it. `SPOT_NOTICE`: its node is to be taken away, and it has two minutes
    at best."""

    STOP = "stop"
    OPERATOR = "operator"
    SPOT_NOTICE = "spot_notice"


class EngineFault(StrEnum):
    """Why a replica is unhealthy: its engine's process is gone, or owes a step for too long."""

    DEAD = "dead"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What does not change while a replica lives: who it is, of which group of its model, where it listens, and what
    its engine can hold (in tokens and sequences). `zone`: that of its node's label, where it has one. `version`:
    another where its weights or its settings are others, so that an answer may be; empty where that is not known."""

    replica_id: str
    model: str
    url: str
    pid: int
    node_id: str
    task: Literal["generate", "embed"]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    group: str = DEFAULT_GROUP
    zone: str = ""
    version: str = ""

    @property
    def group_key(self) -> str:
        """As `Model.group_key`."""
        return self.model if self.group == DEFAULT_GROUP else f"{self.model}@{self.group}"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a feed. A gateway takes no other version of it than its own."""

    facts: ReplicaFacts
    state: ReplicaState
    version: int = FEED_VERSION


@dataclass(frozen=True, slots=True)
class Load:
    """What runs in the engine: sequences running and waiting inside it, HTTP exchanges open, the share of KV blocks in
    use (0 to 1); why the replica drains, if it does; and why it is unhealthy, if it is. The last `Load` before a feed's
    end tells why a replica ended by itself."""

    state: ReplicaState
    running: int
    waiting: int
    exchanges: int
    kv_usage: float
    drains_for: DrainReason | None = None


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first tokens of these requests are there: all prompts of each are prefilled, for all its sequences. One
    message for a step of the engine.

    Only of answers that are not streamed: their first byte comes after their last token, so that no byte tells of this.
    """

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took by the engine's own statistics, over all its sequences (prompts x n): 0 where the engine gave
    none (an aborted or refused request). Durations, in seconds of the engine's clock, are those of the sequence that
    ended last."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    sequences: int = 1
    prefill_s: float = 0.0
    decode_s: float = 0.0
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one HTTP exchange. `first_byte_s` and `wall_s` run from the replica receiving the request to its first
    body byte and to its end. Without statistics `booking` is what the request was booked with."""

    request_id: str
    status: int
    usage: Usage
    first_byte_s: float | None
    wall_s: float
    booking: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether all its numbers can be: a peer cell's word is checked like a client's."""
        values = (self.status, self.first_byte_s or 0.0, self.wall_s, *astuple(self.usage))
        return all(0 <= value < 1 << 40 for value in values)


@dataclass(frozen=True, slots=True)
class Failed:
    """The replica's engine is gone, and the replica ends by itself as soon as its clients have the error. `detail`: how
    the engine's process ended, or its own last error."""

    fault: EngineFault
    detail: str


Message = Hello | Load | FirstTokens | Finished | Failed


_WIRE: Wire[Message] = Wire(Hello, Load, FirstTokens, Finished, Failed)


def encode(message: Message) -> bytes:
    """The message as a feed carries it."""
    return framed(_WIRE.encode(message))


def feed_reader() -> FramedMessages[Message]:
    """Reads one connection of a feed."""
    return FramedMessages(_WIRE)
