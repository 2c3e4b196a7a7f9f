"""Clients of a live cluster: how each request ended, so that a cut stream cannot pass for a good one."""

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

STREAM: dict[str, Any] = {
    "model": "demo",
    "prompt": "1, 2, 3,",
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}


@dataclass
class Answer:
    """What a client got. `end`: done (the stream's proper end), error (an error, reported as such), cut (an end without
    a word), left."""

    end: str = "cut"
    status: int = 0
    code: str | None = None
    replica: str | None = None
    gateway: str | None = None
    region: str | None = None
    """The cell that serves it, where cells have peers and the head says so."""
    tokens: int = 0
    """Events with text; one may carry several tokens."""
    counted: int | None = None
    """The engine's own count, where `stream_options` asked for it."""
    started_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    """When the first text came, of a stream."""
    ended_s: float = 0.0


async def ask(session: aiohttp.ClientSession, url: str, answer: Answer | None = None, **fields: Any) -> Answer:
    """A streamed completion, to its end; `answer` is filled meanwhile. No two have the same body, where no `user` is
    given: what ran when two replicas died is refused."""
    answer = Answer() if answer is None else answer
    try:
        async with session.post(
            url + "/v1/completions", json={**STREAM, "user": uuid.uuid4().hex, **fields}
        ) as response:
            answer.status = response.status
            answer.replica = response.headers.get("x-raylane-placement", "").partition(";")[0]
            answer.gateway = response.headers.get("x-raylane-gateway")
            answer.region = response.headers.get("x-raylane-region")
            if response.content_type == "text/event-stream":
                await _read_events(response, answer)
            else:
                content = await response.json()
                answer.end, answer.code = ("error", content["error"]["code"]) if "error" in content else ("done", None)
    except aiohttp.ClientError as error:
        answer.code = repr(error)
    answer.ended_s = time.monotonic()
    return answer


@dataclass
class Stream:
    """A streamed completion that runs: `answer` is what has come of it."""

    answer: Answer
    task: asyncio.Task[Answer]

    @property
    def has_begun(self) -> bool:
        """It has its first text, and goes on."""
        return self.answer.first_s is not None and not self.task.done()


def begin(session: aiohttp.ClientSession, url: str, count: int, **fields: Any) -> list[Stream]:
    """So many streams at once."""
    answers = [Answer() for _ in range(count)]
    return [Stream(one, asyncio.create_task(ask(session, url, one, **fields))) for one in answers]


async def ends_of(streams: list[Stream]) -> Counter[tuple[str, str | None]]:
    """How they ended, once all have: `Answer.end`, and the error's code."""
    answers = await asyncio.gather(*(one.task for one in streams))
    return Counter((one.end, one.code) for one in answers)


async def _read_events(response: aiohttp.ClientResponse, answer: Answer) -> None:
    buffer = b""
    async for piece in response.content.iter_any():
        buffer += piece
        while b"\n\n" in buffer:
            event, buffer = buffer.split(b"\n\n", 1)
            if event.startswith(b":"):  # it waits
                continue
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                answer.end = "done" if answer.code is None else "error"
                continue
            content = json.loads(data)  # half an event would not parse
            if "error" in content:
                answer.code = str(content["error"]["code"])
            else:
                answer.tokens += bool(content["choices"])
                answer.first_s = answer.first_s or time.monotonic()
                answer.counted = (content.get("usage") or {}).get("completion_tokens", answer.counted)
    assert buffer == b"", buffer


@asynccontextmanager
async def clients() -> AsyncIterator[aiohttp.ClientSession]:
    """A session without limits or time-outs."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=30)
    ) as session:
        yield session


async def at_once(count: int, concurrency: int, one: Callable[[int], Awaitable[Answer]]) -> list[Answer]:
    """Runs `one` for 0 to `count`, so many at a time."""
    numbers = iter(range(count))
    answers: list[Answer] = []

    async def worker() -> None:
        for number in numbers:  # shared by all workers
            answer = await one(number)
            answers.append(answer)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return answers


def quantile(values: list[float], share: float) -> float:
    """The nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
