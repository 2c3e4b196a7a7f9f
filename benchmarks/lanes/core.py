"""How long the scheduler takes to decide, alone, on one core: `python -m benchmarks.lanes.core`.

A cell in its steady state: every replica is full, as many requests wait as asked for, and for each that ends one is
placed and one arrives. Timed is all that the core does for a request: submit, step, first token, release, and learning
from the engine's account. Both sides, the lanes and one first-in-first-out lane, take turns.
"""

import random
import statistics
import time
from collections import deque
from typing import Annotated

import typer

from benchmarks.harness import JsonFile, console, in_turns, plain_table, write_json
from deployments.garbage import calm_garbage_collector
from deployments.scheduling import (
    Capacity,
    Ending,
    LanePolicy,
    Lease,
    Order,
    Request,
    Scheduler,
    SchedulingPolicy,
    Usage,
)

_CAPACITY = Capacity(sequences=32, ahead=8, kv_tokens=400_000, step_tokens=8_192, prefill_steps=2.0)
_LANES = (
    LanePolicy("short", 512, weight=8, max_wait_s=1e6, cap_s=1e9),
    LanePolicy("medium", 4_096, weight=3, max_wait_s=1e6, cap_s=1e9),
    LanePolicy("long", None, weight=1, max_wait_s=1e6, cap_s=1e9),
)
_SIDES = {
    "lanes": SchedulingPolicy(_LANES, max_waiting=10_000_000),
    "fifo": SchedulingPolicy(
        (LanePolicy("all", None, max_wait_s=1e6, cap_s=1e9),), order=Order.ARRIVAL, max_waiting=10_000_000
    ),
}
_TENANTS = 50
_SIZES = ((100, 10_000), (1_000, 100_000))
_USAGE = Usage(400, 0, 120, 0, 1, 0.05, 2.0)
TURN_S = 0.0005
_PREFILLING = 0.1
"""The share of the replicas' leases whose prompt is still prefilled."""


class SteadyScheduler:
    """One scheduler in its steady state."""

    def __init__(self, policy: SchedulingPolicy, replicas: int, waiting: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._scheduler = Scheduler(policy)
        self._now = 0.0
        self._waiting = waiting
        self._made = 0
        self._drawn: deque[Request] = deque()
        self._live: list[Lease] = []
        self._prefilling: deque[Lease] = deque()
        self._max_prefilling = max(1, int(replicas * _CAPACITY.sequences * _PREFILLING))
        for number in range(replicas):
            self._scheduler.replica_up(f"replica-{number:04}", _CAPACITY, 0.0)
        while len(self._scheduler.lanes.jobs) < waiting:
            self._submit()
            self._step()
            while (
                self._prefilling
                and len(self._scheduler.lanes.jobs) > 0
                and len(self._live) < replicas * (_CAPACITY.sequences + _CAPACITY.ahead)
            ):
                self._scheduler.first_token(self._prefilling.popleft(), self._now)
                self._step()

    def run(self, requests: int) -> float:
        """Microseconds of CPU time a request. What arrives is drawn before, and not timed."""
        self._drawn.extend(self._draw(self._now + TURN_S * (turn + 1)) for turn in range(requests + 64))
        ends = [self._random.random() for _ in range(requests)]
        began = time.process_time()
        for end in ends:
            self._turn(end)
        took_s = time.process_time() - began
        self._drawn.clear()
        return 1e6 * took_s / requests

    @property
    def state(self) -> tuple[int, int]:
        """Requests that wait, and leases."""
        return len(self._scheduler.lanes.jobs), len(self._scheduler.leases)

    def _turn(self, end: float) -> None:
        self._now += TURN_S
        live = self._live
        position = int(end * len(live))
        live[position], live[-1] = live[-1], live[position]
        lease = live.pop()
        self._scheduler.release(lease, Ending.FINISHED, _USAGE, self._now)
        self._step()
        while len(self._scheduler.lanes.jobs) < self._waiting:
            self._submit()
        self._step()
        while len(self._prefilling) > self._max_prefilling:
            self._scheduler.first_token(self._prefilling.popleft(), self._now)
            self._step()

    def _submit(self) -> None:
        self._scheduler.submit(self._drawn.popleft() if self._drawn else self._draw(self._now), self._now)

    def _draw(self, now: float) -> Request:
        self._made += 1
        draw = self._random
        prompt = min(60_000, int(draw.lognormvariate(6.0, 1.6)) + 1)
        name, tenant = f"request-{self._made}", f"tenant-{draw.randrange(_TENANTS)}"
        return Request(name, prompt, draw.choice((64, 256, 1_024)), now, now + 2.0, now + 1e6, tenant=tenant)

    def _step(self) -> None:
        for placement in self._scheduler.step(self._now).placements:
            self._live.append(placement.lease)
            self._prefilling.append(placement.lease)


def measure(replicas: int, waiting: int, rounds: int, requests: int) -> dict[str, list[float]]:
    """Microseconds a request, by side and round; the sides take turns."""
    cells = {name: SteadyScheduler(policy, replicas, waiting, seed=1) for name, policy in _SIDES.items()}
    us: dict[str, list[float]] = {name: [] for name in _SIDES}
    calm_garbage_collector()  # as the gateway does
    for number in range(rounds):
        for name in in_turns(sorted(cells), number):
            us[name].append(cells[name].run(requests))
    return us


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each side.")] = 9,
    requests: Annotated[int, typer.Option(min=100, help="Requests in a round.")] = 3_000,
    json_file: JsonFile = None,
) -> None:
    """Time the scheduling core at scale, lanes against first-in-first-out."""
    results = []
    columns = ("replicas", "waiting", "lanes µs", "fifo µs", "lanes / fifo")
    table = plain_table("CPU time of all decisions for one request (median of the rounds)", *columns, left=0)
    for replicas, waiting in _SIZES:
        console.print(f"{replicas} replicas, {waiting} waiting ...")
        us = measure(replicas, waiting, rounds, requests)
        lanes, fifo = (statistics.median(us[side]) for side in ("lanes", "fifo"))
        table.add_row(f"{replicas:,}", f"{waiting:,}", f"{lanes:.1f}", f"{fifo:.1f}", f"{lanes / fifo:.2f}")
        results.append({"replicas": replicas, "waiting": waiting, "us": us})
    console.print(table)
    write_json({"results": results}, json_file)


if __name__ == "__main__":
    typer.run(main)
