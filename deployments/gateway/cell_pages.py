"""Pages for the cell's other processes, on the port for the cell: gateways open their channel to a model's owner,
autoscalers read its snapshot."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from deployments.cell.scaling_facts import SCALING_PATH, ScalingFacts
from deployments.gateway.connection import cut
from deployments.gateway.own_page import OwnPage
from deployments.gateway.service import Service
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.fields import not_served
from deployments.ownership.channel import Session
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.messages import LANES_PATH, UNRESPONSIVE_AFTER_S
from deployments.wire import encode

log = logging.getLogger("raylane.ownership")


@dataclass(eq=False)
class LanesPage:
    """The ASGI app of LANES_PATH."""

    dispatchers: Mapping[str, Dispatcher]

    def route(self) -> Route:
        return Route(LANES_PATH, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One channel, until either side ends it."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        model, gateway_id, epoch, channel = (
            query.get(name, [""])[0] for name in ("model", "gateway", "epoch", "channel")
        )
        owner = dispatcher.own if (dispatcher := self.dispatchers.get(model)) is not None else None
        if scope["method"] != "POST" or owner is None or str(owner.epoch) != epoch:
            await _answer(send, 409)
            return
        session = Session(owner, gateway_id, int(channel) if channel.isdecimal() and channel.isascii() else 0)
        if session.is_open:
            await _carry(session, receive, send)
        else:
            await _answer(send, 409)


async def _carry(session: Session, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"application/octet-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    tasks = [asyncio.create_task(_speak(session, send)), asyncio.create_task(_listen(session, receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        session.end()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for error in results:
        if isinstance(error, Exception):
            log.warning("the channel of gateway %s broke: %r", session.gateway_id, error)
    try:
        async with asyncio.timeout(UNRESPONSIVE_AFTER_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except (OSError, TimeoutError):
        cut(send)


async def _speak(session: Session, send: Send) -> None:
    async for piece in session.pieces():
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _listen(session: Session, receive: Receive) -> None:
    """Raises TimeoutError when the other end is unresponsive, WireError when it says what is no message."""
    while True:
        async with asyncio.timeout(UNRESPONSIVE_AFTER_S):
            message = await receive()
        if message["type"] == "http.disconnect":
            return
        session.feed(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def _answer(send: Send, status: int) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-length", b"0"), (b"connection", b"close")],
        }
    )
    await send({"type": "http.response.body", "body": b""})


class ScalingPage:
    """Asked some times a second for each model: nothing here waits, or looks at more than the scheduler's own sums."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._dispatchers: Mapping[str, Dispatcher] = service.dispatchers

    def route(self) -> Route:
        return Route(SCALING_PATH + "/{model:path}", OwnPage(self.scaling_facts, self._service, quiet=True))

    async def scaling_facts(self, request: Request) -> Response:
        name = request.path_params["model"]
        dispatcher = self._dispatchers.get(name)
        if dispatcher is None:
            raise not_served(name, self._dispatchers)
        if (own := dispatcher.own) is None:
            raise ApiError(ErrorCode.NOT_OWNER, f"model {name!r}: this gateway does not own it")
        attainment = {one.name: one.attainment for one in self._service.spec.classes}
        peers_spare = 0.0 if own.peering is None else own.peering.spare
        scaling_facts = ScalingFacts(name, own.epoch, 0.0, own.snapshot(etas=False), attainment, peers_spare)
        return Response(encode(scaling_facts), media_type="application/msgpack")
