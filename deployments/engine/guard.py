"""The replica's front door: an ASGI middleware around vLLM's app.

Every path asks for the cluster's secret (vLLM's own key check leaves `/metrics`, `/health` and more open), refused work
is refused before vLLM sees it, and each exchange that asks the engine for work is recorded. It serves the
two paths of `deployments/protocol.py` that are not vLLM's.
"""

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import InitVar, dataclass
from typing import Annotated, Any

import msgspec

from deployments import protocol
from deployments.engine.exchanges import SETTLE_S, EngineExchange, Exchanges, current
from deployments.engine.feed import Feed
from deployments.engine.fence import Fence
from deployments.protocol import ReplicaState

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_LEASELESS = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
"""Whoever has the secret may ask for these, without a lease and so without an epoch. The last one is a simulated
engine's alone."""
_MAX_BYTES = 4_096
_ENGINE_DIED_EVENT = b'%b{"message":"the engine died","type":"server_error","param":null,"code":"%b"}}\n\n' % (
    protocol.ERROR_EVENT,
    protocol.ENGINE_DIED_CODE.encode(),
)
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that ask the engine for no work: they are served while draining, and are not recorded."""


class _Claim(msgspec.Struct):
    epoch: Annotated[int, msgspec.Meta(ge=1)]


class _Drain(msgspec.Struct):
    reason: protocol.DrainReason


_CLAIM, _DRAIN = msgspec.json.Decoder(_Claim), msgspec.json.Decoder(_Drain)


@dataclass(eq=False)
class Guard:
    """Wraps `app`. `state` is asked at each request for work; `drain` is called for a request to DRAIN_PATH."""

    app: App
    secret: InitVar[str]
    exchanges: Exchanges
    feed: Feed
    state: Callable[[], ReplicaState]
    drain: Callable[[protocol.DrainReason], None]

    def __post_init__(self, secret: str) -> None:
        self._credentials = b"Bearer " + secret.encode()
        self._fence = Fence()
        self._own = {
            protocol.FEED_PATH: ("GET", self._serve_feed),
            protocol.DRAIN_PATH: ("POST", self._serve_drain),
            protocol.CLAIM_PATH: ("POST", self._serve_claim),
        }

    @property
    def epoch(self) -> int:
        return self._fence.highest

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if not self._is_authorized(headers):
            await _refuse(send, 401, "invalid_secret", "this port asks for the cluster's secret as a bearer token")
        elif (own := self._own.get(scope["path"])) is None:
            scope["headers"] = [(name, value) for name, value in headers if name != b"authorization"]
            await self._serve_engine(scope, receive, send)
        elif scope["method"] != own[0]:
            await _refuse(send, 405, "method_not_allowed", f"{scope['path']} takes {own[0]}")
        else:
            await own[1](receive, send)

    def _is_authorized(self, headers: list[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._credentials)

    async def _serve_engine(self, scope: Message, receive: Receive, send: Send) -> None:
        state = self.state()
        if scope["method"] in _READS:
            await self.app(scope, receive, send)
        elif state is ReplicaState.READY:
            await self._serve_work(scope, receive, send)
        else:
            code = protocol.DRAINING_CODE if state is ReplicaState.DRAINING else protocol.UNHEALTHY_CODE
            await _refuse(send, 503, code, f"this replica is {state}; nothing was done")

    async def _serve_work(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        request_id, epoch = _request_id(headers), _number(headers, protocol.EPOCH_HEADER)
        if scope["path"] not in _LEASELESS and not self._fence.admits(epoch):
            await _overtaken(send, epoch, self._fence.highest)
            return
        if self.exchanges.serves(request_id):
            await _refuse(send, 409, protocol.DUPLICATE_CODE, f"request {request_id} runs here now; nothing was done")
            return
        exchange = self.exchanges.begin(
            request_id,
            time.monotonic(),
            _number(headers, protocol.PRIORITY_HEADER),
            _text(headers, protocol.BOOKING_HEADER),
        )
        token = current.set(exchange)
        try:
            await self.app(scope, receive, self._noting(send, exchange))
        finally:
            current.reset(token)
            if not self.exchanges.end(exchange, time.monotonic()):
                asyncio.get_running_loop().call_later(SETTLE_S, self.exchanges.settle, exchange)

    def _noting(self, send: Send, exchange: EngineExchange) -> Send:
        """Notes the status and the first byte. The head waits for the first piece of the body, which may show that the
        engine has died.

        vLLM's own words of a dead engine ("See stack trace (above)") are not passed on in a stream that has begun.
        """
        head: Message | None = None

        async def note(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                exchange.status, head = message["status"], message
                exchange.streams = any(
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
                return
            body = message.get("body", b"")
            if exchange.first_byte is None and body:
                exchange.first_byte = time.monotonic()
            is_error = body.startswith(protocol.ERROR_EVENTS) or (head is not None and head["status"] >= 500)
            died = is_error and self.state() is ReplicaState.UNHEALTHY
            if head is not None:
                if died:
                    head["headers"] = [*head.get("headers", ()), (protocol.ENGINE_DIED_HEADER.encode(), b"true")]
                first, head = head, None
                await send(first)
            elif died:
                message["body"] = (
                    protocol.NAMED_ERROR_EVENT if body.startswith(protocol.NAMED_ERROR_EVENT) else b""
                ) + _ENGINE_DIED_EVENT
            await send(message)

        return note

    async def _serve_claim(self, receive: Receive, send: Send) -> None:
        try:
            epoch = _CLAIM.decode(await _body(receive)).epoch
        except msgspec.DecodeError:
            await _refuse(send, 400, "invalid_value", 'allowed: {"epoch": a whole number, at least 1}')
            return
        if not self._fence.admits(epoch):
            await _overtaken(send, epoch, self._fence.highest)
        else:
            running = [
                {
                    "request_id": exchange.request_id,
                    "booking": exchange.booking,
                    "started": exchange.answered or exchange.first_byte is not None,
                }
                for exchange in self.exchanges.running
            ]
            await _respond(send, 200, {"epoch": epoch, "running": running})

    async def _serve_drain(self, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        try:
            reason = _DRAIN.decode(body).reason if body else protocol.DrainReason.OPERATOR
        except msgspec.DecodeError:
            reasons = ", ".join(protocol.DrainReason)
            await _refuse(send, 400, "invalid_value", f'allowed: nothing, or {{"reason": one of {reasons}}}')
            return
        self.drain(reason)
        await _respond(send, 202, {"state": "draining", "reason": reason, "exchanges": len(self.exchanges)})

    async def _serve_feed(self, receive: Receive, send: Send) -> None:
        subscription = self.feed.subscribe()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/octet-stream")]}
        )

        async def pump() -> None:
            more = True
            while more:
                messages, more = await subscription.read()
                await send({"type": "http.response.body", "body": messages, "more_body": more})

        async def hang_up() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        # A subscriber that does not read blocks `pump` in `send`, so the end is waited for beside it.
        tasks = [
            asyncio.create_task(pump()),
            asyncio.create_task(hang_up()),
            asyncio.create_task(subscription.dropped.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.feed.leave(subscription)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == protocol.REQUEST_ID_HEADER.encode():
            return value.decode("latin-1")
    return uuid.uuid4().hex


def _text(headers: list[tuple[bytes, bytes]], desired: str) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == desired.encode()), "")


def _number(headers: list[tuple[bytes, bytes]], desired: str) -> int:
    text = _text(headers, desired)
    return int(text) if text.isdecimal() and text.isascii() else 0


async def _body(receive: Receive) -> bytes:
    """A body of at most `_MAX_BYTES`; nothing of one that is longer."""
    pieces, more = b"", True
    while more and len(pieces) <= _MAX_BYTES:
        message = await receive()
        pieces += message.get("body", b"")
        more = message.get("more_body", False)
    return pieces if len(pieces) <= _MAX_BYTES else b""


async def _overtaken(send: Send, epoch: int, highest: int) -> None:
    message = f"epoch {epoch} was overtaken by {highest}; nothing was done"
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": None,
        "code": protocol.STALE_EPOCH_CODE,
        "highest": highest,
    }
    await _respond(send, 409, {"error": error})


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    kind = (
        "authentication_error" if status == 401 else "unavailable_error" if status == 503 else "invalid_request_error"
    )
    await _respond(send, status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


async def _respond(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
