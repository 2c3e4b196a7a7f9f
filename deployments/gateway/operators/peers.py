"""The other gateways of the cell, as the directory lists them: asked for what only they know."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import aiohttp

log = logging.getLogger("raylane.gateway")

_ANSWER_S = 2.0


class Peers:
    """`own_url` is where this gateway listens for the others."""

    def __init__(self, gateway_id: str, session: aiohttp.ClientSession) -> None:
        self.gateway_id = gateway_id
        self.own_url = ""
        self.urls: dict[str, str] = {}
        self._session = session

    @property
    def share_node(self) -> bool:
        """Whether another gateway listens on the same node, and so on the same port for clients."""
        own = urlsplit(self.own_url).hostname
        return any(urlsplit(url).hostname == own for url in self.urls.values())

    def told(self, gateways: Iterable[tuple[str, str]]) -> None:
        """The directory's list of the gateways that live."""
        self.urls = {gateway_id: url for gateway_id, url in gateways if gateway_id != self.gateway_id}

    async def ask(self, path: str) -> list[Any]:
        """The JSON with which the others answer a GET; who does not answer in time, or not with 200, is left out."""
        answers = await asyncio.gather(*(self._ask(url + path) for url in self.urls.values()))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, url: str) -> Any:
        try:
            async with asyncio.timeout(_ANSWER_S), self._session.get(url) as response:
                return await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.info("%s did not answer: %r", url, error)
            return None
