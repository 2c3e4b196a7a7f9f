"""A flow: one request while the gateway holds it. Who is waited for, until when, and why it must end early.

Every wait is for somebody (`Awaited`) and has a deadline; one sweep over all flows enforces the deadlines, four times a
second, so that a streamed token costs no timer. Whoever must end a flow early (the sweep, the client's disconnect, a
lost replica) calls `abort` with the cause, which cancels the flow's task; `guard` turns that cancellation into
`Aborted`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from functools import cache

from cluster.spec import Timeouts
from deployments.openai.errors import ApiError, ErrorCode, lost
from deployments.telemetry.ledger import Ledger

SWEEP_S = 0.25
Beat = Callable[[float], None]


class Awaited(StrEnum):
    """Whom a flow waits for."""

    UPLOAD = "upload"
    LANE = "lane"
    FIRST_BYTE = "first_byte"
    WHOLE_ANSWER = "whole_answer"
    BETWEEN_BYTES = "between_bytes"
    PEER = "peer"
    """A peer cell that has the request, for its answer to begin."""
    CLIENT = "client"


class EndCause(StrEnum):
    """Why a flow ends early."""

    DEADLINE = "deadline"
    TOTAL = "total"
    CLIENT_GONE = "client_gone"
    REPLICA_LOST = "replica_lost"
    SHUTDOWN = "shutdown"


class Aborted(Exception):
    """The flow was ended early. `error` is for its client; None: there is no client any more."""

    def __init__(self, cause: EndCause, error: ApiError | None) -> None:
        super().__init__(cause.value)
        self.cause = cause
        self.error = error


class RequestFlow:
    """One request in the gateway, from its first byte to the end of its answer. It waits for `awaited`,
    until `deadline_s`."""

    def __init__(self, ledger: Ledger, timeouts: Timeouts) -> None:
        self.ledger = ledger
        self._timeouts = timeouts
        self.limits_s = _limits_s(timeouts)
        """Seconds that it may wait for each."""
        self._total_s = ledger.arrived_s + timeouts.total_s
        self.awaited = Awaited.UPLOAD
        self.deadline_s = ledger.arrived_s + timeouts.client_stall_s
        self.cause: EndCause | None = None
        self._task: asyncio.Task[object] | None = None
        self.beat: Beat | None = None
        """Called with the time at each sweep while the flow waits for a place or for its first byte."""

    def wait_for(self, awaited: Awaited, now: float, at_most_until_s: float = math.inf) -> None:
        """From `now` on the flow waits for `awaited`; no longer than `at_most_until_s`."""
        self.awaited = awaited
        self.deadline_s = min(now + self.limits_s[awaited], at_most_until_s)

    def expire(self, now: float) -> None:
        """Ends the flow if a deadline has passed; else lets a heartbeat out where one is due."""
        if now > self._total_s:
            self.abort(EndCause.TOTAL)
        elif now > self.deadline_s:
            self.abort(EndCause.DEADLINE)
        elif self.beat is not None and self.awaited in (Awaited.LANE, Awaited.FIRST_BYTE, Awaited.PEER):
            self.beat(now)

    def abort(self, cause: EndCause) -> None:
        """Ends the flow early. The first cause counts."""
        if self.cause is None and self._task is not None:
            self.cause = cause
            self._task.cancel()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Runs a part of the flow. Raises Aborted where `abort` cancelled it; a cancellation from elsewhere passes."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        try:
            yield
        except asyncio.CancelledError:
            if self.cause is None:
                raise
            task.uncancel()
            raise Aborted(self.cause, self._error(self.cause)) from None
        finally:
            self._task = None

    def _error(self, cause: EndCause) -> ApiError | None:
        times = self._timeouts
        match cause:
            case EndCause.CLIENT_GONE:
                return None
            case EndCause.TOTAL:
                return ApiError(ErrorCode.TOTAL_TIMEOUT, f"the request took longer than total_s = {times.total_s:g} s")
            case EndCause.REPLICA_LOST:
                return lost()
            case EndCause.SHUTDOWN:
                return ApiError(
                    ErrorCode.DRAINING, "the gateway stops and its drain time is over; the request may be sent again"
                )
            case EndCause.DEADLINE:
                return self._deadline_error()

    def _deadline_error(self) -> ApiError | None:
        times = self._timeouts
        match self.awaited:
            case Awaited.UPLOAD:
                stall_s = times.client_stall_s
                reported = (
                    f"the body came too slowly: nothing for client_stall_s = {stall_s:g} s, or after these less than "
                    "limits.min_body_bytes_per_s"
                )
                return ApiError(ErrorCode.CLIENT_TOO_SLOW, reported, headers={"connection": "close"})
            case Awaited.FIRST_BYTE:
                return ApiError(
                    ErrorCode.FIRST_BYTE_TIMEOUT,
                    f"the replica did not answer within first_byte_s = {times.first_byte_s:g} s",
                )
            case Awaited.BETWEEN_BYTES:
                return ApiError(
                    ErrorCode.BETWEEN_BYTES_TIMEOUT,
                    f"the replica was unresponsive for between_bytes_s = {times.between_bytes_s:g} s",
                )
            case _:
                return None  # a client that stopped reading gets no error


@cache
def _limits_s(times: Timeouts) -> dict[Awaited, float]:
    """How long a flow may wait for each."""
    return {
        Awaited.UPLOAD: times.client_stall_s,
        # The scheduler itself gives up the wait in the lane, after queue_wait_s. An answer that is not streamed has
        # its first byte after its last token, so first_byte_s would bound how long an answer may be.
        Awaited.LANE: times.total_s,
        Awaited.PEER: times.total_s,  # the peer ends its own waits; from one that is silent it is recalled
        Awaited.WHOLE_ANSWER: times.total_s,
        Awaited.FIRST_BYTE: times.first_byte_s,
        Awaited.BETWEEN_BYTES: times.between_bytes_s,
        Awaited.CLIENT: times.client_stall_s,
    }


class Flows:
    """All flows of a gateway, and the sweep that ends the late ones."""

    def __init__(self) -> None:
        self._flows: set[RequestFlow] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._flows)

    @asynccontextmanager
    async def hold(self, flow: RequestFlow) -> AsyncIterator[None]:
        self._flows.add(flow)
        self._idle.clear()
        try:
            yield
        finally:
            self._flows.discard(flow)
            if not self._flows:
                self._idle.set()

    def sweep(self, now: float) -> None:
        for flow in tuple(self._flows):
            flow.expire(now)

    def abort_all(self, cause: EndCause) -> None:
        for flow in tuple(self._flows):
            flow.abort(cause)

    async def drained(self, within_s: float, lane_s: float = 0.0) -> bool:
        """Waits until no flow is left. False when `within_s` was not enough; it begins when none waits for a place any
        more, after `lane_s` at the latest."""
        for _ in range(math.ceil(lane_s / SWEEP_S)):
            if not any(one.awaited in (Awaited.LANE, Awaited.PEER) for one in self._flows):
                break
            await asyncio.sleep(SWEEP_S)
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
