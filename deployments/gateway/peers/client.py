"""How this cell calls its peers: kept-alive HTTP to the endpoints that the spec names.

A call never carries the cluster's own secret: cells have different ones.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from pydantic_core import from_json

from cluster.spec import ClusterSpec, PeerTls
from deployments.gateway.peers.auth import CELL_HEADER, Credentials

HOP_PATH = "/raylane/peers/hop"
HOP_HEADER = "x-raylane-hop"
"""What is said of a request that is handed over (`HopFacts`): base64 of its MessagePack."""
REFUSAL_HEADER = "x-raylane-refusal"
"""Why it is not taken (`HopRefusal`), in a 503."""
FIRST_TOKEN_HEADER = "x-raylane-first-token-s"
"""Of an answer that is not streamed: seconds from the offer to its first token."""
_MAX_ANSWER = 4 << 20
_NOT_OF_A_CELL = "the answer is none of that cell's"
_REFUSED = {
    401: f"{_NOT_OF_A_CELL}, or it does not accept this cell's credentials; needed: the same `peering.secret` in both, "
    "and this cell's name in the certificate of its `peering.tls`",
    403: f"{_NOT_OF_A_CELL}, or it does not know this cell; needed: the same names of `regions` in both specs",
}
"""What an answer that does not name its cell may mean, by its status."""
_KEEP_ALIVE_S = 50.0
"""Below `gateway.timeouts.keep_alive_s` (75 s by default), so that the peer does not close what is being used."""
_PIECE_BYTES = 1 << 16
"""A body is sent piece by piece: in one go it would hold up the streams of others."""


class PeerFailed(Exception):
    """A peer could not be reached, broke off, or answered otherwise than was agreed. The message names no content."""


class PeerClient:
    """Of one gateway. Made within a running event loop. Raises OSError for files of TLS that cannot be read."""

    def __init__(self, spec: ClusterSpec, credentials: Credentials) -> None:
        if spec.peering is None:
            raise ValueError("peering: missing; needed: a spec with that section")
        self.peers: Mapping[str, str] = {
            region.name: region.endpoint or "" for region in spec.regions if region.name != credentials.cell
        }
        """The endpoint of each peer."""
        self._credentials = credentials
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=spec.gateway.timeouts.connect_s),
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=10, ssl=_ssl_of(spec.peering.tls)
            ),
            auto_decompress=False,
            skip_auto_headers=("user-agent", "accept", "accept-encoding"),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def post_json(self, peer: str, path: str, content: Any, within_s: float) -> Any:
        """The JSON that a peer answers to JSON. Raises PeerFailed."""
        try:
            async with asyncio.timeout(within_s):
                response = await self._post(peer, path, json.dumps(content).encode(), {})
                try:
                    if response.status != 200:
                        raise ValueError(f"status {response.status}")
                    return from_json(await read_all(response, _MAX_ANSWER), allow_inf_nan=False)
                finally:
                    response.close()  # no effect on one that was read to its end
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise PeerFailed(f"cell {peer} did not answer {path}: {_name(error)}") from error

    async def hand_over(
        self, peer: str, headers: Mapping[str, str], body: bytes, taken: Callable[[], None]
    ) -> aiohttp.ClientResponse:
        """Hands a request over: the body is sent once the peer has asked for it (100 Continue), and `taken` called
        then. Returns when the head of the answer came, whatever it is. Raises PeerFailed.

        A kept connection that the peer has closed meanwhile is tried once more: nothing was taken on it.
        """
        asked = False

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal asked
            asked = True
            taken()
            for start in range(0, len(body), _PIECE_BYTES):
                yield body[start : start + _PIECE_BYTES]

        sized = {**headers, "content-length": str(len(body))}
        try:
            try:
                return await self._post(peer, HOP_PATH, pieces(), sized, expect100=True)
            except aiohttp.ServerDisconnectedError:
                if asked:
                    raise
                return await self._post(peer, HOP_PATH, pieces(), sized, expect100=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PeerFailed(f"cell {peer} did not answer a request: {_name(error)}") from error

    async def _post(
        self, peer: str, path: str, body: Any, headers: Mapping[str, str], expect100: bool = False
    ) -> aiohttp.ClientResponse:
        """The head of an answer."""
        response = await self._session.post(
            self.peers[peer] + path,
            data=body,
            headers={**self._credentials.shown_to(peer), **headers, "content-type": "application/json"},
            allow_redirects=False,
            expect100=expect100,
        )
        if response.headers.get(CELL_HEADER) != peer:
            response.close()
            raise ValueError(f"status {response.status}: {_REFUSED.get(response.status, _NOT_OF_A_CELL)}")
        return response

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()


async def read_all(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """A whole answer. Raises ValueError for one that is longer."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise ValueError(f"an answer of over {max_bytes} bytes")
    return bytes(body)


def _ssl_of(tls: PeerTls | None) -> ssl.SSLContext | bool:
    """How peers' certificates are checked, and which one is shown to them. A peer may also show one that the system
    trusts: behind the same address are its clients."""
    if tls is None:
        return True
    try:
        context = ssl.create_default_context()
        context.load_verify_locations(cafile=tls.ca)
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise OSError(f"peering.tls: {tls.cert}, {tls.key}, {tls.ca}: {error}") from error
    return context


def _name(error: BaseException) -> str:
    """What went wrong, without what an answer held."""
    return str(error) if isinstance(error, ValueError) and str(error) else type(error).__name__
