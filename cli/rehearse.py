"""`raylane rehearse`: sends the same traffic to live engines and to the simulator, and publishes how wrong the
simulator is here."""

import asyncio
import datetime as dt
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from cli.bench.client import BenchClient, EndpointError
from cli.bench.prompts import measure_vocabulary
from cli.bench.run import allow_many_connections
from cli.console import console, fail, plain_table, progress_bar
from cli.option_groups import with_groups
from cli.options import (
    ModelName,
    PrivateCellOptions,
    SpecFile,
    check_outputs,
    chosen_model,
    replica_count,
    show_changes,
    tell_misfits,
)
from cli.private_cell import PrivateCell, PrivateCellError
from cli.rehearse_live import Lived, LiveRunner
from cluster.spec import ClusterSpec, Model
from deployments.decision_log import read_log
from deployments.decisions import LogError, Replay, replay
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.cost_model import CostModel, slowed
from deployments.engine_model.fits import limits_for
from deployments.scheduling.policy import binding_of, policy_of
from deployments.scheduling.recorder import SCHEDULING
from deployments.telemetry.published_error import AtLoad, Published, write_published
from planning.costs.steps import slowness
from planning.rehearsal import at_rate, compare, rehearsed, simulated_capacity, simulated_run
from planning.simulator.cell import CellSettings
from planning.simulator.workload import Workload
from planning.workload.traces import read_trace

_CAPACITY_S = 30.0
_WARM_UP = 200


@with_groups
def rehearse(
    spec_file: SpecFile,
    own_cell: PrivateCellOptions,
    trace: Annotated[
        Path, typer.Option(help="A trace. Only its second half is sent: a calibration may have seen the first.")
    ],
    costs: Annotated[Path, typer.Option(help="The cost file to test.")],
    out: Annotated[Path, typer.Option(help="Where to write the measured error.")],
    loads: Annotated[
        str, typer.Option(help="Loads, as shares of the live capacity, which is measured first.")
    ] = "0.5,0.9,1.2",
    runs: Annotated[int, typer.Option(min=1, max=20, help="Live runs of each load.")] = 3,
    seconds: Annotated[float, typer.Option(min=5, max=3_600, help="How long requests arrive in each run.")] = 60.0,
    model: ModelName = None,
) -> None:
    """Measure how far the simulator is off on this deployment: the same traffic, live (on free ports) and simulated."""
    spec, chosen = chosen_model(spec_file, model)
    cost, recorded = read_cost_file(costs), read_trace(trace)
    shares = _shares(loads)
    check_outputs(out=out)
    count = replica_count(chosen, own_cell.replicas)
    work = rehearsed(recorded, chosen.settings.max_model_len, own_cell.length_scale, spec.classes[0].ttft_ms / 1e3)
    show_changes(work.changes)
    work = work.tail(len(work) - len(work) // 2)
    binding = binding_of(spec)
    tell_misfits(spec, chosen, costs, cost)
    pool = spec.pool_of(chosen, spec.regions_of(chosen)[0])
    limits, patience_s = limits_for(chosen, pool, cost), spec.patience_s(spec.classes[0])
    settings = CellSettings(count, limits, policy_of(spec), binding, chosen.settings.max_model_len, patience_s)
    with tempfile.TemporaryDirectory(prefix="raylane-") as scratch:
        rehearsal = _Rehearsal(spec, chosen, settings, cost, work, own_cell.keep or Path(scratch))
        try:
            published = asyncio.run(rehearsal.run(shares, runs, seconds, own_cell.pin))
            replayed = rehearsal.replay()
        except (PrivateCellError, EndpointError, LogError, ValueError) as error:
            fail(str(error), hint="raylane doctor")
    _show(published)
    write_published(out, published)
    if replayed.difference is not None:
        fail(
            f"the live gateway's decisions differ from those of its scheduler on the same inputs: {replayed.difference}"
        )
    console.print(f"{replayed.inputs:,} live inputs replayed: {replayed.counted:,} placements, every decision the same")


def _shares(loads: str) -> list[float]:
    """The numbers of `--loads`."""
    try:
        shares = [float(text) for text in loads.split(",")]
    except ValueError:
        fail(f"--loads {loads!r}: allowed: numbers separated by commas, as in 0.5,0.9,1.2", code=2)
    if not all(0 < share <= 10 for share in shares):
        fail(f"--loads {loads!r}: allowed: shares above 0, up to 10", code=2)
    return shares


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """One rehearsal of a model."""

    spec: ClusterSpec
    model: Model
    settings: CellSettings
    costs: CostFile
    work: Workload
    folder: Path

    @property
    def lanes(self) -> tuple[str, ...]:
        return tuple(lane.name for lane in self.spec.lanes)

    async def run(self, shares: list[float], runs: int, seconds: float, pin: bool) -> Published:
        allow_many_connections()
        replicas = self.settings.replicas
        clients = 2 * replicas * self.settings.limits.sequences
        with progress_bar("starting", len(shares) * runs + 1) as tell:
            async with (
                PrivateCell(self.spec, self.model.name, replicas, self.folder) as cell,
                BenchClient(cell.url, "completions") as client,
            ):
                if pin:
                    await cell.pin()
                vocabulary = await measure_vocabulary(client, self.model.name)
                runner = LiveRunner(cell, client, vocabulary, self.model.name, self.lanes)
                tell("capacity", 0)
                cost = self.costs.cost_model()
                guess = simulated_capacity(self.settings, cost, self.work.head(20 * clients), clients)
                sample = self.work.head(max(int(guess * min(_CAPACITY_S, seconds)), 4 * clients))
                live = await runner.capacity(sample, clients, _WARM_UP)
                simulated = simulated_capacity(self.settings, cost, sample, clients)
                at_loads = await self._at_loads(runner, live, shares, runs, seconds, tell)
        costs = f"{self.costs.basis}: {self.costs.note}"
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return Published(
            model=self.model.name,
            replicas=replicas,
            costs=costs,
            measured_at=now,
            capacity_live=live,
            capacity_simulated=simulated,
            loads=tuple(at_loads),
        )

    def replay(self) -> Replay:
        """Feeds what the live scheduler was given to the same core, once the cell is down."""
        return replay(read_log(sorted((self.folder / "decisions").glob("*.log"))), (SCHEDULING,))

    async def _at_loads(
        self,
        runner: LiveRunner,
        capacity: float,
        shares: list[float],
        runs: int,
        seconds: float,
        tell: Callable[[str, float], None],
    ) -> list[AtLoad]:
        """The loads in turns, so that a machine that is slow for a while is slow for all of them."""
        works = [at_rate(self.work, share * capacity, seconds) for share in shares]
        lived: list[list[Lived]] = [[] for _ in shares]
        for number in range(runs):
            for index, (share, work) in enumerate(zip(shares, works, strict=True)):
                tell(f"{share:g} x capacity, run {number + 1} of {runs}", 1 + number * len(shares) + index)
                lived[index].append(await runner.run(work))
        found, cost = [], self.costs.cost_model()
        for share, work, repeats in zip(shares, works, lived, strict=True):
            tell(f"simulating {share:g} x capacity", len(shares) * runs)
            slow = [slowness(cost, runner.steps(run)) for run in repeats]
            ours = [self._simulated(run, slowed(cost, factor)) for run, factor in zip(repeats, slow, strict=True)]
            raw = [self._simulated(run, cost) for run in repeats]
            figures = tuple(compare([run.run.figures(self.lanes) for run in repeats], ours, raw))
            failed = sum(run.run.failed for run in repeats)
            found.append(
                AtLoad(load=share, runs=runs, slowness=tuple(slow), requests=len(work), failed=failed, figures=figures)
            )
        return found

    def _simulated(self, lived: Lived, cost: CostModel) -> dict[str, float]:
        return simulated_run(self.settings, cost, lived.work).figures(self.lanes)


def _show(published: Published) -> None:
    error = published.capacity_error
    live, simulated = published.capacity_live, published.capacity_simulated
    console.print(
        f"capacity: {live:.2f} requests/s live, {simulated:.2f} simulated ({error:+.1%}); costs {published.costs}"
    )
    for at in published.loads:
        slow = ", ".join(f"{factor:.2f}" for factor in at.slowness)
        title = (
            f"{at.load:g} x capacity: {at.requests} requests, {at.runs} live runs, {at.failed} failed; steps took "
            f"{slow} of their calibrated time"
        )
        columns = ("figure", "live ms", "simulated ms", "error", "at calibrated speed", "live spread", "bound", "")
        table = plain_table(*columns, left=1, title=title)
        for figure in at.figures:
            within = figure.within
            mark = "" if within is None else "[green]within[/]" if within else "[red]beyond[/]"
            bound = "" if figure.bound is None else f"{figure.bound:.0%}"
            times = (f"{1e3 * figure.live_s:.1f}", f"{1e3 * figure.simulated_s:.1f}")
            table.add_row(
                figure.name,
                *times,
                f"{figure.error:+.1%}",
                f"{figure.raw_error:+.1%}",
                f"{figure.spread:.1%}",
                bound,
                mark,
            )
        console.print(table)
    if not np.isfinite(published.worst) or not published.within:
        console.print(
            "[yellow]Some figures exceed their bounds: expect errors as large as those above when you simulate them.[/]"
        )
