"""The two clients: one that sends hostile bodies, in a process of its own, and one that reads streams and notes the
gaps between their pieces."""

import asyncio
import io
import multiprocessing
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import uvloop

from benchmarks.hostile.bodies import body_of, size_of
from benchmarks.hostile.shapes import shapes
from benchmarks.hostile.stack import CONTEXT, KEY, MODEL

_AUTHORIZED = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


@dataclass(slots=True)
class Sent:
    """What an attack got: bodies by status, the sizes by request id, and connections that broke."""

    statuses: Counter[int] = field(default_factory=Counter)
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """By the limit that the answer names."""
    failed: dict[str, int] = field(default_factory=dict)
    """The status of each 5xx, by request id."""
    shapes: dict[str, int] = field(default_factory=dict)
    """The status of each shape."""
    took_s: float = 0.0

    def add(self, more: "Sent") -> None:
        """Adds what another attack got."""
        self.statuses += more.statuses
        self.broken += more.broken
        self.refused += more.refused
        self.failed |= more.failed
        self.shapes |= more.shapes
        self.took_s += more.took_s


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies with these numbers of a run with that seed, and round `guided` of the shapes of structured output, but
    for those in `without`."""

    seed: int
    numbers: range
    maximum: int
    model: str = MODEL
    guided: int | None = None
    without: frozenset[str] = frozenset()
    patience_s: float = 60.0
    """The client goes away then: a body may ask for thousands of tokens."""

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        for number in self.numbers:
            draw = random.Random(f"{self.seed}/{number}")
            yield f"body-{number}", *body_of(draw, size_of(draw, self.maximum), self.model)
        if self.guided is not None:
            for name, (path, body) in shapes(self.model, self.guided).items():
                if name not in self.without:
                    yield name, path, body


async def attack(url: str, bodies: Bodies) -> Sent:
    """Sends bodies one after the other, from another process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_attack, args=(there, url, bodies), daemon=True)
    process.start()
    there.close()
    sent: Sent = await asyncio.to_thread(here.recv)
    await asyncio.to_thread(process.join)  # it takes a while to end, and whoever watches streams is in this loop
    return sent


def _attack(pipe: Connection, url: str, bodies: Bodies) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pipe.send(runner.run(_send_all(url, bodies)))


async def _send_all(url: str, bodies: Bodies) -> Sent:
    sent, began = Sent(), time.monotonic()
    async with aiohttp.ClientSession(
        headers=_AUTHORIZED, timeout=aiohttp.ClientTimeout(total=bodies.patience_s)
    ) as session:
        for name, path, body in bodies:
            sent.sizes[name] = (path, len(body))
            headers = {"x-request-id": re.sub(r"\W+", "-", name)}
            try:
                async with session.post(url + path, data=io.BytesIO(body), headers=headers) as response:
                    _note(sent, name, response.status, await response.read())
            except (aiohttp.ClientError, TimeoutError) as error:
                sent.broken[type(error).__name__] += 1
                if not name.startswith("body-"):
                    sent.shapes[name] = 0
    sent.took_s = time.monotonic() - began
    return sent


def _note(sent: Sent, name: str, status: int, answer: bytes) -> None:
    sent.statuses[status] += 1
    if not name.startswith("body-"):
        sent.shapes[name] = status
    if status >= 500:
        sent.failed[name] = status
    elif found := re.search(rb"gateway\.limits\.(\w+)|levels; allowed", answer):
        sent.refused[(found[1] or b"levels").decode()] += 1


async def watch(
    url: str, streams: int, until: "asyncio.Future[Any]", model: str = MODEL, tokens: int = CONTEXT // 8
) -> list[float]:
    """Reads so many streams until that is done, each again when it ends. The gaps between their pieces (seconds),
    without those before the first piece of each."""
    gaps: list[float] = []
    async with aiohttp.ClientSession(headers=_AUTHORIZED, timeout=aiohttp.ClientTimeout(total=None)) as session:
        tasks = [asyncio.create_task(_read(session, url, number, gaps, model, tokens)) for number in range(streams)]
        await asyncio.wait([until])
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
    return gaps


async def _read(
    session: aiohttp.ClientSession, url: str, number: int, gaps: list[float], model: str, tokens: int
) -> None:
    ask = {"model": model, "prompt": f"stream {number}", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    while True:
        async with session.post(url + "/v1/completions", json=ask) as response:
            response.raise_for_status()
            last = None
            async for _ in response.content.iter_any():
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
