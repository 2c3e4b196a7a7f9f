"""The feed: who gets what, and when."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from deployments.engine.feed import Feed, Subscription
from deployments.protocol import (
    HEARTBEAT_S,
    LOAD_INTERVAL_S,
    Finished,
    FirstTokens,
    Hello,
    Load,
    Message,
    ReplicaState,
    Usage,
    feed_reader,
)
from tests.deployments.engine.guarded_engine import FACTS

FIRST = FirstTokens(("id", "other"))
FINISHED = Finished("id", 200, Usage(5, 0, 3, 0, 1, 0.1, 0.2, 0.0), 0.1, 0.3)


class Engine:
    """What the feed is asked to tell."""

    def __init__(self) -> None:
        self.load = Load(ReplicaState.READY, running=0, waiting=0, exchanges=0, kv_usage=0.0)
        self.feed = Feed(lambda: Hello(FACTS, self.load.state), lambda: self.load)

    def runs(self, running: int) -> None:
        self.load = replace(self.load, running=running)
        self.feed.changed()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@asynccontextmanager
async def running(feed: Feed) -> AsyncIterator[None]:
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def read(subscription: Subscription) -> list[Message]:
    async with asyncio.timeout(5):
        messages, _ = await subscription.read()
    return feed_reader().feed(messages)


async def test_a_subscription_begins_with_who_and_how_busy(engine: Engine) -> None:
    assert await read(engine.feed.subscribe()) == [Hello(FACTS, ReplicaState.READY), engine.load]


async def test_every_subscriber_hears_of_first_tokens_and_of_a_finished_exchange_at_once(engine: Engine) -> None:
    subscriptions = [engine.feed.subscribe() for _ in range(3)]
    engine.feed.tell(FIRST)
    engine.feed.tell(FINISHED)
    for subscription in subscriptions:
        assert (await read(subscription))[-2:] == [FIRST, FINISHED]


async def test_a_changed_load_is_told_at_once_and_then_not_too_often(engine: Engine) -> None:
    subscription = engine.feed.subscribe()
    async with running(engine.feed):
        await read(subscription)
        clock = asyncio.get_running_loop().time
        begun = clock()
        reported = []
        for number in range(1, 100):
            engine.runs(number)
            await asyncio.sleep(LOAD_INTERVAL_S / 20)
            if not subscription.is_empty:
                reported += await read(subscription)
        assert reported[0] == replace(engine.load, running=1)
        assert len(reported) <= (clock() - begun) / LOAD_INTERVAL_S + 1
        while reported[-1] != engine.load:
            reported += await read(subscription)


@pytest.mark.whole
async def test_a_load_that_does_not_change_is_a_heartbeat(engine: Engine) -> None:
    subscription = engine.feed.subscribe()
    async with running(engine.feed):
        await read(subscription)
        begun = asyncio.get_running_loop().time()
        for _ in range(3):
            assert await read(subscription) == [engine.load]
            engine.feed.changed()
        assert asyncio.get_running_loop().time() - begun > 2 * HEARTBEAT_S


async def test_a_subscriber_that_does_not_read_is_dropped_and_the_others_are_not(engine: Engine) -> None:
    slow, quick = engine.feed.subscribe(), engine.feed.subscribe()
    for _ in range(20_000):
        engine.feed.tell(FINISHED)
        if not quick.is_empty:
            await read(quick)
        if slow.dropped.is_set():
            break
    assert slow.dropped.is_set()
    engine.feed.tell(FINISHED)
    assert await read(quick) == [FINISHED]


async def test_a_closed_feed_says_what_it_had_to_say_and_ends(engine: Engine) -> None:
    before = engine.feed.subscribe()
    engine.feed.tell(FINISHED)
    engine.feed.close()
    for subscription in (before, engine.feed.subscribe()):
        _, more = await subscription.read()
        assert not more
