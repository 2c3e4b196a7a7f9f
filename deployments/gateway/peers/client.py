"""How this cell calls its peers: kept-alive, signed HTTP to the endpoints that the spec names.

A call never carries the cluster's own secret: cells have different ones. Its answer counts only with its signature.
"""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import aiohttp
from pydantic_core import from_json

from cluster.spec import ClusterSpec, PeerTls
from deployments.gateway.peers.auth import (
    AT_ONCE_BYTES,
    CELL_HEADER,
    CLOCK_SKEW_S,
    HOP_HEADER,
    SIGNATURE_HEADER,
    AnswerCheck,
    Signer,
)
from deployments.gateway.peers.frames import Frame, FrameReader
from deployments.peering import HopRefusal

HOP_PATH = "/raylane/peers/hop"
TAKEN = "taken"
_MAX_ANSWER = 4 << 20
_NOT_OF_A_CELL = "the answer is none of that cell's"
_UNSIGNED = {
    401: f"{_NOT_OF_A_CELL}, or it does not accept this cell's signature; needed: the same `peering.secret` in both, "
    f"clocks within {CLOCK_SKEW_S} s of each other, and this cell's name in the certificate of its `peering.tls`",
    403: f"{_NOT_OF_A_CELL}, or it does not know this cell; needed: the same names of `regions` in both specs",
}
"""What an answer without a signature may mean, by its status."""
_KEEP_ALIVE_S = 50.0
"""Below `gateway.timeouts.keep_alive_s` (75 s by default), so that the peer does not close what is being used."""
_COPIED_BYTES = 1 << 20


class PeerFailed(Exception):
    """A peer could not be reached, broke off, or answered otherwise than was agreed. The message names no content."""


class HopRejectedThere(Exception):
    """The peer does not take the request."""

    def __init__(self, refusal: HopRefusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class PeerClient:
    """Of one gateway. Made within a running event loop. Raises OSError for files of TLS that cannot be read."""

    def __init__(self, spec: ClusterSpec, cell: str, signer: Signer) -> None:
        if spec.peering is None:
            raise ValueError("peering: missing; needed: a spec with that section")
        self.peers: Mapping[str, str] = {
            region.name: region.endpoint or "" for region in spec.regions if region.name != cell
        }
        """The endpoint of each peer."""
        self._signer = signer
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
                response, check = await self._call(peer, path, json.dumps(content).encode())
                try:
                    return from_json(await _whole(response, check), allow_inf_nan=False)
                finally:
                    response.close()  # no effect on one that was read to its end
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise PeerFailed(f"cell {peer} did not answer {path}: {_name(error)}") from error

    async def open_hop(self, peer: str, body: bytes, hop: str) -> "PeerStream":
        """Hands a request over. Returns when the peer has taken it. Raises HopRejectedThere, PeerFailed.

        A kept connection that the peer has closed meanwhile is tried once more: a hop of one number is taken once.
        """
        try:
            try:
                response, check = await self._call(peer, HOP_PATH, body, hop)
            except aiohttp.ServerDisconnectedError:
                response, check = await self._call(peer, HOP_PATH, body, hop)
            try:
                if response.status != 200:
                    raise HopRejectedThere(HopRefusal(from_json(await _whole(response, check, 409))["refusal"]))
                _check_head(response, check)
                return PeerStream(response, FrameReader(check.frame_key))
            except BaseException:
                response.close()
                raise
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            raise PeerFailed(f"cell {peer} did not take a request: {_name(error)}") from error

    async def _call(
        self, peer: str, path: str, body: bytes, hop: str = ""
    ) -> tuple[aiohttp.ClientResponse, AnswerCheck]:
        """The head of an answer, and what the rest is checked by."""
        sign = partial(self._signer.call, "POST", path, peer, body, hop)
        headers, check = sign() if len(body) <= AT_ONCE_BYTES else await asyncio.to_thread(sign)
        response = await self._session.post(
            self.peers[peer] + path,
            data=body if len(body) <= _COPIED_BYTES else io.BytesIO(body),
            headers={**headers, "content-type": "application/json"},
            allow_redirects=False,
        )
        try:
            if response.headers.get(CELL_HEADER) != peer:
                raise ValueError(f"status {response.status}: {_UNSIGNED.get(response.status, _NOT_OF_A_CELL)}")
        except BaseException:
            response.close()
            raise
        return response, check

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()


class PeerStream:
    """The answer of a peer that has taken a hop. `close` breaks the connection, and the peer drops the request."""

    def __init__(self, response: aiohttp.ClientResponse, reader: FrameReader) -> None:
        self._response = response
        self._reader = reader

    async def frames(self) -> AsyncIterator[list[Frame]]:
        """The frames, as many at a time as there are. Ends with the answer. Raises PeerFailed."""
        try:
            while piece := await self._response.content.readany():
                if frames := self._reader.feed(piece):
                    yield frames
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PeerFailed(f"the answer broke off: {_name(error)}") from error

    def close(self) -> None:
        """No effect on an answer that was read to its end."""
        self._response.close()


async def _whole(response: aiohttp.ClientResponse, check: AnswerCheck, status: int = 200) -> bytes:
    """A whole answer with its signature. Raises ValueError."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MAX_ANSWER:
            raise ValueError(f"an answer of over {_MAX_ANSWER} bytes")
    if response.status != status:
        raise ValueError(f"status {response.status}")
    if not check.is_right(status, bytes(body), response.headers.get(SIGNATURE_HEADER, "")):
        raise ValueError("an answer with a wrong signature")
    return bytes(body)


def _check_head(response: aiohttp.ClientResponse, check: AnswerCheck) -> None:
    taken = response.headers.get(HOP_HEADER) == TAKEN
    if not taken or not check.is_right(200, TAKEN.encode(), response.headers.get(SIGNATURE_HEADER, "")):
        raise ValueError("an answer that is none to a hop")


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
