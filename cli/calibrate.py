"""`raylane calibrate`: what the steps of a spec's engine cost on this machine, measured in a few minutes and written as
a cost file.

It loads a private cell with requests of many lengths at many concurrencies, and reads what its engines and its gateway
wrote down.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import TimeElapsedColumn, TimeRemainingColumn

from cli.bench.client import BenchClient, EndpointError
from cli.bench.run import allow_many_connections
from cli.console import console, fail, progress_bar
from cli.option_groups import with_groups
from cli.options import (
    ModelName,
    PrivateCellOptions,
    SpecFile,
    check_outputs,
    chosen_model,
    replica_count,
    show_changes,
)
from cli.private_cell import PrivateCell, PrivateCellError
from cli.probing import ProbePlan, Probing
from cluster.artifacts import ArtifactError
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CalibrationRecord, read_cost_file, write_cost_file
from deployments.engine_model.cost_model import Chunk
from planning.costs.calibration import Calibration, LoneKernels, Measurements, calibration
from planning.costs.front import LedgerError
from planning.costs.host import NO_HOST
from planning.costs.probes import Lengths
from planning.costs.roofline import roofline
from planning.costs.steps import StepLogError
from planning.fit.architecture import read_architecture
from planning.fit.memory import plan_of
from planning.fit.of_spec import config_of
from planning.rehearsal import rehearsed
from planning.workload.traces import read_trace

GPU_MINUTES = 10.0
CPU_LEVEL_S = 16.0


@dataclass(frozen=True, slots=True)
class CalibrateTask:
    """What to measure: a model of a spec, on so many replicas, each on a core of its own where `pin` says so."""

    spec: ClusterSpec
    model: Model
    replicas: int
    pin: bool

    @property
    def accelerator(self) -> str:
        """Of the model's pool."""
        return self.spec.pool_of(self.model, self.spec.regions_of(self.model)[0]).accelerator

    @property
    def gpu(self) -> bool:
        """Whether the engine is on a GPU; of a simulated one, its costs tell."""
        if self.model.simulated is None:
            return self.accelerator != "cpu"
        return read_cost_file(Path(self.model.simulated.costs)).of_gpu


@with_groups
def calibrate(
    spec_file: SpecFile,
    own_cell: PrivateCellOptions,
    out: Annotated[Path, typer.Option(help="Where to write the cost file.")],
    model: ModelName = None,
    trace: Annotated[
        Path | None, typer.Option(help="Expected traffic: half of the requests get lengths from its first half.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.5, max=240, help="How long to measure once the model has started. Default on GPUs: 10."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=2, max=600, help="Instead of --minutes: how long to hold each level. Default on a CPU: 16."),
    ] = None,
) -> None:
    """Measure an engine's step costs on this machine: start the model on free ports, load it, stop it."""
    if minutes is not None and seconds is not None:
        fail("--minutes and --seconds: allowed: one of them", code=2)
    spec, chosen = chosen_model(spec_file, model)
    check_outputs(out=out)
    task = CalibrateTask(spec, chosen, replica_count(chosen, own_cell.replicas), own_cell.pin)
    settings = chosen.settings
    traffic = None if trace is None else _traffic(trace, settings.max_model_len, own_cell.length_scale)
    level_s = seconds or (None if minutes or task.gpu else CPU_LEVEL_S)
    budget_s = 60 * (minutes or GPU_MINUTES)
    plan = ProbePlan(chosen.name, settings.max_model_len, settings.max_num_seqs, level_s, budget_s, traffic)
    with tempfile.TemporaryDirectory(prefix="raylane-") as scratch:
        try:
            measured = asyncio.run(_measure(task, plan, own_cell.keep or Path(scratch)))
            found = calibration(chosen, task.gpu, measured, _note(task), _kernels(task))
        except (PrivateCellError, EndpointError, StepLogError, LedgerError, ValueError) as error:
            fail(str(error), hint="raylane doctor")
    write_cost_file(out, found.file)
    _show(out, measured, found)


def _traffic(trace: Path, max_model_len: int, length_scale: float) -> Lengths:
    """Of the first half: a rehearsal runs the second."""
    work = rehearsed(read_trace(trace), max_model_len, length_scale, 1.0)
    show_changes(work.changes)
    half = work.head(max(1, len(work) // 2))
    return half.prompt_tokens, half.output_tokens


async def _measure(task: CalibrateTask, plan: ProbePlan, folder: Path) -> Measurements:
    allow_many_connections()
    text, levels = f"starting {task.replicas} replica(s) of {plan.model}", len(plan.levels(task.replicas))
    with progress_bar(text, levels, TimeElapsedColumn(), TimeRemainingColumn()) as tell:
        async with (
            PrivateCell(task.spec, plan.model, task.replicas, folder) as cell,
            BenchClient(cell.url, "completions") as client,
        ):
            if task.pin:
                await cell.pin()
            return await Probing(cell, client, plan).run(tell)


def _note(task: CalibrateTask) -> str:
    replicas = "1 replica" if task.replicas == 1 else f"{task.replicas} replicas, all loaded"
    return f"{replicas}, on one machine" + (", each pinned to a core" if task.pin else "")


def _kernels(task: CalibrateTask) -> LoneKernels | None:
    """By the data sheet; None where GPU or architecture are not known."""
    try:
        plan = plan_of(
            read_architecture(config_of(task.model)),
            task.model.settings,
            task.spec.hardware.gpu_named(task.accelerator),
        )
        cost = roofline(plan, host=NO_HOST).model
        return LoneKernels(cost.base_s(1), cost.step_s([Chunk(1, 0)], 0, 0, 1), len(plan.model.layers))
    except (ValueError, ArtifactError, OSError):
        return None


def _show(out: Path, measured: Measurements, found: Calibration) -> None:
    fitted, record = found.fitted, found.file.calibration
    if measured.failed:
        console.print(
            f"[yellow]{measured.failed} of {measured.answered + measured.failed} requests failed; their steps are "
            "counted as well[/]"
        )
    console.print(
        f"{out}: {fitted.samples:,} steps; off by {fitted.error:.1%} for a single step on average, by "
        f"{fitted.bias:+.1%} for their sum"
    )
    if record is not None:
        _show_record(record)
    front = ", ".join(
        f"{1e3 * seconds:.1f} ms beside {leases:.0f}"
        for leases, seconds in list(zip(found.file.front.at, found.file.front.seconds, strict=True))[:-1]
    )
    console.print(
        f"overhead of a request: {front} before its first step, {1e3 * found.file.back_s:.1f} ms after its last one"
    )


def _show_record(record: CalibrationRecord) -> None:
    console.print("steps that were not fitted, by part (share of the time; error in all; of a single step):")
    for one in record.residuals:
        console.print(
            f"  {one.part}: {one.steps:,} steps, {one.share:.0%}; {one.bias:+.1%}; {one.error:.1%} on average, nine of "
            f"ten within {one.p90:.1%}",
            highlight=False,
        )
    host = record.host
    beside = ""
    if host.host_step_s is not None and host.kernels_s is not None:
        low, high = host.host_step_s
        beside = (
            f"; by the data sheet its kernels take {1e3 * host.kernels_s:.2f} ms, so the host {1e3 * low:.2f} to "
            f"{1e3 * high:.2f} ms"
        )
    console.print(f"a step of one decode takes {1e3 * host.step_s:.2f} ms{beside}", highlight=False)
    for text in record.not_covered:
        console.print(f"  [yellow]not covered:[/] {escape(text)}", highlight=False)
