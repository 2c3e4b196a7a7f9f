"""Lines on their way out: all at once, in order, a beat where there are none, and an end."""

import asyncio

import pytest

from deployments.ownership import channel as module
from deployments.ownership.channel import MessageOutbox

NEVER_S = 60.0


async def test_what_is_put_is_sent_at_once_and_in_order() -> None:
    outbox = MessageOutbox()
    pieces = outbox.pieces(NEVER_S, b"beat")
    for line in (b"a", b"b"):
        outbox.put(line)
    assert await anext(pieces) == b"ab"
    waiting = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put(b"c")
    assert await waiting == b"c"


async def test_a_beat_comes_where_nothing_else_does() -> None:
    outbox = MessageOutbox()
    pieces = outbox.pieces(0.001, b"beat")
    assert [await anext(pieces) for _ in range(3)] == [b"beat"] * 3


async def test_what_is_in_a_closed_outbox_is_sent_and_nothing_after() -> None:
    outbox = MessageOutbox()
    outbox.put(b"a")
    outbox.close()
    outbox.put(b"b")
    assert [piece async for piece in outbox.pieces(NEVER_S, b"beat")] == [b"a"]
    assert [piece async for piece in outbox.pieces(NEVER_S, b"beat")] == []


async def test_a_close_ends_who_waits() -> None:
    outbox = MessageOutbox()
    pieces = outbox.pieces(NEVER_S, b"beat")
    waiting = asyncio.ensure_future(anext(pieces, None))
    await asyncio.sleep(0)
    outbox.close()
    assert await waiting is None


async def test_one_that_nobody_reads_closes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LINES", 3)
    outbox = MessageOutbox()
    for line in (b"a", b"b", b"c", b"d", b"e"):
        outbox.put(line)
    assert [piece async for piece in outbox.pieces(NEVER_S, b"beat")] == [b"abc"]
