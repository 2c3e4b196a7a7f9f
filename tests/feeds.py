"""Reads a replica's feed, message by message."""

from collections import deque

import aiohttp

from deployments.protocol import Message, feed_reader


class Messages:
    """An async iterator over the messages of one connection."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        self._reader = feed_reader()
        self._ready: deque[Message] = deque()

    def __aiter__(self) -> "Messages":
        return self

    async def __anext__(self) -> Message:
        while not self._ready:
            data = await self._content.readany()
            if not data:
                raise StopAsyncIteration
            self._ready.extend(self._reader.feed(data))
        return self._ready.popleft()
