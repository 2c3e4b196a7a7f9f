"""Plays requests against an endpoint and keeps each one's outcome by its number, so that it can be compared with another run's."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from cli.bench.client import Client
from cli.bench.prompts import Prompts
from cli.bench.sample import Sample
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray


class Requests(Protocol):
    """Requests as columns; `arrivals_s` ascends (seconds from the start)."""

    @property
    def arrivals_s(self) -> FloatArray:
        """When each is sent."""
        ...

    @property
    def prompt_tokens(self) -> IntArray:
        """Of each."""
        ...

    @property
    def output_tokens(self) -> IntArray:
        """Of each."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """`samples` by the request's number; `elapsed_s` from the first arrival to the last end; `late_s` the most that the client itself was late."""

    samples: tuple[Sample, ...]
    elapsed_s: float
    late_s: float

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(sample.usage.output_tokens if sample.usage else sample.events for sample in self.samples)

    @property
    def failures(self) -> dict[str, int]:
        """How many failed, by how."""
        found: dict[str, int] = {}
        for sample in self.samples:
            if sample.failure is not None:
                found[sample.failure.label] = found.get(sample.failure.label, 0) + 1
        return found


async def open_loop(client: Client, prompts: Prompts, requests: Requests, run: str = "") -> Played:
    """Sends each request at its time, and waits until the last has ended. `run`: request ids are this and the request's number."""
    bodies = [prompts.body(int(p), int(o)) for p, o in zip(requests.prompt_tokens, requests.output_tokens, strict=True)]
    started, late_s, tasks = time.monotonic(), 0.0, []
    for number, (body, arrival_s) in enumerate(zip(bodies, requests.arrivals_s, strict=True)):
        await asyncio.sleep(max(0.0, started + arrival_s - time.monotonic()))
        late_s = max(late_s, time.monotonic() - started - arrival_s)
        tasks.append(asyncio.create_task(client.send(body, f"{run}{number}" if run else None)))
    samples = await asyncio.gather(*tasks)
    return Played(tuple(samples), time.monotonic() - started, late_s)


async def closed_loop(client: Client, prompts: Prompts, requests: Requests, clients: int, duration_s: float) -> float:
    """Requests a second that so many clients get through, the first and the last tenth of the time left out."""
    ended: list[float] = []
    started = time.monotonic()
    numbers = iter(range(1 << 62))

    async def one() -> None:
        while time.monotonic() - started < duration_s:
            number = next(numbers) % len(requests.prompt_tokens)
            await client.send(prompts.body(int(requests.prompt_tokens[number]), int(requests.output_tokens[number])))
            ended.append(time.monotonic() - started)

    await asyncio.gather(*(one() for _ in range(clients)))
    low, high = 0.1 * duration_s, 0.9 * duration_s
    return sum(low <= at < high for at in ended) / (high - low)
