"""The live side of a rehearsal: sends requests to a private cell, and puts the gateway's ledger beside what the client
saw."""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cli.bench.client import BenchClient
from cli.bench.load import BenchLoad, LoadResult, closed_loop, open_loop
from cli.bench.prompts import Prompts, RequestOptions, Vocabulary
from cli.private_cell import PrivateCell
from deployments.telemetry.verdicts import RequestVerdict
from planning.costs.steps import StepSample, read_step_log, samples
from planning.rehearsal import QUANTILES, RehearsalRun, label, throughput
from planning.simulator.workload import Workload
from planning.workload.arrivals import FloatArray


@dataclass(frozen=True, slots=True)
class Lived:
    """A live run, and when it was (monotonic clock). `work`: its requests at the times at which they were sent."""

    run: RehearsalRun
    work: Workload
    began_s: float
    ended_s: float


class LiveRunner:
    """Runs on one cell. `lanes` are the spec's, in order."""

    def __init__(
        self, cell: PrivateCell, client: BenchClient, vocabulary: Vocabulary, model: str, lanes: tuple[str, ...]
    ) -> None:
        self._cell = cell
        self._client = client
        self._vocabulary = vocabulary
        self._options = RequestOptions(model, "completions", ignore_eos=True)
        self._lanes = lanes
        self._runs = 0

    async def capacity(self, work: Workload, clients: int, warm_up: int) -> float:
        """Requests a second that so many clients in a closed loop get through, after at most `warm_up` requests that do
        not count."""
        await self._closed(work, clients, min(warm_up, len(work)))
        return throughput(await self._closed(work, clients, len(work)))

    async def run(self, work: Workload) -> Lived:
        """One run of the workload at its times, with prompts of its own."""
        began_s = time.monotonic()
        self._runs += 1
        name = f"rehearsal-{self._runs}-"
        load = BenchLoad(work.prompt_tokens, work.output_tokens, work.arrived_s, None, len(work), None)
        outcome = await open_loop(self._client, self._prompts(), load, name)
        await self._cell.settled()
        ended_s = time.monotonic()
        await asyncio.sleep(1.5)  # the last ledgers are written a moment after
        run = live_run(outcome, _ledger(self._cell.trace_file, name), self._lanes)
        return Lived(run, as_sent(work, outcome), began_s, ended_s)

    def steps(self, lived: Lived) -> list[StepSample]:
        """The engines' steps of a run."""
        logs = (read_step_log(path) for path in sorted(self._cell.step_logs.glob("*.jsonl")))
        return [sample for log in logs for sample in samples(log.within(lived.began_s, lived.ended_s))]

    def _prompts(self) -> Prompts:
        return Prompts(self._vocabulary, self._options, self._runs)

    async def _closed(self, work: Workload, clients: int, count: int) -> FloatArray:
        """When each request ended."""
        self._runs += 1
        ended = await closed_loop(
            self._client, self._prompts(), BenchLoad(work.prompt_tokens, work.output_tokens, None, clients, count, None)
        )
        await self._cell.settled()
        return ended


def _ledger(path: Path, name: str) -> dict[int, dict[str, Any]]:
    """The lines of one run by the request's number."""
    rows = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if entry["request_id"].startswith(name):
                rows[int(entry["request_id"].removeprefix(name))] = entry
    return rows


def as_sent(work: Workload, outcome: LoadResult) -> Workload:
    """The same requests when the client sent them: a busy client is late."""
    sent_s = np.array([sample.sent_at for sample in outcome.samples])
    return work.at(np.maximum.accumulate(sent_s - sent_s[0]))


def live_run(outcome: LoadResult, ledger: dict[int, dict[str, Any]], lanes: tuple[str, ...]) -> RehearsalRun:
    """What the client saw, with the gateway's ledger (its lines by the request's number)."""
    count, gaps = len(outcome.samples), [np.empty(0)]
    columns = {name: np.full(count, np.nan) for name in ("ttft", "lane", "engine", "decode")}
    lane, queued = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    for number, sample in enumerate(outcome.samples):
        if sample.failure is not None or sample.ttft_s is None:
            continue
        columns["ttft"][number] = sample.ttft_s
        gaps.append(sample.gaps_s)
        entry = ledger.get(number)
        if entry is None:
            continue
        stages: dict[str, float] = entry["stages_s"]
        columns["lane"][number] = stages["lane"]
        columns["engine"][number] = sum(
            stages.get(name, 0.0) for name in ("connect", "engine_http", "engine_queue", "prefill", "engine")
        )
        columns["decode"][number] = stages.get("decode", 0.0)
        lane[number] = lanes.index(str(entry["lane"])) if entry["lane"] in lanes else -1
        queued[number] = any(decision["verdict"] == RequestVerdict.QUEUED for decision in entry["decisions"])
    itl_s, itl = np.concatenate(gaps), dict[str, float]()
    if len(itl_s):
        itl = {label(level): float(np.quantile(itl_s, level)) for level in QUANTILES} | {"mean": float(itl_s.mean())}
    ttft = columns.pop("ttft")
    return RehearsalRun(ttft, columns, lane, itl, sum(outcome.failures.values()), queued)
