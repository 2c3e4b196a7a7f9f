"""The two clients: one that sends hostile bodies, in a process of its own, and one that reads streams and notes the
gaps between their pieces."""

import asyncio
import io
import multiprocessing
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import uvloop

from benchmarks.hostile.bodies import body_of, size_of
from benchmarks.hostile.stack import CONTEXT, KEY, MODEL

_AUTHORIZED = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


@dataclass(slots=True)
class Sent:
    """What an attack got: bodies by status, the sizes by request id, and connections that broke."""

    statuses: Counter[int] = field(default_factory=Counter)
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    broken: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0


def body_number(seed: int, number: int, maximum: int) -> tuple[str, bytes]:
    """The path and the body number `number` of a run with that seed."""
    draw = random.Random(f"{seed}/{number}")
    return body_of(draw, size_of(draw, maximum), MODEL)


async def attack(url: str, seed: int, numbers: range, maximum: int) -> Sent:
    """Sends bodies one after the other, from another process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_attack, args=(there, url, seed, numbers, maximum), daemon=True)
    process.start()
    there.close()
    sent: Sent = await asyncio.to_thread(here.recv)
    await asyncio.to_thread(process.join)  # it takes a while to end, and whoever watches streams is in this loop
    return sent


def _attack(pipe: Connection, url: str, seed: int, numbers: range, maximum: int) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pipe.send(runner.run(_send_all(url, seed, numbers, maximum)))


async def _send_all(url: str, seed: int, numbers: range, maximum: int) -> Sent:
    sent, began = Sent(), time.monotonic()
    async with aiohttp.ClientSession(headers=_AUTHORIZED, timeout=aiohttp.ClientTimeout(total=60)) as session:
        for number in numbers:
            path, body = body_number(seed, number, maximum)
            name = f"body-{number}"
            sent.sizes[name] = (path, len(body))
            try:
                async with session.post(url + path, data=io.BytesIO(body), headers={"x-request-id": name}) as response:
                    await response.read()
                    sent.statuses[response.status] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                sent.broken[type(error).__name__] += 1
    sent.took_s = time.monotonic() - began
    return sent


async def watch(url: str, streams: int, until: "asyncio.Future[Any]") -> list[float]:
    """Reads so many streams until that is done. The gaps between their pieces (seconds), without those before the first
    piece of each."""
    gaps: list[float] = []
    async with aiohttp.ClientSession(headers=_AUTHORIZED, timeout=aiohttp.ClientTimeout(total=None)) as session:
        tasks = [asyncio.create_task(_read(session, url, number, gaps)) for number in range(streams)]
        await asyncio.wait([until])
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
    return gaps


async def _read(session: aiohttp.ClientSession, url: str, number: int, gaps: list[float]) -> None:
    ask = {"model": MODEL, "prompt": f"stream {number}", "max_tokens": CONTEXT // 8, "ignore_eos": True, "stream": True}
    async with session.post(url + "/v1/completions", json=ask) as response:
        response.raise_for_status()
        last = None
        async for _ in response.content.iter_any():
            now = time.perf_counter()
            if last is not None:
                gaps.append(now - last)
            last = now
    raise RuntimeError(f"stream {number} ended")
