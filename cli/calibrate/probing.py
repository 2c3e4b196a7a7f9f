"""Loads a private cell as a calibration wants it, and reads what its engines and its gateway wrote down."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cli.bench.client import Client
from cli.bench.load import CYCLE, Load
from cli.bench.prompts import Prompts, RequestOptions
from cli.bench.record import Record
from cli.bench.runner import play
from cli.bench.vocabulary import measure_vocabulary
from cli.private_cell import PrivateCell
from planning.costs.front import Around, Window, read_arounds
from planning.costs.probes import SHORT_PROMPT, Lengths, concurrencies, spread_lengths, traffic_lengths
from planning.costs.steps import EngineSteps, read_step_log
from planning.workload.arrivals import arrivals_within

_WARM_UP_S = 3.0
_ALONE_REQUESTS, _ALONE_PROMPT, _ALONE_OUTPUT = 60, 32, 8
_SETTLE_S = 1.5
"""The last ledgers are written a moment after their requests have ended."""
OPEN_LOADS = (0.5, 0.85)
"""Shares of the capacity at which requests come at random moments, to see what they take around the steps beside others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send: the model's limits, how long each level is held, and the traffic's lengths (None: unknown)."""

    model: str
    max_model_len: int
    max_num_seqs: int
    level_s: float
    traffic: Lengths | None

    def levels(self, replicas: int) -> list[int]:
        """Concurrencies."""
        return list(concurrencies(replicas, self.max_num_seqs))

    def spread(self, seed: int) -> Lengths:
        """Lengths over the whole context."""
        return spread_lengths(self.max_model_len, self.max_model_len, CYCLE, seed)

    def expected(self, seed: int) -> Lengths:
        """Those of the traffic, else short ones."""
        if self.traffic is None:
            return spread_lengths(self.max_model_len, SHORT_PROMPT, CYCLE, seed)
        return traffic_lengths(*self.traffic, CYCLE, seed)


@dataclass(frozen=True, slots=True)
class Probed:
    """What was seen: the engines' steps; what a request takes around them, alone at the median, and in `windows` beside others."""

    logs: tuple[EngineSteps, ...]
    alone_s: float
    windows: tuple[Window, ...]
    answered: int
    failed: int


class Probing:
    """One calibration on a private cell."""

    def __init__(self, cell: PrivateCell, client: Client, plan: Plan) -> None:
        self._cell = cell
        self._client = client
        self._plan = plan
        self._options = RequestOptions(plan.model, "completions", ignore_eos=True)
        self._record = Record()
        self._seed = 0

    async def run(self, told: Callable[[str, int], None]) -> Probed:
        """All of it. `told`: what is being done, and how many levels are done."""
        plan, replicas = self._plan, self._cell.replicas
        self._vocabulary = await measure_vocabulary(self._client, plan.model)
        levels = plan.levels(replicas)
        await self._play(self._closed(plan.expected(1_000), levels[-1], _WARM_UP_S), Record())
        alone_s = await self._alone()
        capacity = 0.0
        for number, clients in enumerate(levels):
            told(f"{clients} clients", number)
            half_s = plan.level_s / 2 * (2 if number >= len(levels) - 2 else 1)  # full engines take longer steps, and so fewer
            await self._play(self._closed(plan.spread(number), clients, half_s), self._record)
            ended = await self._play(self._closed(plan.expected(number), clients, half_s), Record())
            capacity = max(capacity, ended)
        windows = []
        for number, share in enumerate(OPEN_LOADS):
            told(f"open loop at {share:g} of {capacity:.1f} requests/s", len(levels) + number)
            windows.append(await self._open(share * capacity, number))
        logs = tuple(read_step_log(path) for path in sorted(self._cell.step_logs.glob("*.jsonl")))
        return Probed(logs, alone_s, tuple(windows), self._record.ok, self._record.failed)

    async def _alone(self) -> float:
        """What a request takes around the engine's steps: the gateway's account, and what its client sees beyond that, at the median."""
        record = Record()
        prompt, output = (np.full(1, tokens, dtype=np.int64) for tokens in (_ALONE_PROMPT, _ALONE_OUTPUT))
        told = await self._ledgers_of(Load(prompt, output, None, 1, _ALONE_REQUESTS, None), record)
        if not told:
            raise ValueError("no request of the calibration was answered")
        self._client_s = max(0.0, float(np.median(record.ttft_s.values) - np.median([one.ttft_s for one in told])))
        return float(np.median([one.around_s for one in told])) + self._client_s

    async def _open(self, rate: float, number: int) -> Window:
        plan = self._plan
        arrivals = arrivals_within(rate, 1.0, plan.level_s, np.random.default_rng(number))
        prompt, output = plan.expected(100 + number)
        load = Load(prompt, output, arrivals, None, len(arrivals), None)
        began_s = time.monotonic()
        told = await self._ledgers_of(load, self._record)
        ended_s = began_s + float(arrivals[-1])
        leases = sum(one.wall_s for one in told) / (ended_s - began_s) / self._cell.replicas  # Little's law
        return Window(began_s, ended_s, leases, tuple(Around(one.ttft_s, one.around_s + self._client_s, one.wall_s) for one in told))

    async def _ledgers_of(self, load: Load, record: Record) -> list[Around]:
        before = len(read_arounds(self._cell.trace_file))
        await self._play(load, record)
        await asyncio.sleep(_SETTLE_S)
        return read_arounds(self._cell.trace_file)[before:]

    async def _play(self, load: Load, record: Record) -> float:
        """Requests a second that were answered."""
        self._seed += 1
        await play(self._client, Prompts(self._vocabulary, self._options, self._seed), load, record)
        await self._cell.settled()
        return record.ok / record.elapsed_s if record.elapsed_s else 0.0

    @staticmethod
    def _closed(lengths: Lengths, clients: int, seconds: float) -> Load:
        return Load(*lengths, None, clients, None, seconds)
