"""An engine behind the replica's front door, as far as the door can tell."""

import asyncio
import json
from typing import Any

from deployments.engine.exchanges import Exchanges, current
from deployments.engine.feed import Feed
from deployments.engine.guard import Guard
from deployments.protocol import DrainReason, Finished, Hello, Load, ReplicaFacts, ReplicaState, Usage

SECRET = "s3cret"
FACTS = ReplicaFacts("r", "m", "http://127.0.0.1:1", 1, "n", "generate", 4096, 8, 2048, 65_536)


class Behind:
    """An app behind the guard: it says what it was given, and finishes one sequence when `go` is set."""

    def __init__(self) -> None:
        self.state = ReplicaState.READY
        self.go = asyncio.Event()
        self.go.set()
        self.reports: asyncio.Queue[Finished] = asyncio.Queue()
        self.books = Exchanges(self.reports.put_nowait, lambda first: None)
        load = Load(ReplicaState.READY, 0, 0, 0, 0.0)
        self.feed = Feed(lambda: Hello(FACTS, self.state), lambda: load)
        self.guard = Guard(self, SECRET, self.books, self.feed, lambda: self.state, self.drain)

    def drain(self, reason: DrainReason) -> None:
        self.state = ReplicaState.DRAINING
        self.reason = reason

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [name.decode() for name, _ in scope["headers"]]
        if current.get() is not None:
            self.books.accept("engine-id", 1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(headers).encode(), "more_body": True})
        gone = asyncio.create_task(until_gone(receive))
        go = asyncio.create_task(self.go.wait())
        await asyncio.wait([gone, go], return_when=asyncio.FIRST_COMPLETED)
        if go.done():
            self.books.record("engine-id", Usage(4, 0, 2, 0))
            await send({"type": "http.response.body", "body": b"!"})
        gone.cancel()
        go.cancel()


async def until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
