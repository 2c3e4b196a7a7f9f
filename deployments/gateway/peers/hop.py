"""A hop, at home: the gateway that holds the client's connection offers its request to a peer, and relays the answer
(`answer.py`).

The owner decides which request is offered to whom, and whether the peer's answer is the client's
(`ownership/hop_messages.py`). The request keeps its place in the lane until then. A peer that is lost before the first
byte costs only time: the request waits again. Where the client has got bytes, its stream ends with an error event.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from deployments.gateway.connection import Connection
from deployments.gateway.exchange import trace_of
from deployments.gateway.flow import Awaited, RequestFlow
from deployments.gateway.peers.answer import PeerAnswer, UsageReader
from deployments.gateway.peers.client import HopRejectedThere, PeerClient, PeerFailed, PeerStream
from deployments.gateway.peers.envelope import HopEnvelope
from deployments.openai.endpoints import Endpoint
from deployments.openai.errors import ApiError, ErrorCode
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.record import TakenByPeer
from deployments.peering import HopFacts
from deployments.telemetry.journal import Closing
from deployments.telemetry.verdicts import RequestVerdict

log = logging.getLogger("raylane.peers")


class HandOvers:
    """What the hops of one gateway share, and what is counted of them."""

    def __init__(self, client: PeerClient, closing: Closing) -> None:
        self.client = client
        self.closing = closing
        self.taken: Counter[tuple[str, str, str]] = Counter()
        """By model, peer and `HandOverReason`."""
        self.rejected: Counter[tuple[str, str, str]] = Counter()
        """By model, peer and `HopRefusal`."""
        self.broken: Counter[tuple[str, str, str]] = Counter()
        """By model, peer, and `offered`, `taken` or `answering`: how far it was when the peer was lost."""
        self.in_flight: Counter[str] = Counter()
        """By peer."""
        self.guests: Counter[tuple[str, str]] = Counter()
        """Requests of peers that were taken here, by model and peer."""
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs work beside the request."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Ends what runs, and every connection to a peer."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()


class Carrier:
    """Takes one request to peers, one at a time (`ownership.record.HopCarrier`)."""

    def __init__(
        self, shared: HandOvers, dispatcher: Dispatcher, flow: RequestFlow, client: Connection, endpoint: Endpoint
    ) -> None:
        self._shared = shared
        self._dispatcher = dispatcher
        self._model = dispatcher.model.name
        self._flow = flow
        self._ledger = flow.ledger
        self._client = client
        self._endpoint = endpoint
        self._facts: HopFacts | None = None
        self._opening: asyncio.Task[None] | None = None
        self._stream: PeerStream | None = None
        self._answer: PeerAnswer | None = None
        self._relaying: asyncio.Task[Any] | None = None
        self._withdrawn = self._cut = False

    def offer(self, peer: str, hop: HopFacts) -> None:
        """The owner wants the request offered to that peer."""
        self._facts, self._stream, self._withdrawn = hop, None, False
        now = self._ledger.offered_s = time.monotonic()
        self._ledger.decide(RequestVerdict.OFFERED, hop.reason.value, now, peer=peer)
        self._opening = self._shared.run(self._open(peer, hop))

    def withdraw(self, number: int) -> None:
        """The peer is to drop it: the connection to it is closed."""
        if self._facts is None or self._facts.number != number or self._withdrawn:
            return
        self._withdrawn = True
        if self._opening is not None and self._opening is not asyncio.current_task():
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()
        if self._relaying is not None and self._answer is not None and not self._answer.answering:
            self._cut = self._relaying.cancel()

    async def relay(self, hop: TakenByPeer) -> bool:
        """Relays the answer of the peer that has the request. False: the peer was lost before the first byte, and the
        request waits again. Raises ApiError, or what cancelled the flow."""
        stream, facts = self._stream, self._facts
        assert stream is not None
        assert facts is not None
        answer = self._answer = PeerAnswer(self._dispatcher.hops, facts, self._flow, self._client)
        self._begin(hop, facts)
        self._relaying = asyncio.current_task()
        self._shared.in_flight[hop.peer] += 1
        try:
            if self._withdrawn:  # after it was confirmed: what has come of the answer is nobody's
                raise PeerFailed("the hop was withdrawn")
            await answer.run(stream, lambda usage: self._take_usage(stream, usage))
            return True
        except PeerFailed as error:
            log.info("request %s at cell %s: %s", self._ledger.request_id, hop.peer, error)
            self._broke(hop, facts, answer.answering)
            if answer.answering:
                raise _peer_lost(hop.peer) from error
            return False
        except asyncio.CancelledError:
            relaying, self._relaying = self._relaying, None
            if self._cut and relaying is not None and not relaying.uncancel():  # nobody else has cancelled it
                self._broke(hop, facts, False)
                return False
            self._dispatcher.hops.client_left(facts.request_id, hop.number)
            raise
        except Exception:  # an error that the peer tells of, or one of this gateway's
            self._dispatcher.hops.finished(facts.request_id, hop.number)
            raise
        finally:
            self._relaying = None
            self._shared.in_flight[hop.peer] -= 1
            answer.left()
            if self._stream is not None:  # else the answer was whole, and its usage is to come
                self._shared.closing.forget(self._ledger)
                stream.close()
                self._stream = None

    async def _open(self, peer: str, hop: HopFacts) -> None:
        hops, ledger = self._dispatcher.hops, self._ledger
        envelope = HopEnvelope(hop, self._endpoint.path, ledger.request_id, trace_of(self._client.headers))
        try:
            stream = await self._shared.client.open_hop(peer, self._client.given_body, envelope.header())
        except HopRejectedThere as rejected:
            self._shared.rejected[self._model, peer, rejected.refusal.value] += 1
            ledger.decide(RequestVerdict.HOP_REJECTED, rejected.refusal.value, time.monotonic(), peer=peer)
            hops.rejected(hop.request_id, hop.number, rejected.refusal)
        except PeerFailed as error:
            log.info("request %s: %s", ledger.request_id, error)
            self._shared.broken[self._model, peer, "offered"] += 1
            ledger.decide(RequestVerdict.HOP_BROKE, "offered", time.monotonic(), peer=peer)
            hops.broke(hop.request_id, hop.number)
        else:
            self._stream = stream
            hops.taken(hop.request_id, hop.number)  # which may withdraw it at once
            if hops.get(hop.request_id) is None:
                stream.close()

    def _begin(self, hop: TakenByPeer, facts: HopFacts) -> None:
        now, ledger, reason = time.monotonic(), self._ledger, facts.reason.value
        self._shared.taken[self._model, hop.peer, reason] += 1
        ledger.decide(RequestVerdict.HANDED_OVER, reason, now, peer=hop.peer, waited_s=round(ledger.lane_s, 6))
        ledger.peer, ledger.attempt_id = hop.peer, f"{facts.request_id}-hop"
        self._shared.closing.open(ledger)
        self._flow.wait_for(Awaited.PEER, now)

    def _broke(self, hop: TakenByPeer, facts: HopFacts, answering: bool) -> None:
        stage, now = "answering" if answering else "taken", time.monotonic()
        self._shared.broken[self._model, hop.peer, stage] += 1
        self._ledger.decide(RequestVerdict.HOP_BROKE, stage, now, peer=hop.peer)
        if not answering:
            self._shared.closing.forget(self._ledger)
            self._ledger.refused(now)
        self._dispatcher.hops.broke(facts.request_id, hop.number)

    def _take_usage(self, stream: PeerStream, usage: UsageReader) -> None:
        """The answer is whole. What the peer's engine counted comes last, and nobody waits for it."""
        attempt_id, self._stream = self._ledger.attempt_id, None

        async def take() -> None:
            try:
                counted = await usage()
            finally:
                stream.close()
            if counted is not None:
                self._shared.closing.finished(counted.finished(attempt_id))

        self._shared.run(take())


def _peer_lost(peer: str) -> ApiError:
    message = f"region {peer!r}, which ran this request, was lost; the request may be sent again"
    return ApiError(ErrorCode.PEER_LOST, message)
