"""The relay: sends a placed request to its replica and the replica's bytes to the client, untouched.

A lease is ended here, exactly once, whatever happens. The answer's headers go out with its first body byte: until then a refused request can go to
another replica and a failure can still be a proper HTTP error; after that a failure becomes an SSE error event, never a silent end.
"""

import time

import aiohttp

from deployments.gateway.connection import Connection, answer_headers
from deployments.gateway.endpoints import Endpoint
from deployments.gateway.errors import ApiError, ErrorCode
from deployments.gateway.flow import Cause, Flow, Hop
from deployments.gateway.owner import LaneOwner
from deployments.gateway.sse import Events
from deployments.protocol import DRAINING_CODE, REQUEST_ID_HEADER, ReplicaState
from deployments.scheduling import Ending, Lease, Usage
from deployments.telemetry.ledger import Ledger

LOST = ApiError(ErrorCode.REPLICA_LOST, "the replica that ran this request was lost; the request may be sent again")
_PASSED_ON = ("content-type", "content-length")


class Refused(Exception):
    """The replica took no work: it drains, or no connection to it could be made. The request waits again at the head of its lane."""


class Relay:
    """Relays one placed request. Made anew for each lease."""

    def __init__(self, session: aiohttp.ClientSession, owner: LaneOwner, lease: Lease, flow: Flow, client: Connection, endpoint: Endpoint) -> None:
        self._session = session
        self._owner = owner
        self._lease = lease
        self._flow = flow
        self._client = client
        self._endpoint = endpoint
        self._ledger: Ledger = flow.ledger

    async def run(self, body: bytes) -> None:
        """Relays to the end. Raises Refused, ApiError, or what cancelled the flow; the lease is ended in each case."""
        self._owner.when_lost(self._lease, lambda: self._flow.abort(Cause.REPLICA_LOST))
        try:
            await self._exchange(body)
        except (Refused, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._refuse(error)
            raise Refused from error
        except aiohttp.ClientError as error:
            raise LOST from error
        finally:
            self._end(Ending.CANCELLED if self._flow.cause is Cause.CLIENT_GONE else Ending.FAILED)  # no effect where it ended well

    async def _exchange(self, body: bytes) -> None:
        self._flow.wait_for(Hop.FIRST_BYTE, time.monotonic())
        headers = {REQUEST_ID_HEADER: self._ledger.engine_id, "content-type": "application/json"}
        response = await self._session.post(self._owner.url_of(self._lease) + self._endpoint.path, data=body, headers=headers)
        try:
            await self._answer(response)
        except BaseException:
            response.close()  # the engine sees the disconnect and aborts the request
            raise

    async def _answer(self, response: aiohttp.ClientResponse) -> None:
        if response.content_type == "text/event-stream":
            await self._stream(response)
            return
        payload = await response.read()
        if response.status == 503 and DRAINING_CODE.encode() in payload:
            raise Refused
        now = self._first_byte()
        self._end(Ending.FINISHED)
        self._flow.wait_for(Hop.CLIENT, now)
        await self._client.start(response.status, self._headers(response))
        self._ledger.last_byte_s = now
        await self._client.finish(payload)

    async def _stream(self, response: aiohttp.ClientResponse) -> None:
        flow, ledger, client, clock = self._flow, self._ledger, self._client, time.monotonic
        events = Events()
        received = sent = 0.0
        async for piece in response.content.iter_any():
            previous, received = received, clock()
            if previous:
                ledger.itl.append(received - previous)
                ledger.engine_wait_s += received - sent
            else:
                received = self._first_byte()
                await client.start(response.status, self._headers(response))
            flow.wait_for(Hop.CLIENT, received)
            await client.write(events.feed(piece))
            sent = clock()
            ledger.client_stall_s += sent - received
            flow.wait_for(Hop.BETWEEN_BYTES, sent)
        self._end(Ending.FINISHED)
        ledger.last_byte_s = clock()
        if ledger.first_byte_s is None:
            raise LOST
        ledger.engine_wait_s += ledger.last_byte_s - sent
        flow.wait_for(Hop.CLIENT, ledger.last_byte_s)
        await client.finish(events.rest())

    def _first_byte(self) -> float:
        now = time.monotonic()
        self._ledger.first_byte_s = now
        self._owner.first_token(self._lease)
        return now

    def _headers(self, response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
        passed = [(name.encode(), response.headers[name].encode("latin-1")) for name in _PASSED_ON if name in response.headers]
        return [*passed, *answer_headers(self._ledger)]

    def _refuse(self, error: Exception) -> None:
        self._ledger.refused_s += time.monotonic() - self._lease.placed_s
        state = ReplicaState.DRAINING if isinstance(error, Refused) else None
        self._owner.refused(self._lease, state)

    def _end(self, ending: Ending) -> None:
        done = self._ledger.finished
        usage = Usage(done.prompt_tokens, done.cached_tokens, done.output_tokens, done.preemptions) if done and done.sequences else None
        self._owner.release(self._lease, ending, usage)
