"""The relay: sends a placed request to its replica and the replica's bytes to the client, untouched (but for errors:
`openai/endpoints.py`).

A lease is ended here, exactly once, whatever happens. The answer's headers go out with its first body byte: until then
a request that its replica refused, or died with, can go to another one, and a failure can still be a proper HTTP error;
after that a failure becomes an SSE error event: a stream never just ends. The same holds once comments on the wait have
been sent (`placed.py`).
"""

import asyncio
import time
from abc import ABC, abstractmethod

import aiohttp

from deployments.gateway.connection import Connection, answer_headers
from deployments.gateway.context import with_excess
from deployments.gateway.exchange import (
    UNREACHABLE,
    Death,
    ReplicaDied,
    ReplicaRefused,
    TappedReader,
    content_type,
    marks,
    post,
    refusal,
    sized,
    taps,
    trace_of,
)
from deployments.gateway.flow import Awaited, EndCause
from deployments.openai.endpoints import EventSplitter, engine_error, rewrite_error_events
from deployments.openai.errors import ApiError, ErrorCode, lost
from deployments.ownership.dispatcher import Dispatcher
from deployments.protocol import ENGINE_DIED_HEADER, ERROR_EVENT, NAMED_ERROR_EVENT, PRIORITY_HEADER, ReplicaState
from deployments.scheduling import Ending, Lease


class AnswerStream(ABC):
    """Relays the events of a stream, and keeps the ledger of their times."""

    _is_tapped = True
    """Whether events pass as they come, unless they hold an error."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self._flow = client.flow
        self._ledger = client.flow.ledger

    async def _stream(self, response: aiohttp.ClientResponse) -> None:
        flow, ledger, client, clock = self._flow, self._ledger, self._client, time.monotonic
        events, content, between_s = EventSplitter(), response.content, flow.limits_s[Awaited.BETWEEN_BYTES]
        received = sent = 0.0

        def pass_on(piece: bytes) -> bool:
            """Relays whole events as they come, unless the task has others in hand: as the loop below, in few calls."""
            nonlocal received, sent
            is_plain = piece.endswith(b"\n\n") and ERROR_EVENT not in piece and NAMED_ERROR_EVENT not in piece
            if flow.awaited is not Awaited.BETWEEN_BYTES or events.tail or not is_plain or not client.pass_on(piece):
                return False
            now = clock()
            ledger.itl.append(now - received)
            ledger.engine_wait_s += now - sent
            received = sent = now
            flow.deadline_s = now + between_s
            return True

        if self._is_tapped and not content.at_eof():  # aiohttp's one reader of all empty bodies is of another class
            taps[content] = pass_on
            content.__class__ = TappedReader
        try:
            while piece := await content.readany():
                previous, received = received, clock()
                if previous:
                    ledger.itl.append(received - previous)
                    ledger.engine_wait_s += received - sent
                else:
                    received = self._first_byte()
                    await client.start(response.status, self._head_of(response))
                flow.wait_for(Awaited.CLIENT, received)
                await client.write(self._checked(events.feed(piece)))
                if not sent:
                    client.release_body()
                sent = clock()
                ledger.client_stall_s += sent - received
                flow.wait_for(Awaited.BETWEEN_BYTES, sent)
        finally:
            taps.pop(content, None)
            ledger.last_byte_s = clock()
            if received > sent:
                ledger.client_stall_s += ledger.last_byte_s - received
            elif sent:
                ledger.engine_wait_s += ledger.last_byte_s - sent
        if not sent:
            raise aiohttp.ClientPayloadError("the stream ended before its first byte")
        self._end(Ending.FINISHED if ledger.error is None else Ending.FAILED)
        flow.wait_for(Awaited.CLIENT, ledger.last_byte_s)
        try:
            await client.finish(events.rest())
        finally:
            ledger.last_stall_s = clock() - ledger.last_byte_s

    async def _give(self, status: int, head: list[tuple[bytes, bytes]], payload: bytes) -> None:
        """Sends an answer that is not a stream, and has come."""
        ledger, client = self._ledger, self._client
        ledger.last_byte_s = came_s = ledger.last_byte_s or time.monotonic()
        client.release_body()
        self._flow.wait_for(Awaited.CLIENT, came_s)
        try:
            await client.start(status, head)
            await client.finish(payload)
        finally:
            ledger.last_stall_s = time.monotonic() - came_s

    def _head_of(self, response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
        return [(b"content-type", content_type(response)), *marks(response), *answer_headers(self._ledger)]

    @abstractmethod
    def _checked(self, events: bytes) -> bytes:
        """What of whole events the client gets."""

    def _first_byte(self) -> float:
        self._ledger.first_byte_s = now = time.monotonic()
        return now

    @abstractmethod
    def _end(self, ending: Ending) -> None:
        """The answer is complete, or ended with an error."""


class AnswerRelay(AnswerStream):
    """The part that a replica's answers and those of a peer cell have in common: streams, and the end of the lease.
    Made anew for each lease. `again`: if whoever answers is lost, the request may be placed again."""

    def __init__(self, dispatcher: Dispatcher, lease: Lease, client: Connection, again: bool = True) -> None:
        super().__init__(client)
        self._dispatcher = dispatcher
        self._lease = lease
        self._endpoint = client.endpoint
        self._again = again
        self._lost = False
        self._task: asyncio.Task[object] | None = None

    @property
    def _may_go_again(self) -> bool:
        """Whether the request may be placed again: nothing of an answer has reached its client, and it may wait
        still."""
        return self._again and not self._client.answered and self._lease.request.expires_s > time.monotonic()

    def _on_loss(self) -> None:
        """Whoever runs the request is lost."""
        if self._may_go_again and self._task is not None:
            self._lost = True
            self._task.cancel()
        else:
            self._flow.abort(EndCause.REPLICA_LOST)

    def _is_for_loss(self) -> bool:
        """Whether that loss alone cancelled the task."""
        if self._lost and self._task is not None:
            self._task.uncancel()
        return self._lost and self._flow.cause is None

    def _checked(self, events: bytes) -> bytes:
        return self._errors_in(events) if ERROR_EVENT in events or NAMED_ERROR_EVENT in events else events

    @abstractmethod
    def _errors_in(self, events: bytes) -> bytes:
        """Events of a stream among which there are errors: the ledger records them. What the client gets."""

    def _first_byte(self) -> float:
        self._dispatcher.first_token(self._lease)
        return super()._first_byte()

    def _end(self, ending: Ending) -> None:
        self._dispatcher.release(self._lease, ending)

    def _leave(self) -> None:
        """Ends the lease of an exchange that broke off; no effect where it ended before."""
        if self._ledger.last_byte_s is None:
            self._ledger.last_byte_s = time.monotonic()
        self._dispatcher.release(
            self._lease, Ending.CANCELLED if self._flow.cause is EndCause.CLIENT_GONE else Ending.FAILED
        )


class Relay(AnswerRelay):
    """Relays one placed request."""

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Relays to the end. Raises Refused, Died, ApiError, or what cancelled the flow; the lease is ended in each
        case."""
        self._task = asyncio.current_task()
        self._dispatcher.when_lost(self._lease, self._on_loss)
        try:
            response = await self._post(session)
            try:
                if response.content_type == "text/event-stream":
                    await self._stream(response)
                else:
                    await self._whole(response)
            except BaseException:
                response.close()  # the engine sees the disconnect and aborts the request
                raise
        except ReplicaRefused as refused:
            if refused.too_long:
                self._dispatcher.too_long(self._lease)
            elif refused.highest is None:
                self._dispatcher.refused(self._lease, refused.state)
            else:
                self._dispatcher.overtaken(self._lease, refused.highest)
            raise
        except UNREACHABLE as error:
            self._dispatcher.refused(self._lease, None)
            raise ReplicaRefused(None) from error
        except ReplicaDied:
            self._dispatcher.died(self._lease)
            self._dispatcher.refused(self._lease, ReplicaState.UNHEALTHY)
            raise
        except aiohttp.ClientError as error:
            self._dispatcher.died(self._lease)
            if not self._may_go_again:
                raise lost() from error
            self._dispatcher.refused(self._lease, None)
            raise ReplicaDied(Death.REPLICA_LOST) from error
        except asyncio.CancelledError:
            if self._flow.cause is EndCause.REPLICA_LOST:
                self._dispatcher.died(self._lease)
            if not self._is_for_loss():
                raise
            self._dispatcher.died(self._lease)
            self._dispatcher.refused(self._lease, None)
            raise ReplicaDied(Death.REPLICA_LOST) from None
        finally:
            self._leave()

    async def _post(self, session: aiohttp.ClientSession) -> aiohttp.ClientResponse:
        """Sends the request; the head of an answer, unless it says that the engine died."""
        url = self._dispatcher.url_of(self._lease)
        if url is None:  # lost between the placement and now: no work was done
            raise ReplicaRefused(None)
        self._flow.wait_for(Awaited.FIRST_BYTE if self._ledger.stream else Awaited.WHOLE_ANSWER, time.monotonic())
        own = {PRIORITY_HEADER: str(self._lease.home), **self._dispatcher.credentials(self._lease)}
        headers = {**own, **trace_of(self._ledger, self._client.headers)}
        url += self._endpoint.path
        response = await post(session, url, self._ledger.attempt_id, self._client.body, headers)
        if ENGINE_DIED_HEADER in response.headers:
            response.close()
            if self._may_go_again:
                raise ReplicaDied(Death.ENGINE_DIED)
            self._dispatcher.died(self._lease)
            raise lost()
        return response

    async def _whole(self, response: aiohttp.ClientResponse) -> None:
        payload = await response.read()
        refused = refusal(response.status, payload)
        if refused is not None:
            raise refused
        if response.status == 400 and self._is_too_long(payload):
            raise ReplicaRefused(None, too_long=True)
        ledger, kind = self._ledger, content_type(response)
        ledger.last_byte_s = self._first_byte()
        self._dispatcher.release(self._lease, Ending.FINISHED if response.status < 500 else Ending.FAILED)
        if response.status >= 400:
            error = engine_error(response.status, payload, self._endpoint.body, self._client.body)
            error = with_excess(error, self._dispatcher, ledger)
            if self._client.commented or self._client.hop is not None:
                raise error
            payload, kind, ledger.error = error.payload(self._endpoint.dialect), b"application/json", error.error.code
        elif self._client.commented:
            raise ApiError(ErrorCode.ENGINE_ERROR, "the engine did not stream its answer")
        head = [(b"content-type", kind), *sized(payload), *marks(response), *answer_headers(ledger)]
        await self._give(response.status, head, payload)

    def _is_too_long(self, payload: bytes) -> bool:
        """Whether another group of the model has a context for what this replica found too long."""
        here, dispatcher = self._lease.replica_id, self._dispatcher
        if not self._may_go_again or dispatcher.context_tokens <= dispatcher.replicas.context_of(here):
            return False
        return engine_error(400, payload, self._endpoint.body, self._client.body).error is ErrorCode.CONTEXT_LENGTH

    def _errors_in(self, events: bytes) -> bytes:
        """The engine reports in its stream that it failed: the ledger records it, and the client gets the error in
        OpenAI's form."""
        error, rewritten = rewrite_error_events(events, self._endpoint, self._client.body)
        if error is not None:
            self._ledger.error = error.error.code
            if error.error is ErrorCode.REPLICA_LOST:
                self._dispatcher.died(self._lease)
        return rewritten
