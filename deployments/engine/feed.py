"""The feed: what a replica tells its gateways as it happens.

Here is who is subscribed and when something is sent; the messages themselves are in `deployments/protocol.py`. A
subscriber that does not read is dropped: it would otherwise hold the memory of everything that it has not read.
"""

import asyncio
import contextlib
from collections.abc import Callable

from deployments.protocol import HEARTBEAT_S, LOAD_INTERVAL_S, Hello, Load, Message, encode

_BACKLOG = 4_096
"""Messages that may wait for one subscriber."""


class Subscription:
    """One subscriber's backlog. `dropped` is set when it has not read for too long."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_BACKLOG)
        self.dropped = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return self._waiting.empty()

    def offer(self, message: bytes | None) -> None:
        """Adds a message, or None for the feed's end."""
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            self.dropped.set()

    async def read(self) -> tuple[bytes, bool]:
        """The messages that wait, at least one, and whether more may follow."""
        messages = [await self._waiting.get()]
        while not self.is_empty:
            messages.append(self._waiting.get_nowait())
        return b"".join(one for one in messages if one is not None), messages[-1] is not None


class Feed:
    """All subscribers of one replica. `hello` and `load` say what is so now."""

    def __init__(self, hello: Callable[[], Hello], load: Callable[[], Load]) -> None:
        self._hello = hello
        self._load = load
        self._sent: Load | None = None
        self._subscribers: set[Subscription] = set()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def subscribe(self) -> Subscription:
        """A new subscription, which begins with a Hello and a Load."""
        subscription = Subscription()
        subscription.offer(encode(self._hello()) + encode(self._load()))
        if self._closed:
            subscription.offer(None)
        else:
            self._subscribers.add(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Ends a subscription; one that has ended is no error."""
        self._subscribers.discard(subscription)

    def changed(self) -> None:
        """The load may have changed; called after each step of the engine, so it only wakes `run` when it did."""
        if self._subscribers and not self._changed.is_set() and self._load() != self._sent:
            self._changed.set()

    def tell(self, message: Message) -> None:
        """Sends a message at once: the end of an exchange, the first tokens of a step, what a replica has to say before
        it ends."""
        self._send(encode(message))

    async def run(self) -> None:
        """Sends the load when it changes, at most once in LOAD_INTERVAL_S and at least once in HEARTBEAT_S, for
        ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._changed.wait()
            self._changed.clear()
            self._sent = self._load()
            self._send(encode(self._sent))
            await asyncio.sleep(LOAD_INTERVAL_S)

    def close(self) -> None:
        """Ends every subscription with the load of this moment, which tells why; later ones end after their first
        messages."""
        self._closed = True
        self._send(encode(self._load()))
        self._send(None)
        self._subscribers.clear()

    def _send(self, message: bytes | None) -> None:
        for subscription in list(self._subscribers):
            subscription.offer(message)
            if subscription.dropped.is_set():
                self.leave(subscription)
