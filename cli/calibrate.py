"""`raylane calibrate`: what the steps of a spec's engine cost on this machine, measured in a few minutes and written as
a cost file.

It loads a private cell with requests of many lengths at growing concurrency, and reads what its engines and its gateway
wrote down.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from cli.bench.client import BenchClient, EndpointError
from cli.bench.load import CYCLE, BenchLoad, run
from cli.bench.prompts import Prompts, RequestOptions, measure_vocabulary
from cli.bench.record import RunRecord
from cli.bench.run import allow_many_connections
from cli.console import console, fail
from cli.options import check_outputs, chosen_model, replica_count, show_changes
from cli.private_cell import PinError, PrivateCell
from cli.server_process import ServerError
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.fits import async_scheduling
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.front import Around, LedgerError, ProbeWindow, front_and_back, read_arounds
from planning.costs.probes import SHORT_PROMPT, Lengths, concurrencies, spread_lengths, traffic_lengths
from planning.costs.step_fit import Fitted, fit_steps
from planning.costs.steps import EngineSteps, StepLogError, read_step_log, samples
from planning.rehearsal import rehearsed
from planning.workload.arrivals import arrivals_within
from planning.workload.trace import TraceError
from planning.workload.traces import read_trace

_WARM_UP_S = 3.0
_ALONE_REQUESTS, _ALONE_PROMPT, _ALONE_OUTPUT = 60, 32, 8
_SETTLE_S = 1.5
"""The last ledgers are written a moment after their requests have ended."""
OPEN_LOADS = (0.5, 0.85)
"""Shares of the capacity at which requests come at random moments, to see what they take around the steps beside
others."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
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
    """What was seen: the engines' steps; what a request takes around them, alone at the median, and in `windows` beside
    others."""

    logs: tuple[EngineSteps, ...]
    alone_s: float
    windows: tuple[ProbeWindow, ...]
    answered: int
    failed: int


class Probing:
    """One calibration on a private cell."""

    def __init__(self, cell: PrivateCell, client: BenchClient, plan: ProbePlan) -> None:
        self._cell = cell
        self._client = client
        self._plan = plan
        self._options = RequestOptions(plan.model, "completions", ignore_eos=True)
        self._record = RunRecord()
        self._seed = 0

    async def run(self, reported: Callable[[str, int], None]) -> Probed:
        """All of it. `reported`: what is being done, and how many levels are done."""
        plan, replicas = self._plan, self._cell.replicas
        self._vocabulary = await measure_vocabulary(self._client, plan.model)
        levels = plan.levels(replicas)
        await self._run(self._closed(plan.expected(1_000), levels[-1], _WARM_UP_S), RunRecord())
        alone_s = await self._alone()
        capacity = 0.0
        for number, clients in enumerate(levels):
            reported(f"{clients} clients", number)
            half_s = (
                plan.level_s / 2 * (2 if number >= len(levels) - 2 else 1)
            )  # full engines take longer steps, and so fewer
            await self._run(self._closed(plan.spread(number), clients, half_s), self._record)
            ended = await self._run(self._closed(plan.expected(number), clients, half_s), RunRecord())
            capacity = max(capacity, ended)
        windows = []
        for number, share in enumerate(OPEN_LOADS):
            reported(f"open loop at {share:g} of {capacity:.1f} requests/s", len(levels) + number)
            windows.append(await self._open(share * capacity, number))
        logs = tuple(read_step_log(path) for path in sorted(self._cell.step_logs.glob("*.jsonl")))
        return Probed(logs, alone_s, tuple(windows), self._record.ok, self._record.failed)

    async def _alone(self) -> float:
        """What a request takes around the engine's steps: the gateway's account, and what its client sees beyond that,
        at the median."""
        record = RunRecord()
        prompt, output = (np.full(1, tokens, dtype=np.int64) for tokens in (_ALONE_PROMPT, _ALONE_OUTPUT))
        reported = await self._ledgers_of(BenchLoad(prompt, output, None, 1, _ALONE_REQUESTS, None), record)
        if not reported:
            raise ValueError("no request of the calibration was answered")
        self._client_s = max(0.0, float(np.median(record.ttft_s.values) - np.median([one.ttft_s for one in reported])))
        return float(np.median([one.around_s for one in reported])) + self._client_s

    async def _open(self, rate: float, number: int) -> ProbeWindow:
        plan = self._plan
        arrivals = arrivals_within(rate, 1.0, plan.level_s, np.random.default_rng(number))
        prompt, output = plan.expected(100 + number)
        load = BenchLoad(prompt, output, arrivals, None, len(arrivals), None)
        began_s = time.monotonic()
        reported = await self._ledgers_of(load, self._record)
        ended_s = began_s + float(arrivals[-1])
        leases = sum(one.wall_s for one in reported) / (ended_s - began_s) / self._cell.replicas  # Little's law
        return ProbeWindow(
            began_s,
            ended_s,
            leases,
            tuple(Around(one.ttft_s, one.around_s + self._client_s, one.wall_s) for one in reported),
        )

    async def _ledgers_of(self, load: BenchLoad, record: RunRecord) -> list[Around]:
        before = len(read_arounds(self._cell.trace_file))
        await self._run(load, record)
        await asyncio.sleep(_SETTLE_S)
        return read_arounds(self._cell.trace_file)[before:]

    async def _run(self, load: BenchLoad, record: RunRecord) -> float:
        """Requests a second that were answered."""
        self._seed += 1
        await run(self._client, Prompts(self._vocabulary, self._options, self._seed), load, record)
        await self._cell.settled()
        return record.ok / record.elapsed_s if record.elapsed_s else 0.0

    @staticmethod
    def _closed(lengths: Lengths, clients: int, seconds: float) -> BenchLoad:
        return BenchLoad(*lengths, None, clients, None, seconds)


def calibrate(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec.")],
    out: Annotated[Path, typer.Option(help="Where to write the cost file.")],
    model: Annotated[str | None, typer.Option(help="The model. Default: the spec's first.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=64, help="Replicas to run and load at once. Default: the spec's count.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Expected traffic: half of the requests get lengths from its first half.")
    ] = None,
    length_scale: Annotated[
        float,
        typer.Option(
            min=1e-3,
            max=1.0,
            help="Multiply the trace's lengths. Reduced if the longest request would not fit the context.",
        ),
    ] = 1.0,
    seconds: Annotated[float, typer.Option(min=2, max=600, help="How long to hold each level of concurrency.")] = 16.0,
    pin: Annotated[
        bool, typer.Option("--pin", help="Give each replica a core of its own, and everything else the rest.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the step logs and the ledger in this folder.")] = None,
) -> None:
    """Measure an engine's step costs on this machine: start the model on free ports, load it, stop it."""
    spec, chosen = chosen_model(spec_file, model)
    check_outputs(out=out)
    count = replica_count(chosen, replicas)
    settings = chosen.settings
    try:
        traffic = None if trace is None else _traffic(trace, settings.max_model_len, length_scale)
    except TraceError as error:
        fail(f"--trace: {error}", code=2)
    plan = ProbePlan(chosen.name, settings.max_model_len, settings.max_num_seqs, seconds, traffic)
    with tempfile.TemporaryDirectory(prefix="raylane-") as scratch:
        try:
            probed = asyncio.run(_measure(spec, plan, count, keep or Path(scratch), pin))
            gpu = spec.pool_of(chosen, spec.regions_of(chosen)[0]).accelerator != "cpu"
            _write(chosen, gpu, count, probed, out, pin)
        except (ServerError, PinError, EndpointError, StepLogError, LedgerError, ValueError) as error:
            fail(str(error), hint="raylane doctor")


def _traffic(trace: Path, max_model_len: int, length_scale: float) -> Lengths:
    """Of the first half: a rehearsal runs the second."""
    work = rehearsed(read_trace(trace), max_model_len, length_scale, 1.0)
    show_changes(work.changes)
    half = work.head(max(1, len(work) // 2))
    return half.prompt_tokens, half.output_tokens


async def _measure(spec: ClusterSpec, plan: ProbePlan, replicas: int, folder: Path, pin: bool) -> Probed:
    allow_many_connections()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(
            f"starting {replicas} replica(s) of {plan.model}", total=len(plan.levels(replicas)) + len(OPEN_LOADS)
        )
        async with (
            PrivateCell(spec, plan.model, replicas, folder) as cell,
            BenchClient(cell.url, "completions") as client,
        ):
            if pin:
                await cell.pin()
            return await Probing(cell, client, plan).run(
                lambda text, done: progress.update(task, description=text, completed=done)
            )


def _write(model: Model, gpu: bool, replicas: int, probed: Probed, out: Path, pin: bool) -> None:
    fitted = fit_steps([sample for log in probed.logs for sample in samples(log)])
    facts = probed.logs[0].facts
    front, back_s = front_and_back(probed.alone_s, probed.windows, probed.logs)
    costs = CostModel(fitted.model.dense, fitted.model.sequence, fitted.model.attention, front, back_s)
    limits = EngineModelLimits(
        facts.max_num_seqs,
        facts.max_num_batched_tokens,
        facts.kv_tokens,
        facts.block_tokens,
        async_scheduling=async_scheduling(model, gpu),
    )
    note = f"{fitted.samples} steps of {replicas} replica(s) on one machine, all loaded" + (
        ", each pinned to a core" if pin else ""
    )
    try:
        write_cost_file(out, cost_file(model.name, "this machine", "measured", limits, costs, fitted.error, note))
    except OSError as error:
        fail(f"--out {out}: cannot be written: {error.strerror}")
    _tell(out, probed, fitted, costs)


def _tell(out: Path, probed: Probed, fitted: Fitted, costs: CostModel) -> None:
    if probed.failed:
        console.print(
            f"[yellow]{probed.failed} of {probed.answered + probed.failed} requests failed; their steps are counted as "
            "well[/]"
        )
    console.print(
        f"{out}: {fitted.samples:,} steps; off by {fitted.error:.1%} for a single step on average, by "
        f"{fitted.bias:+.1%} for their sum"
    )
    front = ", ".join(
        f"{1e3 * seconds:.1f} ms beside {leases:.0f}"
        for leases, seconds in list(zip(costs.front.at, costs.front.value, strict=True))[:-1]
    )
    console.print(
        f"overhead of a request: {front} before its first step, {1e3 * costs.back_s:.1f} ms after its last one"
    )
