"""W3C Trace Context (level 1, https://www.w3.org/TR/trace-context-1/): the trace that a request belongs to, and whether
it is sampled. Decided as the request arrives, so that the replica and a peer cell follow."""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.spec import Tracing

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x20-\x7e]*)?")
_STATE = re.compile(rb"[\x20-\x7e]{1,512}")
_LOW_BITS = 1 << 64


@dataclass(frozen=True, slots=True)
class TraceContext:
    """`span_id`: the request's own span. `parent_id`: the span of who sent it; 0: the trace begins here."""

    trace_id: int
    span_id: int
    parent_id: int
    sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"

    @property
    def headers(self) -> dict[str, str]:
        """For who gets the request next."""
        own = {"traceparent": self.traceparent}
        return own | {"tracestate": self.state} if self.state else own


def context_of(headers: Iterable[tuple[bytes, bytes]], tracing: Tracing, of_peer: bool) -> TraceContext:
    """By a request's headers. A `traceparent` that is not valid, or not the only one, is as none. A peer cell has
    decided already."""
    given: dict[bytes, list[bytes]] = {b"traceparent": [], b"tracestate": []}
    for name, value in headers:
        if name in given:
            given[name].append(value)
    trace_id, parent_id, flag = _parent(given[b"traceparent"])
    trusted = parent_id > 0 and (of_peer or tracing.trust_clients)
    if not parent_id:
        trace_id = random.getrandbits(128) or 1
    # As OpenTelemetry's TraceIdRatioBased does, so that whoever samples at the same ratio samples the same traces.
    sampled = flag if trusted else trace_id % _LOW_BITS < round(tracing.ratio * _LOW_BITS)
    state = b",".join(given[b"tracestate"]) if trusted else b""
    return TraceContext(
        trace_id,
        random.getrandbits(64) or 1,
        parent_id,
        sampled,
        state.decode() if _STATE.fullmatch(state) else "",
    )


def _parent(values: list[bytes]) -> tuple[int, int, bool]:
    """Trace id, parent id and sampled flag; zeros where they are not valid. Versions above 00 may append fields."""
    found = _PARENT.fullmatch(values[0]) if len(values) == 1 else None
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5] is not None):
        return 0, 0, False
    trace_id, parent_id = int(found[2], 16), int(found[3], 16)
    return (trace_id, parent_id, bool(int(found[4], 16) & 1)) if trace_id and parent_id else (0, 0, False)
