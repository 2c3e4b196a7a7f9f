"""Clients of a drill: each knows the endpoints of all cells, the one of its own region first, and asks the next one
when a cell is gone.

A request whose answer broke is sent again, as a client of its own would; whatever the drill reports of that client's
wait counts from the break. An endpoint that could not be reached is tried last for some seconds. Error statuses are
answers, and nothing is sent again after one.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from cli.bench.answer import FailureKind, StreamedAnswer
from cli.bench.client import KEEP_ALIVE_S
from planning.drill.record import SendEnd, SentRequest

REGION_HEADER = "x-raylane-region"
_PATH = "/v1/completions"
_AVOID_S = 10.0
_ID = re.compile(rb'"id": ?"([^"]{1,128})"')
_KEPT = 64
"""Bytes of the last piece of a stream in which an id may have begun."""


@dataclass(slots=True)
class RegionEndpoint:
    """A cell's endpoint, as the clients of one region reach it."""

    cell: str
    url: str
    down_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One sending to one endpoint. Times are of the monotonic clock; `end` None: the endpoint was not reached."""

    end: SendEnd | None
    served: str | None = None
    first_s: float | None = None
    ended_s: float = 0.0
    twice: bool = False


@dataclass(slots=True)
class _Seen:
    """The ids of the answers in one stream, and how often it ended."""

    ids: set[bytes] = field(default_factory=set)
    done: int = 0
    _rest: bytes = b""

    def feed(self, piece: bytes) -> None:
        text = self._rest + piece
        self.ids.update(_ID.findall(text))
        self.done += text.count(b"[DONE]") - self._rest.count(b"[DONE]")
        self._rest = text[-_KEPT:]


class RegionClients:
    """The clients of one region. `began_s`: second 0 of the drill, on the monotonic clock."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoints: Sequence[RegionEndpoint],
        began_s: float,
        timeout_s: float,
        api_key: str | None = None,
    ) -> None:
        self._session, self._endpoints = session, list(endpoints)
        self._began_s, self._timeout_s = began_s, timeout_s
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def ask(self, body: bytes, output_tokens: int, request_id: str) -> list[SentRequest]:
        """One request of a client until it has its answer, or nothing more to try: one entry, and one more for each
        time that its answer broke."""
        found: list[SentRequest] = []
        begin_s = time.monotonic()
        deadline_s = begin_s + self._timeout_s
        while True:
            sent = await self._sent(body, output_tokens, f"{request_id}-{len(found)}", begin_s, deadline_s, bool(found))
            found.append(sent)
            if sent.end is not SendEnd.RESET and sent.end is not SendEnd.ERROR_EVENT:
                return found
            begin_s = time.monotonic()
            if begin_s >= deadline_s:
                return found

    async def _sent(
        self, body: bytes, output_tokens: int, request_id: str, begin_s: float, deadline_s: float, again: bool
    ) -> SentRequest:
        home = self._endpoints[0].cell
        sent_s = begin_s - self._began_s
        while (now := time.monotonic()) < deadline_s:
            for endpoint in sorted(self._endpoints, key=lambda one: one.down_until_s > now):
                attempt = await self._attempt(endpoint, body, output_tokens, request_id, deadline_s)
                if attempt.end is None:
                    endpoint.down_until_s = time.monotonic() + _AVOID_S
                    continue
                if attempt.end is SendEnd.RESET and attempt.served is None:
                    endpoint.down_until_s = time.monotonic() + _AVOID_S
                first_s = None if attempt.first_s is None else attempt.first_s - begin_s
                ended_s = attempt.ended_s - self._began_s if attempt.end is SendEnd.ANSWERED else None
                served = attempt.served if attempt.end is SendEnd.ANSWERED else None
                return SentRequest(
                    sent_s, home, endpoint.cell, served, first_s, ended_s, attempt.end, again, attempt.twice
                )
            await asyncio.sleep(_RETRY_S)
        return SentRequest(sent_s, home, None, None, None, None, SendEnd.UNANSWERED, again)

    async def _attempt(
        self, endpoint: RegionEndpoint, body: bytes, output_tokens: int, request_id: str, deadline_s: float
    ) -> _Attempt:
        """Never raises, except when it is cancelled."""
        answer, seen = StreamedAnswer(), _Seen()
        served: str | None = None
        timeout = aiohttp.ClientTimeout(total=max(0.1, deadline_s - time.monotonic()))
        headers = self._headers | {"x-request-id": request_id}
        try:
            async with self._session.post(
                endpoint.url + _PATH, data=body, headers=headers, timeout=timeout
            ) as response:
                served = response.headers.get(REGION_HEADER, endpoint.cell)
                if response.status != 200:
                    await response.read()
                    return _Attempt(SendEnd.REJECTED, None, None, time.monotonic())
                async for piece in response.content.iter_any():
                    answer.feed(piece, time.monotonic())
                    seen.feed(piece)
        except aiohttp.ClientConnectorError:
            return _Attempt(None)
        except TimeoutError:
            return _Attempt(SendEnd.UNANSWERED, ended_s=time.monotonic())
        except (aiohttp.ClientError, OSError):
            return _Attempt(SendEnd.RESET, served, _first(answer), time.monotonic())
        return self._ended(answer, seen, served, output_tokens)

    @staticmethod
    def _ended(answer: StreamedAnswer, seen: _Seen, served: str | None, output_tokens: int) -> _Attempt:
        failure, ended_s, first_s = answer.end(), time.monotonic(), _first(answer)
        counted = answer.usage.output_tokens if answer.usage is not None else 0
        twice = len(seen.ids) > 1 or seen.done > 1 or counted > output_tokens
        if failure is None:
            return _Attempt(SendEnd.ANSWERED, served, first_s, ended_s, twice)
        broken = failure.kind is FailureKind.ENDED_EARLY
        return _Attempt(SendEnd.RESET if broken else SendEnd.ERROR_EVENT, served, first_s, ended_s, twice)


_RETRY_S = 0.2
"""Between two rounds through the endpoints of which none is there."""


def _first(answer: StreamedAnswer) -> float | None:
    return answer.token_times[0] if answer.token_times else None


@asynccontextmanager
async def drill_session() -> AsyncIterator[aiohttp.ClientSession]:
    """For all clients of a drill."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session
