"""What the gateway does with a prompt that is longer than its model's context: drops turns where the class or the
client lets it (`openai/turns.py` says which), and says by how many tokens the others are too long."""

import asyncio
import time
import uuid

import aiohttp
import msgspec

from deployments.gateway.connection import Connection
from deployments.gateway.exchange import post
from deployments.gateway.flow import Awaited, RequestFlow
from deployments.openai.endpoints import CONVERSATIONS, BodyKind
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.inquiry import Inquiry
from deployments.openai.turns import as_chat, read_turns, shortening
from deployments.ownership.dispatcher import Dispatcher
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.verdicts import RequestVerdict


class _Counted(msgspec.Struct):
    """A replica's answer to /tokenize, or to /v1/messages/count_tokens."""

    count: int = 0
    input_tokens: int = 0


async def shorten(
    session: aiohttp.ClientSession | None,
    dispatcher: Dispatcher,
    client: Connection,
    inquiry: Inquiry,
    body: bytes,
) -> bytes | None:
    """The body without its oldest turns, with room for one token of an answer. None: it goes on as it came, since it is
    short enough, or would be too long without them.

    A prompt that is hardly too long by its estimate costs nothing; one that surely stays too long is not counted.
    Without a `session`, none is: no replica of this cell may see it.
    """
    ratio, chars, limit = dispatcher.ratio, inquiry.prompt_chars, dispatcher.longest_context - 1
    if inquiry.kind not in CONVERSATIONS or ratio.max_tokens(chars, 0) <= limit:
        return None
    conversation = await asyncio.to_thread(read_turns, inquiry.kind, body)
    if conversation is None or chars - conversation.cuts[-1].chars > ratio.max_chars(limit):
        return None
    search = shortening(conversation, chars, limit, ratio.chars_per_token)
    left = tokens = 1
    try:
        cut = next(search)
        while True:
            left = max(1, chars - cut.chars)
            shorter = conversation.without(cut)
            counted = 0 if session is None else await _count(session, dispatcher, client.flow, inquiry.kind, shorter)
            tokens = counted or ratio.max_tokens(left, 0)
            cut = search.send(tokens)
    except StopIteration as end:
        found = end.value
    if found is None or not found.turns:
        return None
    gone = {"turns": found.turns, "tokens": round(found.chars * tokens / left)}
    client.carry(b"x-raylane-dropped", "; ".join(f"{name}={number}" for name, number in gone.items()))
    reason = "truncation" if inquiry.truncation else "context"
    client.flow.ledger.decide(RequestVerdict.DROPPED_TURNS, reason, time.monotonic(), **gone)
    return conversation.without(found)


async def _count(
    session: aiohttp.ClientSession, dispatcher: Dispatcher, flow: RequestFlow, kind: BodyKind, body: bytes
) -> int:
    """The tokens of a prompt, by a replica; 0: none is ready, or none can tell."""
    path = "/v1/messages/count_tokens" if kind is BodyKind.MESSAGES else "/tokenize"
    try:
        asked = as_chat(body) if kind is BodyKind.RESPONSE else body
        for replica in dispatcher.replicas.ready_in_turn():
            flow.wait_for(Awaited.FIRST_BYTE, time.monotonic())
            try:
                async with await post(session, replica.url + path, uuid.uuid4().hex, asked) as response:
                    payload = await response.read()
            except aiohttp.ClientError:
                continue
            if response.status < 500:
                counted = msgspec.json.decode(payload, type=_Counted)
                return counted.count or counted.input_tokens
    except msgspec.DecodeError:
        pass
    return 0


def with_excess(error: ApiError, dispatcher: Dispatcher, ledger: Ledger) -> ApiError:
    """The error; of a prompt that is too long, with by how much, where the gateway's estimate is that long, too."""
    over = dispatcher.ratio.tokens(ledger.prompt_chars, 0) - dispatcher.longest_context
    if error.error is ErrorCode.CONTEXT_LENGTH and over > 0:
        error.message = f"{error.message.rstrip('.')}: about {over} tokens too many"
    return error
