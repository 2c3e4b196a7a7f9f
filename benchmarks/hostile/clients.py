"""The two clients: one that sends hostile bodies (or ordinary prompts), in a process of its own, and one that reads a
stream and notes the gaps between its pieces."""

import asyncio
import io
import json
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

MODEL = "demo"
STREAM_TOKENS = 8_000
_JSON = {"content-type": "application/json"}


@dataclass(slots=True)
class Sent:
    """What an attack got: bodies by status, and connections that broke."""

    statuses: Counter[int] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """By the limit that the answer names."""
    failed: dict[str, int] = field(default_factory=dict)
    """The status of each 5xx, by the body's name."""
    shapes: dict[str, int] = field(default_factory=dict)
    """The status of each shape; 0: the client went away."""
    lengths: list[tuple[int, int]] = field(default_factory=list)
    """Of each good answer: how many prompts it had, and their tokens that were not cached."""
    took_s: float = 0.0

    def add(self, more: "Sent") -> None:
        """Adds what another attack got."""
        self.statuses += more.statuses
        self.broken += more.broken
        self.refused += more.refused
        self.failed |= more.failed
        self.shapes |= more.shapes
        self.lengths += more.lengths


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies with these numbers of a run with that seed, and round `guided` of the shapes of structured output, but
    for those in `without`."""

    seed: int
    numbers: range
    maximum: int
    guided: int | None = None
    without: frozenset[str] = frozenset()
    patience_s: float = 60.0
    """The client goes away then: a body may ask for thousands of tokens."""

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        for number in self.numbers:
            draw = random.Random(f"{self.seed}/{number}")
            yield f"body-{number}", *body_of(draw, size_of(draw, self.maximum), MODEL)
        if self.guided is not None:
            for name, (path, body) in shapes(MODEL, self.guided).items():
                if name not in self.without:
                    yield name, path, body


_TOKEN_IDS = range(300, 4_000)
"""Of words, in the demo model."""


@dataclass(frozen=True, slots=True)
class Ordinary:
    """Completions with as many prompts, of as many tokens together, as `Sent.lengths` has: of drawn token ids, so that
    nothing of them is cached."""

    seed: str
    lengths: tuple[tuple[int, int], ...]
    patience_s: float = 60.0

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        draw = random.Random(self.seed)
        for number, (prompts, tokens) in enumerate(self.lengths):
            ids = [draw.choices(_TOKEN_IDS, k=max(1, tokens // prompts)) for _ in range(prompts)]
            body = {"model": MODEL, "prompt": ids, "max_tokens": 2}
            yield f"body-{number}", "/v1/completions", json.dumps(body).encode()


async def attack(url: str, bodies: Bodies | Ordinary) -> Sent:
    """Sends bodies one after the other, from another process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_attack, args=(there, url, bodies), daemon=True)
    process.start()
    there.close()
    sent: Sent = await asyncio.to_thread(here.recv)
    await asyncio.to_thread(process.join)  # it takes a while to end, and whoever watches streams is in this loop
    return sent


def _attack(pipe: Connection, url: str, bodies: Bodies | Ordinary) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pipe.send(runner.run(_send_all(url, bodies)))


async def _send_all(url: str, bodies: Bodies | Ordinary) -> Sent:
    sent, began = Sent(), time.monotonic()
    async with aiohttp.ClientSession(headers=_JSON, timeout=aiohttp.ClientTimeout(total=bodies.patience_s)) as session:
        for name, path, body in bodies:
            try:
                async with session.post(url + path, data=io.BytesIO(body)) as response:
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
    if status == 200 and (length := _length(answer)) is not None:
        sent.lengths.append(length)
    if status >= 500:
        sent.failed[name] = status
    elif found := re.search(rb"gateway\.limits\.(\w+)|levels; allowed", answer):
        sent.refused[(found[1] or b"levels").decode()] += 1


def _length(answer: bytes) -> tuple[int, int] | None:
    content = json.loads(answer)
    usage = content.get("usage") or {}
    tokens = usage.get("prompt_tokens") or usage.get("input_tokens")
    if tokens is None:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return len(content.get("choices") or "1"), tokens - (details.get("cached_tokens") or 0)


async def watch(url: str, until: "asyncio.Future[Any]") -> float:
    """Reads a stream until that is done, again when it ends. The longest gap between its pieces (seconds), without that
    before the first one."""
    gaps_s: list[float] = []
    async with aiohttp.ClientSession(headers=_JSON, timeout=aiohttp.ClientTimeout(total=None)) as session:
        reading = asyncio.create_task(_read(session, url, gaps_s))
        await asyncio.wait([until])
        reading.cancel()
        (result,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(result, Exception):
            raise result
    return max(gaps_s)


async def _read(session: aiohttp.ClientSession, url: str, gaps_s: list[float]) -> None:
    ask = {"model": MODEL, "prompt": "stream 0", "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True}
    while True:
        async with session.post(url + "/v1/completions", json=ask) as response:
            response.raise_for_status()
            last_s = None
            async for _ in response.content.iter_any():
                now_s = time.perf_counter()
                if last_s is not None:
                    gaps_s.append(now_s - last_s)
                last_s = now_s
