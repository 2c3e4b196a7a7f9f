"""The ledger: where one request's wall time went, as stages that add up.

The gateway notes moments on its own clock; the engine replica sends durations on its own (protocol.Finished). No two
clocks are compared:

    gateway     until the request is in its lane (upload, parsing, validation), and after the engine's part: the last
                write, or telling of an error
    lane        waiting for a replica
    hop         at a peer cell: from the offer to the first byte, less what the peer's replica itself saw (so the way
                there and back, the peer's gateway and lane); and peers that were lost
    connect     the wait for the first byte, less what the replica itself saw: network, both event loops; and refusals
    engine_http what the replica spent outside its engine core before the first byte: tokenising, HTTP
    engine_queue, prefill   as the engine core measured them
    engine      connect to prefill (not streamed: to decode) as one, where the replica gave no statistics or no byte
    decode      from the first byte to the last, less client_stall
    client_stall    waiting for the client to read

A request that ends early adds up likewise: the stage that was running gets what it took so far. Each stage begins at
the moment at which the one before it ends, so that a process that is not scheduled for a while loses no time between
two readings of the clock. `unaccounted_s` is the wall time less their sum: it would show what was counted twice.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from deployments.protocol import Finished, Usage
from deployments.scheduling.reasons import Rung
from deployments.telemetry.trace_context import TraceContext
from deployments.telemetry.verdicts import RequestVerdict


@dataclass(frozen=True, slots=True)
class RequestDecision:
    """`at_s` after the request's arrival. `reason` is the value of one of the closed enums; `facts` are the numbers
    that it rests on."""

    at_s: float
    verdict: RequestVerdict
    reason: str
    facts: dict[str, object] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        return {"at_s": round(self.at_s, 6), "verdict": self.verdict.value, "reason": self.reason, **self.facts}


@dataclass(frozen=True, slots=True)
class Degradation:
    """A way in which a request got less than it asked for of `model`: the `rung` of docs/pressure.md, and the `reason`,
    a value of a closed enum. `detail`: what its client is told beside."""

    rung: Rung
    model: str
    reason: str
    detail: str = ""

    @property
    def said(self) -> str:
        """What its client is told."""
        return "; ".join(filter(None, (self.rung.value, self.detail, f"reason={self.reason}")))


EXTERNAL = "external"
"""The pick of a request that the external tier got (`gateway/external.py`)."""


class Stage(StrEnum):
    """The stages, in the order in which they pass."""

    GATEWAY = "gateway"
    LANE = "lane"
    HOP = "hop"
    CONNECT = "connect"
    ENGINE_HTTP = "engine_http"
    ENGINE_QUEUE = "engine_queue"
    PREFILL = "prefill"
    ENGINE = "engine"
    DECODE = "decode"
    CLIENT_STALL = "client_stall"


_STAGES = tuple(Stage)


class RequestOutcome(StrEnum):
    """How a request ended, as its client (or its absence) saw it."""

    OK = "ok"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True)
class Ledger:
    """One request's account. Times are the gateway's monotonic seconds; those not reached are None."""

    request_id: str
    attempt_id: str
    path: str
    arrived_s: float
    arrived_unix_s: float
    gateway: str = ""
    cell: str = ""
    """This cell, where it has peers. `home`: the peer where it arrived. `peer`: the one that has it, or served it."""
    home: str = ""
    peer: str | None = None
    model: str = ""
    tenant: str = ""
    traffic_class: str = ""
    stream: bool = False
    status: int = 0
    outcome: RequestOutcome = RequestOutcome.FAILED
    error: str | None = None
    replica_id: str | None = None
    pick: str | None = None
    lane: str | None = None
    promoted: bool = False
    eta_s: tuple[float, float] | None = None
    attempts: int = 0
    resubmitted: str | None = None
    """Why it was placed again though a replica had worked on it."""
    degraded: tuple[Degradation, ...] = ()
    digest: str = ""
    """Of its body, keyed (`gateway/connection.py`): the same for a client's retry."""
    prompt_chars: int = 0
    expected_prompt_tokens: int = 0
    max_tokens: int | None = None
    submitted_s: float | None = None
    waits_since_s: float | None = None
    lane_left_s: float | None = None
    placed_s: float | None = None
    first_token_s: float | None = None
    """When the replica's word came that the first token of each sequence is there; None where it did not come."""
    first_byte_s: float | None = None
    last_byte_s: float | None = None
    """When the engine's part was over: its last byte, or the moment at which it was given up."""
    ended_s: float | None = None
    lane_s: float = 0.0
    client_stall_s: float = 0.0
    last_stall_s: float = 0.0
    """...of it, after `last_byte_s`."""
    engine_wait_s: float = 0.0
    refused_s: float = 0.0
    hop_s: float = 0.0
    read_s: float = 0.0
    """CPU time that reading the body and estimating its tokens took."""
    client_rtt_s: float | None = None
    """The round trip to the client when the request ended, as the kernel measured it; no stage."""
    bytes_out: int = 0
    pieces: int = 0
    itl: list[float] = field(default_factory=list)
    finished: Finished | None = None
    decisions: list[RequestDecision] = field(default_factory=list)
    trace: TraceContext | None = None
    """Where the spec has `tracing`."""
    on_closed: Callable[[], None] | None = None
    """Called when it is complete."""

    @property
    def usage(self) -> Usage | None:
        """What it took, by its engine's account; None where that did not come."""
        return None if self.finished is None else self.finished.usage

    @property
    def region(self) -> str:
        """The cell that serves it; empty where this one has no peers."""
        return self.peer or self.cell

    def decide(self, verdict: RequestVerdict, reason: str, now: float, **facts: object) -> None:
        self.decisions.append(RequestDecision(now - self.arrived_s, verdict, reason, facts))

    def submitted(self, now: float) -> None:
        self.submitted_s = self.waits_since_s = now

    def left_lane(self, now: float, *, placed: bool) -> None:
        """Its wait is over: it was placed on a replica, or given up."""
        if self.waits_since_s is not None:
            self.lane_s += now - self.waits_since_s
        self.lane_left_s, self.waits_since_s = now, None
        self.placed_s = now if placed else None

    def waits_again(self, now: float) -> None:
        """It was rejected, and is submitted again."""
        self.left_lane(now, placed=False)
        self.refused(now)

    def refused(self, now: float) -> None:
        """The replica took no work, or the peer was lost: the request waits again."""
        waited_s = 0.0 if self.placed_s is None else now - self.placed_s
        self.refused_s += waited_s if self.peer is None else 0.0
        self.hop_s += 0.0 if self.peer is None else waited_s
        self.waits_since_s = now
        self.placed_s = self.first_token_s = self.last_byte_s = None
        self.replica_id = self.pick = self.peer = self.finished = None

    @property
    def wall_s(self) -> float:
        """From the request's first byte at the gateway to the end of its answer."""
        return (self.ended_s or self.arrived_s) - self.arrived_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: until the first byte of the engine's answer was at the gateway.

        Of an answer that is not streamed the replica tells of it. Where that word did not come, the decode time, by the
        engine's account, is taken off; without that it is unknown.
        """
        if self.first_byte_s is None or self.placed_s is None:
            return None
        if self.stream:
            return self.first_byte_s - self.arrived_s
        if self.first_token_s is not None:
            return min(self.first_token_s, self.first_byte_s) - self.arrived_s
        done = self.usage
        if done is None or done.sequences < 1:
            return None
        return self.first_byte_s - self.arrived_s - min(done.decode_s, self.first_byte_s - self.placed_s)

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, by the engine's own count of tokens."""
        done = self.usage
        if done is None or self.first_byte_s is None or self.last_byte_s is None or done.sequences < 1:
            return None
        after_first = done.output_tokens / done.sequences - 1
        return (self.last_byte_s - self.first_byte_s) / after_first if after_first >= 1 and self.stream else None

    def stages(self) -> dict[Stage, float]:
        """Seconds by stage, in the order in which they pass; stages that did not happen are absent."""
        found = self._stages()
        return {stage: found[stage] for stage in _STAGES if stage in found}

    def _stages(self) -> dict[Stage, float]:
        ended = self.ended_s or self.arrived_s
        if self.submitted_s is None:
            return {Stage.GATEWAY: ended - self.arrived_s}
        stages = {Stage.GATEWAY: self.submitted_s - self.arrived_s, Stage.LANE: self.lane_s}
        stages |= {Stage.CONNECT: self.refused_s} if self.refused_s else {}
        stages |= {Stage.HOP: self.hop_s} if self.hop_s else {}
        if self.placed_s is None:
            stages[Stage.GATEWAY] += ended - (self.submitted_s if self.lane_left_s is None else self.lane_left_s)
            return stages
        last = ended if self.last_byte_s is None else self.last_byte_s
        stages[Stage.GATEWAY] += ended - last - self.last_stall_s
        if self.first_byte_s is None:
            stage = Stage.ENGINE if self.peer is None else Stage.HOP
            return stages | {stage: stages.get(stage, 0.0) + last - self.placed_s}
        for stage, seconds in self._first_byte_stages(self.first_byte_s - self.placed_s):
            stages[stage] = stages.get(stage, 0.0) + seconds
        stages[Stage.DECODE] = stages.get(Stage.DECODE, 0.0) + self.engine_wait_s
        stages[Stage.CLIENT_STALL] = self.client_stall_s + self.last_stall_s
        return stages

    @property
    def unaccounted_s(self) -> float:
        """Wall time that no stage explains (negative: counted twice)."""
        return self.wall_s - sum(self.stages().values())

    def server_timing(self) -> str:
        """The `Server-Timing` header, with what is known when the answer starts (milliseconds)."""
        known = [
            f"{Stage.GATEWAY};dur={((self.submitted_s or self.arrived_s) - self.arrived_s) * 1e3:.2f}",
            f"{Stage.LANE};dur={self.lane_s * 1e3:.2f}",
        ]
        if self.placed_s is not None and self.first_byte_s is not None:
            first = self.first_byte_s
            if not self.stream and self.first_token_s is not None:
                first = min(first, self.first_token_s)
            waited_for = Stage.ENGINE if self.peer is None else Stage.HOP
            known.append(f"{waited_for};dur={(first - self.placed_s) * 1e3:.2f}")
            if first < self.first_byte_s:
                known.append(f"{Stage.DECODE};dur={(self.first_byte_s - first) * 1e3:.2f}")
        return ", ".join(known)

    def record(self) -> dict[str, object]:
        """The line of the trace file: sizes, times and the outcome; no text of the prompt or the answer."""
        done = self.usage
        return {
            "schema": 1,
            **self.access_record(),
            "attempt_id": self.attempt_id,
            "trace_id": None if self.trace is None else f"{self.trace.trace_id:032x}",
            "gateway": self.gateway,
            "region": self.region or None,
            "home": self.home or None,
            "tenant": self.tenant,
            "class": self.traffic_class,
            "pick": self.pick,
            "lane": self.lane,
            "promoted": self.promoted,
            "eta_s": None if self.eta_s is None else [_rounded(eta) for eta in self.eta_s],
            "attempts": self.attempts,
            "resubmitted": self.resubmitted,
            "read_s": _rounded(self.read_s),
            "prompt_chars": self.prompt_chars,
            "expected_prompt_tokens": self.expected_prompt_tokens,
            "max_tokens": self.max_tokens,
            "cached_tokens": done.cached_tokens if done else None,
            "sequences": done.sequences if done else None,
            "preemptions": done.preemptions if done else None,
            "tpot_s": _rounded(self.tpot_s),
            "stages_s": {stage.value: _rounded(seconds) for stage, seconds in self.stages().items()},
            "unaccounted_s": _rounded(self.unaccounted_s),
            "client_rtt_s": _rounded(self.client_rtt_s),
            "decisions": [decision.record() for decision in self.decisions],
        }

    def access_record(self) -> dict[str, object]:
        """The line of the access log: a part of `record`."""
        done = self.usage
        return {
            "request_id": self.request_id,
            "arrived_s": self.arrived_unix_s,
            "path": self.path,
            "model": self.model,
            "stream": self.stream,
            "status": self.status,
            "outcome": self.outcome.value,
            "error": self.error,
            "replica": self.replica_id,
            "digest": self.digest,
            "prompt_tokens": done.prompt_tokens if done else None,
            "output_tokens": done.output_tokens if done else None,
            "bytes_out": self.bytes_out,
            "ttft_s": _rounded(self.ttft_s),
            "wall_s": _rounded(self.wall_s),
        }

    def _first_byte_stages(self, wait_s: float) -> Iterator[tuple[Stage, float]]:
        """Splits the wait for the first byte. Without streaming it comes with the last token, and decode is a part.

        Of several sequences the engine's durations are those of the last one, which may have run beyond the first byte:
        none is taken for longer than what is left of the wait.
        """
        finished, done = self.finished, self.usage
        if finished is None or done is None or finished.first_byte_s is None or done.sequences < 1:
            yield Stage.ENGINE if self.peer is None else Stage.HOP, wait_s
            return
        left = min(wait_s, finished.first_byte_s)
        yield Stage.CONNECT if self.peer is None else Stage.HOP, wait_s - left
        for stage, seconds in (
            (Stage.DECODE, 0.0 if self.stream else done.decode_s),
            (Stage.PREFILL, done.prefill_s),
            (Stage.ENGINE_QUEUE, done.queued_s),
        ):
            taken = min(left, seconds)
            left -= taken
            yield stage, taken
        yield Stage.ENGINE_HTTP, left


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds, 6)
