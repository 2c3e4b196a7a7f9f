"""A hop: a request that is handed over goes to the peer's gateway as an ordinary POST, and the answer to the client.

The peer says at once whether it takes the request: 503 and why, or 100 Continue, and then the body follows. A request
that the peer does not take, or loses before the client has a byte, waits again. Where the client has got bytes, its
stream ends with an error event. Closing the connection cancels. The head of the answer is home's own, but for the
content type and where the request was placed. What the engine has counted comes by itself (`pages.py`, `UsagePages`).
"""

import asyncio
import base64
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import aiohttp

from deployments.gateway.connection import Connection, answer_headers
from deployments.gateway.exchange import sized, trace_of
from deployments.gateway.flow import Awaited
from deployments.gateway.peers.client import (
    FIRST_TOKEN_HEADER,
    HOP_HEADER,
    REFUSAL_HEADER,
    PeerClient,
    PeerFailed,
    read_all,
)
from deployments.gateway.relay import AnswerRelay
from deployments.openai.errors import ApiError, ErrorCode
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.roles import PeerLease
from deployments.peering import HopFacts, HopRefusal
from deployments.protocol import REQUEST_ID_HEADER, SIMULATED_HEADER
from deployments.scheduling import Ending
from deployments.scheduling.request import DEADLY
from deployments.telemetry.journal import Closing
from deployments.telemetry.verdicts import RequestVerdict
from deployments.wire import decoder, encode

log = logging.getLogger("raylane.peers")

MAX_WHOLE = 256 << 20
"""Bytes of an answer that is not streamed."""
_MAX_ERROR = 1 << 20
_MAX_HEADER = 32 << 10
_KEPT_HEADERS = (SIMULATED_HEADER, "x-raylane-placement")
"""Of the peer's answer, beside its content type; the rest is home's own."""
_ERROR_HEADERS = ("retry-after", "x-raylane-lane")
"""...and of an error."""
_VALUE = re.compile(r"[\x20-\x7e]{1,1024}")
_CODES = {one.code: one for one in ErrorCode}
_DEATHS = {ErrorCode.REPLICA_LOST: 1, ErrorCode.QUERY_OF_DEATH: DEADLY}
_ERROR_CODE = re.compile(rb'"code": ?"([a-z_]{1,64})"')
_ANTHROPIC_CODE = re.compile(rb'"message": ?"([a-z_]{1,64}): ')
"""Anthropic's errors have no code: the message begins with it."""
_read_facts = decoder(HopFacts)


def header_of(hop: HopFacts) -> str:
    """The value of HOP_HEADER."""
    return base64.urlsafe_b64encode(encode(hop)).decode()


def read_header(value: str) -> HopFacts:
    """Raises ValueError."""
    if len(value) > _MAX_HEADER:
        raise ValueError(f"a header of {len(value)} characters; allowed: at most {_MAX_HEADER}")
    return _read_facts(base64.urlsafe_b64decode(value.encode("ascii", "strict")))


class HandOvers:
    """What the hops of one gateway share, and what is counted of them."""

    def __init__(self, client: PeerClient, closing: Closing, gateway_id: str) -> None:
        self.client = client
        self.closing = closing
        self.gateway_id = gateway_id
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

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work beside the request."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what runs, and every connection to a peer."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()


class _RefusedThere(Exception):
    """The peer does not take the request."""

    def __init__(self, refusal: HopRefusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class PeerRelay(AnswerRelay):
    """Carries out one lease at a peer."""

    def __init__(
        self,
        shared: HandOvers,
        peer_lease: PeerLease,
        dispatcher: Dispatcher,
        client: Connection,
    ) -> None:
        super().__init__(dispatcher, peer_lease.lease, client)
        self._shared = shared
        self._peer = peer_lease.peer
        self._hop = replace(peer_lease.hop, path=client.endpoint.path, gateway=shared.gateway_id)
        self._answer_s = peer_lease.answer_s
        self._names = dispatcher.model.name, peer_lease.peer
        self._began_s = 0.0
        self._is_taken = False

    async def run(self) -> bool:
        """To the end of the client's answer. False: the request waits again. Raises ApiError, or what cancelled the
        flow; the lease is ended in each case."""
        ledger, shared = self._ledger, self._shared
        self._task, self._began_s = asyncio.current_task(), time.monotonic()
        self._dispatcher.when_lost(self._lease, self._on_loss)
        ledger.peer, ledger.attempt_id = self._peer, self._lease.attempt_id
        self._decide(RequestVerdict.OFFERED, self._hop.reason.value)
        shared.closing.open(ledger)
        shared.in_flight[self._peer] += 1
        self._flow.wait_for(Awaited.PEER, self._began_s)
        whole = False
        try:
            response = await self._offer()
            try:
                await self._relay(response)
            except BaseException:
                response.close()
                raise
            whole = True
            return True
        except _RefusedThere as refused:
            shared.rejected[*self._names, refused.refusal.value] += 1
            self._come_back(RequestVerdict.HOP_REJECTED, refused.refusal.value, refused.refusal)
            return False
        except (PeerFailed, aiohttp.ClientError, OSError, ValueError) as error:
            log.info("request %s at cell %s: %s", ledger.request_id, self._peer, error or type(error).__name__)
            self._broke()
            return False
        except asyncio.CancelledError:
            if not self._is_for_loss():
                raise
            self._broke()
            return False
        finally:
            shared.in_flight[self._peer] -= 1
            if not whole:
                shared.closing.forget(ledger)
            self._leave()

    async def _offer(self) -> aiohttp.ClientResponse:
        """The head of the answer."""
        headers = {HOP_HEADER: header_of(self._hop), REQUEST_ID_HEADER: self._ledger.request_id}
        headers |= trace_of(self._ledger, self._client.headers)
        body, hand_over = self._client.given_body, self._shared.client.hand_over
        try:
            async with asyncio.timeout(self._answer_s) as patience:

                def taken() -> None:
                    if not patience.expired():
                        patience.reschedule(None)
                        self._taken()

                return await hand_over(self._peer, headers, body, taken)
        except TimeoutError:
            raise PeerFailed(f"no answer within {self._answer_s:.2f} s") from None

    def _taken(self) -> None:
        if not self._is_taken:
            self._is_taken = True
            self._shared.taken[*self._names, self._hop.reason.value] += 1
            waited_s = round(self._ledger.lane_s, 6)
            self._decide(RequestVerdict.HANDED_OVER, self._hop.reason.value, waited_s=waited_s)

    async def _relay(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            await self._raise(response)
        if not 200 <= response.status < 204 or not all(map(_VALUE.fullmatch, self._kept(response).values())):
            raise PeerFailed(f"an answer of status {response.status} that is none")
        self._taken()
        if response.content_type == "text/event-stream":
            await self._stream(response)
        else:
            await self._whole(response)

    async def _raise(self, response: aiohttp.ClientResponse) -> None:
        """The answer is an error. One that says that nothing was done sends the request home again."""
        if response.status == 503 and REFUSAL_HEADER in response.headers:
            raise _RefusedThere(HopRefusal(response.headers[REFUSAL_HEADER]))
        try:
            error = json.loads(await read_all(response, _MAX_ERROR))["error"]
            code, message, param = _CODES.get(error["code"], ErrorCode.ENGINE_ERROR), error["message"], error["param"]
            if not isinstance(message, str) or not isinstance(param, str | None):
                raise TypeError
        except (KeyError, TypeError, RecursionError):
            raise PeerFailed(f"an error of status {response.status} that is none") from None
        if code.status == 503:
            raise PeerFailed(f"the peer answered {code.code}")
        given = {name: response.headers.get(name, "") for name in _ERROR_HEADERS}
        self._note_deaths(code)
        self._first_byte()
        raise ApiError(code, message, param, {name: text for name, text in given.items() if _VALUE.fullmatch(text)})

    async def _whole(self, response: aiohttp.ClientResponse) -> None:
        payload = await read_all(response, MAX_WHOLE)
        ledger, now = self._ledger, time.monotonic()
        ledger.first_byte_s = ledger.last_byte_s = now
        if (after_s := response.headers.get(FIRST_TOKEN_HEADER)) is not None:
            ledger.first_token_s = min(now, max(self._began_s, self._began_s + float(after_s)))
        self._dispatcher.first_token(self._lease, now - (ledger.first_token_s or now))
        self._dispatcher.release(self._lease, Ending.FINISHED)
        if self._client.commented:
            raise ApiError(ErrorCode.ENGINE_ERROR, "the engine did not stream its answer")
        await self._give(response.status, [*self._head_of(response), *sized(payload)], payload)

    def _errors_in(self, events: bytes) -> bytes:
        """They are in the client's form already."""
        found = _ERROR_CODE.search(events) or _ANTHROPIC_CODE.search(events)
        code = ErrorCode.ENGINE_ERROR if found is None else _CODES.get(found[1].decode(), ErrorCode.ENGINE_ERROR)
        if self._ledger.error is None:
            self._note_deaths(code)
        self._ledger.error = code.code
        return events

    def _note_deaths(self, error: ErrorCode) -> None:
        """The peer's replicas that died at the request, as its error says, count at home."""
        for _ in range(_DEATHS.get(error, 0)):
            self._dispatcher.died(self._lease)

    def _kept(self, response: aiohttp.ClientResponse) -> dict[str, str]:
        kind = response.headers.get("content-type", "application/json")
        return {"content-type": kind} | {n: response.headers[n] for n in _KEPT_HEADERS if n in response.headers}

    def _head_of(self, response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
        kept = [(name.encode(), value.encode()) for name, value in self._kept(response).items()]
        return [*kept, *answer_headers(self._ledger)]

    def _on_loss(self) -> None:
        """The peer is silent, and the request recalled, unless its client has a byte."""
        if not self._client.answered and self._task is not None:
            self._lost = True
            self._task.cancel()

    def _broke(self) -> None:
        """The peer is lost. Raises ApiError where the request cannot wait again."""
        answering = self._client.answered
        stage = "answering" if answering else "taken" if self._is_taken else "offered"
        self._shared.broken[*self._names, stage] += 1
        if answering:
            self._decide(RequestVerdict.HOP_BROKE, stage)
            message = f"region {self._peer!r}, which ran this request, was lost; the request may be sent again"
            raise ApiError(ErrorCode.PEER_LOST, message)
        refusal = HopRefusal.LOST if self._is_taken else HopRefusal.UNREACHABLE
        self._come_back(RequestVerdict.HOP_BROKE, stage, refusal)

    def _come_back(self, verdict: RequestVerdict, reason: str, refusal: HopRefusal) -> None:
        self._decide(verdict, reason)
        self._dispatcher.came_back(self._lease, refusal)

    def _decide(self, verdict: RequestVerdict, reason: str, **facts: object) -> None:
        self._ledger.decide(verdict, reason, time.monotonic(), peer=self._peer, **facts)
