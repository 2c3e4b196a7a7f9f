"""What `raylane calibrate` sends to a private cell, level by level, and what it reads afterwards.

Levels come from coarse to fine: when time is over, or Ctrl-C ends it, what was measured until then can be fitted.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cli.bench.client import BenchClient
from cli.bench.load import CYCLE, BenchLoad, run
from cli.bench.prompts import Prompts, RequestOptions, measure_vocabulary
from cli.bench.results import RunRecord
from cli.private_cell import PrivateCell
from planning.costs.calibration import Measurements
from planning.costs.front import Around, LoneRequest, ProbeWindow, read_arounds
from planning.costs.probes import SHORT_PROMPT, Lengths, coarse_to_fine, concurrencies, spread_lengths, traffic_lengths
from planning.costs.steps import read_step_log
from planning.workload.arrivals import arrivals_within

_WARM_UP_S = 3.0
_ALONE_REQUESTS, _ALONE_PROMPT, _ALONE_OUTPUT = 60, 32, 8
_SETTLE_S = 1.5
"""The last ledgers are written a moment after their requests have ended."""
OPEN_LOADS = (0.85, 0.5)
"""Shares of the capacity at which requests come at random moments, to see what they take around the steps beside
others."""
_OPEN_AFTER = 3
"""Closed levels that come before the first open loop: they show the capacity."""
_GRACE = 0.1
"""Of a closed loop's time, for the requests that are open at its end."""
MIN_LEVEL_S = 2.0
"""A shorter level shows little but its own beginning and end."""


@dataclass(frozen=True, slots=True)
class ProbeLevel:
    """A closed loop of so many clients, or an open loop at that share of the capacity; and its share of the time."""

    clients: int | None
    share: float | None
    weight: float

    def __str__(self) -> str:
        if self.clients is not None:
            return "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"open loop at {self.share:g} of the capacity"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to send: the model's limits, the traffic's lengths (None: unknown), and either how long each level is held
    or how long all of it may take."""

    model: str
    max_model_len: int
    max_num_seqs: int
    level_s: float | None
    budget_s: float
    traffic: Lengths | None

    def levels(self, replicas: int) -> list[ProbeLevel]:
        """In the order in which they are sent. Full engines take longer steps, so they get more time."""
        ascending = list(concurrencies(replicas, self.max_num_seqs))
        closed = [
            ProbeLevel(clients, None, 2.0 if clients in ascending[-2:] else 1.0)
            for clients in coarse_to_fine(ascending)
        ]
        high, low = (ProbeLevel(None, share, 1.0) for share in OPEN_LOADS)
        return [*closed[:_OPEN_AFTER], high, *closed[_OPEN_AFTER:], low]

    def spread(self, seed: int) -> Lengths:
        """Lengths over the whole context."""
        return spread_lengths(self.max_model_len, self.max_model_len, CYCLE, seed)

    def expected(self, seed: int) -> Lengths:
        """Those of the traffic, else short ones."""
        if self.traffic is None:
            return spread_lengths(self.max_model_len, SHORT_PROMPT, CYCLE, seed)
        return traffic_lengths(*self.traffic, CYCLE, seed)


class Probing:
    """One calibration on a cell of its own."""

    def __init__(self, cell: PrivateCell, client: BenchClient, plan: ProbePlan) -> None:
        self._cell = cell
        self._client = client
        self._plan = plan
        self._options = RequestOptions(plan.model, "completions", ignore_eos=True)
        self._record = RunRecord()
        self._seed = 0
        self._capacity = 0.0
        self._client_s = 0.0
        self._windows: list[ProbeWindow] = []

    async def run(self, reported: Callable[[str, int], None]) -> Measurements:
        """All of it, as far as time allows; Ctrl-C ends it early. `reported`: what is being done, and how many levels
        are done."""
        plan, began_s = self._plan, time.monotonic()
        levels = plan.levels(self._cell.replicas)
        self._vocabulary = await measure_vocabulary(self._client, plan.model)
        await self._run(self._closed(plan.expected(1_000), levels[0].clients or 1, _WARM_UP_S), RunRecord())
        reported("one request at a time", 0)
        alone_s, alone = await self._alone()
        skipped: list[str] = []
        try:
            for number, level in enumerate(levels):
                left_s = plan.budget_s - (time.monotonic() - began_s)
                share_s = left_s * level.weight / sum(one.weight for one in levels[number:])
                level_s = max(MIN_LEVEL_S, share_s) if plan.level_s is None else plan.level_s * level.weight
                if plan.level_s is None and left_s < MIN_LEVEL_S:
                    skipped.append(f"{level}: no time was left")
                    continue
                if level.clients is None and not self._capacity:
                    skipped.append(f"{level}: the capacity is not known (no request ended in time): allow more time")
                    continue
                reported(str(level), number)
                await self._level(level, level_s, number)
        except asyncio.CancelledError:
            skipped += [f"{level}: ended by hand" for level in levels[number:]]
            if task := asyncio.current_task():
                task.uncancel()
        logs = tuple(read_step_log(path) for path in sorted(self._cell.step_logs.glob("*.jsonl")))
        record = self._record
        return Measurements(logs, alone_s, alone, tuple(self._windows), record.ok, record.failed, tuple(skipped))

    async def _level(self, level: ProbeLevel, seconds: float, number: int) -> None:
        plan = self._plan
        if level.clients is None:
            self._windows.append(await self._open((level.share or 0.0) * self._capacity, seconds, number))
            return
        await self._run(self._closed(plan.spread(number), level.clients, seconds / 2), self._record)
        ended = await self._run(self._closed(plan.expected(number), level.clients, seconds / 2), RunRecord())
        self._capacity = max(self._capacity, ended)

    async def _alone(self) -> tuple[float, tuple[LoneRequest, ...]]:
        """What a request takes around the engine's steps: the gateway's account, and what its client sees beyond that,
        at the median."""
        prompts, before = Prompts(self._vocabulary, self._options, 0), await self._ledgers()
        alone, ttfts = [], []
        for _ in range(_ALONE_REQUESTS):
            sample = await self._client.send(prompts.body(_ALONE_PROMPT, _ALONE_OUTPUT))
            self._record.add(sample)
            if sample.ttft_s is not None:
                alone.append(LoneRequest(sample.sent_at, sample.sent_at + sample.ttft_s))
                ttfts.append(sample.ttft_s)
        await self._cell.settled()
        await asyncio.sleep(_SETTLE_S)
        reported = read_arounds(self._cell.trace_file)[before:]
        if not reported or not ttfts:
            raise ValueError("no request of the calibration was answered")
        self._client_s = max(0.0, float(np.median(ttfts) - np.median([one.ttft_s for one in reported])))
        return float(np.median([one.around_s for one in reported])) + self._client_s, tuple(alone)

    async def _open(self, rate: float, seconds: float, number: int) -> ProbeWindow:
        plan = self._plan
        arrivals = arrivals_within(rate, seconds, np.random.default_rng(number))
        prompt, output = plan.expected(100 + number)
        load = BenchLoad(prompt, output, arrivals, None, len(arrivals), None)
        before = await self._ledgers()
        began_s = time.monotonic()
        await self._run(load, self._record)
        await asyncio.sleep(_SETTLE_S)
        reported = read_arounds(self._cell.trace_file)[before:]
        ended_s = began_s + float(arrivals[-1])
        leases = sum(one.wall_s for one in reported) / (ended_s - began_s) / self._cell.replicas  # Little's law
        return ProbeWindow(
            began_s,
            ended_s,
            leases,
            tuple(Around(one.ttft_s, one.around_s + self._client_s, one.wall_s) for one in reported),
        )

    async def _ledgers(self) -> int:
        """How many are written, once those of the load before are."""
        await asyncio.sleep(_SETTLE_S)
        return len(read_arounds(self._cell.trace_file))

    async def _run(self, load: BenchLoad, record: RunRecord) -> float:
        """Requests a second that were answered. Where time is short, a closed loop's last requests are cut off: a full
        engine may take longer for those than for all before."""
        self._seed += 1
        stop = asyncio.Event()
        if self._plan.level_s is None and load.duration_s is not None:
            asyncio.get_running_loop().call_later((1 + _GRACE) * load.duration_s, stop.set)
        await run(self._client, Prompts(self._vocabulary, self._options, self._seed), load, record, stop)
        await self._cell.settled()
        return record.ok / record.elapsed_s if record.elapsed_s else 0.0

    @staticmethod
    def _closed(lengths: Lengths, clients: int, seconds: float) -> BenchLoad:
        return BenchLoad(*lengths, None, clients, None, seconds)
