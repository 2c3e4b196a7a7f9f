"""The load of one run as arrays (how long each request is and, in an open loop, when it is sent), and the loops that
send it.

The closed loop is `concurrency` clients, each sending its next request when its last one ended. The open loop sends on
time, however many requests are still open: a slow server does not slow the arrivals down, and how late the client
itself was is recorded.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from cli.bench.answer import Sample
from cli.bench.client import BenchClient
from cli.bench.prompts import Prompts
from cli.bench.results import RunRecord
from planning.workload.arrivals import FloatArray, arrivals_within, poisson_arrivals
from planning.workload.changes import ChangeKind, TraceChange
from planning.workload.lengths import IntArray, Lengths
from planning.workload.trace import Trace

CYCLE = 8_192
"""Where the number of requests is not known before, this many lengths are drawn and used again and again."""


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """Lengths by request (used in a circle where more are sent), the times of an open loop, or the clients of a closed
    one. `changes`: what of a trace was changed or is not sent."""

    prompt_tokens: IntArray
    output_tokens: IntArray
    arrivals_s: FloatArray | None
    concurrency: int | None
    requests: int | None
    duration_s: float | None
    changes: tuple[TraceChange, ...] = ()

    def lengths(self, index: int) -> tuple[int, int]:
        """Prompt and output tokens of the request number `index`."""
        position = index % len(self.prompt_tokens)
        return int(self.prompt_tokens[position]), int(self.output_tokens[position])


def drawn_load(
    prompt: Lengths,
    output: Lengths,
    seed: int,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
) -> BenchLoad:
    """A load whose lengths are drawn from distributions: an open loop of `rate` requests a second, or a closed one of
    `concurrency` clients; so many `requests`, or all that fit into `duration_s`."""
    rng = np.random.default_rng([seed, 0])
    arrivals: FloatArray | None = None
    if rate is not None and duration_s is not None:
        arrivals = arrivals_within(rate, duration_s, rng)[:requests]
    elif rate is not None:
        arrivals = poisson_arrivals(rate, requests or 0, rng)
    count = len(arrivals) if arrivals is not None else requests or CYCLE
    return BenchLoad(prompt.sample(count, rng), output.sample(count, rng), arrivals, concurrency, requests, duration_s)


def traced_load(
    trace: Trace,
    seed: int,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
) -> BenchLoad:
    """A load with the lengths of a trace: at its own times unless there is a rate or a concurrency."""
    count = len(trace.arrived_s)
    requests = min(requests, count) if requests else count
    if concurrency is not None:
        arrivals = None
    elif rate is not None:
        arrivals = poisson_arrivals(rate, requests, np.random.default_rng([seed, 0]))
    else:
        arrivals = trace.arrived_s[:requests]
    if arrivals is not None and duration_s is not None:
        arrivals = arrivals[arrivals < duration_s]
    sent = requests if arrivals is None else len(arrivals)
    own_times = rate is None and concurrency is None
    how = "at a rate" if rate is not None else "by a number of clients"
    changes = trace.changed(
        TraceChange(ChangeKind.BEYOND_LIMIT, count - sent, count, f"not sent: the run is of {sent:,} requests"),
        TraceChange(ChangeKind.TIMES_REPLACED, 0 if own_times else sent, count, f"sent {how}, not at its own times"),
        trace.only_lengths(sent),
    ).changes
    return BenchLoad(trace.prompt_tokens, trace.output_tokens, arrivals, concurrency, requests, duration_s, changes)


async def run(
    client: BenchClient, prompts: Prompts, load: BenchLoad, record: RunRecord, stop: asyncio.Event | None = None
) -> None:
    """Sends the whole load and returns when the last request has ended. When `stop` is set, open requests are cut off
    and count as unfinished."""
    running = asyncio.create_task(_recorded(client, prompts, load, record))
    stopping = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        stopping.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
    if not running.cancelled():
        running.result()


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`samples` by the request's number; `elapsed_s` from the first arrival to the last end; `late_s` the most that the
    client itself was late."""

    samples: tuple[Sample, ...]
    elapsed_s: float
    late_s: float

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(sample.usage.output_tokens if sample.usage else sample.events for sample in self.samples)

    @property
    def failures(self) -> dict[str, int]:
        """The number of failed requests, by kind."""
        return dict(Counter(sample.failure.label for sample in self.samples if sample.failure is not None))


async def open_loop(client: BenchClient, prompts: Prompts, load: BenchLoad, run: str = "") -> LoadResult:
    """Sends each request of an open loop at its time; keeps its sample by its number, so that it can be compared with
    another run's.

    `run`: request ids are this and the request's number.
    """
    started, late_s, tasks = time.monotonic(), 0.0, []
    async for number, body, late in _on_time(prompts, load):
        late_s = max(late_s, late)
        tasks.append(asyncio.create_task(client.send(body, f"{run}{number}" if run else None)))
    samples = await asyncio.gather(*tasks)
    return LoadResult(tuple(samples), time.monotonic() - started, late_s)


async def closed_loop(client: BenchClient, prompts: Prompts, load: BenchLoad) -> FloatArray:
    """When each request of a closed loop was answered (seconds from the start), in that order."""
    ended: list[float] = []
    started = time.monotonic()

    async def send(index: int) -> None:
        if (await client.send(prompts.body(*load.lengths(index)))).failure is None:
            ended.append(time.monotonic() - started)

    await _in_circles(load, send)
    return np.array(ended)


async def _recorded(client: BenchClient, prompts: Prompts, load: BenchLoad, record: RunRecord) -> None:
    async def send(body: bytes) -> None:
        try:
            record.add(await client.send(body))
        except asyncio.CancelledError:
            record.unfinished += 1
            raise

    if load.concurrency is not None:
        await _in_circles(load, lambda index: send(prompts.body(*load.lengths(index))))
        return
    async with asyncio.TaskGroup() as requests:
        async for _, body, late_s in _on_time(prompts, load):
            record.late_s.append(late_s)
            requests.create_task(send(body))


async def _in_circles(load: BenchLoad, send: Callable[[int], Awaitable[None]]) -> None:
    """`concurrency` clients that share the numbers of the requests: 0, 1, 2, ..., for ever where the load has no number
    of requests."""
    deadline = None if load.duration_s is None else time.monotonic() + load.duration_s
    numbers = count() if load.requests is None else iter(range(load.requests))

    async def one_client() -> None:
        for number in numbers:
            if deadline is not None and time.monotonic() >= deadline:
                return
            await send(number)

    async with asyncio.TaskGroup() as clients:
        for _ in range(load.concurrency or 1):
            clients.create_task(one_client())


async def _on_time(prompts: Prompts, load: BenchLoad) -> AsyncIterator[tuple[int, bytes, float]]:
    """Each request of an open loop when it is due: its number, its body, and how late this client is (seconds)."""
    started = time.monotonic()
    for number, arrival_s in enumerate(load.arrivals_s if load.arrivals_s is not None else ()):
        body = prompts.body(*load.lengths(number))
        await asyncio.sleep(max(0.0, started + arrival_s - time.monotonic()))
        yield number, body, time.monotonic() - started - arrival_s
