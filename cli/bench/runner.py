"""Plays a load against an endpoint and records what came back.

The closed loop is `concurrency` clients, each sending its next request when its last one ended. The open loop sends on time, however many
requests are still open: a slow server does not slow the arrivals down, and how late the client itself was is recorded. `command.py` and
`benchmarks.serving` call `play`; the latter in turns against several endpoints.
"""

import asyncio
import time
from collections.abc import Iterator

from cli.bench.client import Client
from cli.bench.load import Load
from cli.bench.prompts import Prompts
from cli.bench.record import Record


async def play(client: Client, prompts: Prompts, load: Load, record: Record, stop: asyncio.Event | None = None) -> None:
    """Sends the whole load and returns when the last request has ended. When `stop` is set, open requests are cut off and count as unfinished."""
    loop = _open_loop if load.concurrency is None else _closed_loop
    playing = asyncio.create_task(loop(client, prompts, load, record))
    stopping = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait([playing, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        playing.cancel()
        stopping.cancel()
        await asyncio.gather(playing, stopping, return_exceptions=True)
    if not playing.cancelled():
        playing.result()


async def _closed_loop(client: Client, prompts: Prompts, load: Load, record: Record) -> None:
    deadline = None if load.duration_s is None else time.monotonic() + load.duration_s
    indices = _indices(load.requests)

    async def one_client() -> None:
        for index in indices:
            if deadline is not None and time.monotonic() >= deadline:
                return
            await _one(client, prompts.body(*load.lengths(index)), record)

    async with asyncio.TaskGroup() as clients:
        for _ in range(load.concurrency or 1):
            clients.create_task(one_client())


async def _open_loop(client: Client, prompts: Prompts, load: Load, record: Record) -> None:
    started = time.monotonic()
    async with asyncio.TaskGroup() as requests:
        for index, arrival_s in enumerate(load.arrivals_s if load.arrivals_s is not None else ()):
            body = prompts.body(*load.lengths(index))
            await asyncio.sleep(max(0.0, started + arrival_s - time.monotonic()))
            record.late_s.add(time.monotonic() - started - arrival_s)
            requests.create_task(_one(client, body, record))


async def _one(client: Client, body: bytes, record: Record) -> None:
    try:
        record.add(await client.send(body))
    except asyncio.CancelledError:
        record.unfinished += 1
        raise


def _indices(requests: int | None) -> Iterator[int]:
    """0, 1, 2, ... shared by all clients of a closed loop, for ever where the number of requests is open."""
    index = 0
    while requests is None or index < requests:
        yield index
        index += 1
