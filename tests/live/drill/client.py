"""Clients of a drill: each knows the endpoints of all cells, and asks the next one where one does not answer: by the
same list as simulated clients (`planning/simulator/clients.py`), and as docs/clients.md shows.

What breaks off before the head of an answer, and what is answered with 5xx, goes on to the next endpoint as the same
request. A request whose answer broke after its head is lost; its client sends it again, and what the drill reports of
that one counts from the break. Other error statuses are answers.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from cli.bench.answer import FailureKind, StreamedAnswer
from cli.bench.client import KEEP_ALIVE_S
from planning.simulator.clients import ROUND_S, EndpointList
from tests.live.drill.record import SendEnd, SentRequest

CONNECT_S = 1.0
"""So long a client tries to connect: as in `docs/examples/openai_failover.py`."""

REGION_HEADER = "x-raylane-region"
_PATH = "/v1/completions"
_ID = re.compile(rb'"id": ?"([^"]{1,128})"')
_KEPT = 64
"""Bytes of the last piece of a stream in which an id may have begun."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One sending to one endpoint. Times are of the monotonic clock. `next`: the client asks the next endpoint, unless
    this was the last."""

    end: SendEnd
    next: bool = False
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
    """The clients of one region. `urls`: the cells' endpoints, as they reach them, their own one first. `began_s`:
    second 0 of the drill, on the monotonic clock. `timeout_s`: a client's patience with one request."""

    def __init__(
        self, session: aiohttp.ClientSession, urls: Mapping[str, str], began_s: float, timeout_s: float
    ) -> None:
        self._session, self._home, self._urls = session, next(iter(urls)), urls
        self._lists: defaultdict[int, EndpointList] = defaultdict(lambda: EndpointList(tuple(self._urls)))
        self._began_s, self._timeout_s = began_s, timeout_s

    async def ask(self, body: bytes, output_tokens: int, request_id: str, client: int = 0) -> list[SentRequest]:
        """One request of the client of that number, until it has its answer, or nothing more to try: one entry, and one
        more for each time that its answer broke."""
        found: list[SentRequest] = []
        begin_s = time.monotonic()
        deadline_s = begin_s + self._timeout_s
        while True:
            asked, attempt = await self._tried(
                self._lists[client], body, output_tokens, f"{request_id}-{len(found)}", deadline_s
            )
            found.append(self._entry(begin_s, asked, attempt, bool(found)))
            if attempt.end not in (SendEnd.RESET, SendEnd.ERROR_EVENT):
                return found
            begin_s = time.monotonic()
            if begin_s >= deadline_s:
                return found

    async def _tried(
        self, endpoints: EndpointList, body: bytes, output_tokens: int, request_id: str, deadline_s: float
    ) -> tuple[str | None, _Attempt]:
        """Which cell was asked last, and how that went."""
        while (now := time.monotonic()) < deadline_s:
            rejected: tuple[str, _Attempt] | None = None
            for cell in endpoints.order(now):
                attempt = await self._attempt(cell, body, output_tokens, request_id, deadline_s)
                if not attempt.next:
                    return cell, attempt
                endpoints.failed(cell, time.monotonic())
                if attempt.end is SendEnd.REJECTED:
                    rejected = cell, attempt
            if rejected is not None:
                return rejected
            await asyncio.sleep(ROUND_S)
        return None, _Attempt(SendEnd.UNANSWERED)

    def _entry(self, begin_s: float, asked: str | None, attempt: _Attempt, again: bool) -> SentRequest:
        whole = attempt.end is SendEnd.ANSWERED
        return SentRequest(
            begin_s - self._began_s,
            self._home,
            asked,
            attempt.served if whole else None,
            None if attempt.first_s is None else attempt.first_s - begin_s,
            attempt.end,
            again,
            attempt.twice,
        )

    async def _attempt(
        self, cell: str, body: bytes, output_tokens: int, request_id: str, deadline_s: float
    ) -> _Attempt:
        """Never raises, except when it is cancelled."""
        answer, seen = StreamedAnswer(), _Seen()
        served: str | None = None
        timeout = aiohttp.ClientTimeout(total=max(0.1, deadline_s - time.monotonic()), sock_connect=CONNECT_S)
        headers = {"content-type": "application/json", "x-request-id": request_id}
        try:
            async with self._session.post(
                self._urls[cell] + _PATH, data=body, headers=headers, timeout=timeout
            ) as response:
                if response.status != 200:
                    await response.read()
                    return _Attempt(SendEnd.REJECTED, response.status >= 500)
                served = response.headers.get(REGION_HEADER, cell)
                async for piece in response.content.iter_any():
                    answer.feed(piece, time.monotonic())
                    seen.feed(piece)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return _Attempt(SendEnd.UNANSWERED, next=True)
        except TimeoutError:
            return _Attempt(SendEnd.UNANSWERED)
        except (aiohttp.ClientError, OSError):
            return _Attempt(SendEnd.RESET, served is None, served, _first(answer), time.monotonic())
        return self._ended(answer, seen, served, output_tokens)

    @staticmethod
    def _ended(answer: StreamedAnswer, seen: _Seen, served: str | None, output_tokens: int) -> _Attempt:
        failure, ended_s, first_s = answer.end(), time.monotonic(), _first(answer)
        counted = answer.usage.output_tokens if answer.usage is not None else 0
        twice = len(seen.ids) > 1 or seen.done > 1 or counted > output_tokens
        if failure is None:
            return _Attempt(SendEnd.ANSWERED, False, served, first_s, ended_s, twice)
        broken = failure.kind is FailureKind.ENDED_EARLY
        return _Attempt(SendEnd.RESET if broken else SendEnd.ERROR_EVENT, False, served, first_s, ended_s, twice)


def _first(answer: StreamedAnswer) -> float | None:
    return answer.token_times[0] if answer.token_times else None


@asynccontextmanager
async def drill_session() -> AsyncIterator[aiohttp.ClientSession]:
    """For all clients of a drill."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session
