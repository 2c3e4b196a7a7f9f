"""`raylane calibrate`: what the steps of a spec's engine cost on this machine, measured in a few minutes and written as a cost file."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from cli.bench.client import Client, EndpointError
from cli.bench.run import allow_many_connections
from cli.calibrate.probing import OPEN_LOADS, Plan, Probed, Probing
from cli.chosen import chosen_model, replica_count
from cli.console import console, fail
from cli.outputs import check_outputs
from cli.private_cell import PinError, PrivateCell
from cli.server_process import ServerError
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import Limits
from planning.costs.front import LedgerError, front_and_back
from planning.costs.probes import Lengths
from planning.costs.step_fit import Fitted, fit_steps
from planning.costs.steps import StepLogError, samples
from planning.rehearsal import rehearsed
from planning.workload.trace import TraceError
from planning.workload.traces import read_trace


def calibrate(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec.")],
    out: Annotated[Path, typer.Option(help="Where to write the cost file.")],
    model: Annotated[str | None, typer.Option(help="Which model of the spec; default: the first.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=64, help="How many run on this machine at once, all loaded; default: the spec's count.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="The traffic that is expected: its first half gives half of the lengths that are sent.")] = None,
    length_scale: Annotated[float, typer.Option(min=1e-3, max=1.0, help="Lengths of the trace times this, at most what fits the context.")] = 1.0,
    seconds: Annotated[float, typer.Option(min=2, max=600, help="How long each level of concurrency is held.")] = 16.0,
    pin: Annotated[bool, typer.Option("--pin", help="Give each replica a core of its own, and all else the rest.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep the step logs and the ledger in this folder.")] = None,
) -> None:
    """Measure what an engine's steps cost here: brings the model up on ports of its own, loads it, and takes it down."""
    spec, chosen = chosen_model(spec_file, model)
    check_outputs(out=out)
    count = replica_count(chosen, replicas)
    settings = chosen.settings
    try:
        traffic = None if trace is None else _traffic(trace, settings.max_model_len, length_scale)
    except TraceError as error:
        fail(f"--trace: {error}", code=2)
    plan = Plan(chosen.name, settings.max_model_len, settings.max_num_seqs, seconds, traffic)
    with tempfile.TemporaryDirectory(prefix="raylane-") as scratch:
        try:
            probed = asyncio.run(_measure(spec, plan, count, keep or Path(scratch), pin))
            _write(chosen, count, probed, out, pin)
        except (ServerError, PinError, EndpointError, StepLogError, LedgerError, ValueError) as error:
            fail(str(error), mend="raylane doctor")


def _traffic(trace: Path, max_model_len: int, length_scale: float) -> Lengths:
    """Of the first half: a rehearsal plays the second."""
    work = rehearsed(read_trace(trace), max_model_len, length_scale, 1.0)
    half = work.head(max(1, len(work) // 2))
    return half.prompt_tokens, half.output_tokens


async def _measure(spec: ClusterSpec, plan: Plan, replicas: int, folder: Path, pin: bool) -> Probed:
    allow_many_connections()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"starting {replicas} replica(s) of {plan.model}", total=len(plan.levels(replicas)) + len(OPEN_LOADS))
        async with PrivateCell(spec, plan.model, replicas, folder) as cell, Client(cell.url, "completions") as client:
            if pin:
                await cell.pin()
            return await Probing(cell, client, plan).run(lambda text, done: progress.update(task, description=text, completed=done))


def _write(model: Model, replicas: int, probed: Probed, out: Path, pin: bool) -> None:
    fitted = fit_steps([sample for log in probed.logs for sample in samples(log)])
    facts = probed.logs[0].facts
    front, back_s = front_and_back(probed.alone_s, probed.windows, probed.logs)
    costs = CostModel(fitted.model.dense, fitted.model.sequence, fitted.model.attention, front, back_s)
    limits = Limits(facts.max_num_seqs, facts.max_num_batched_tokens, facts.kv_tokens, facts.block_tokens)
    note = f"{fitted.samples} steps of {replicas} replica(s) on one machine, all loaded" + (", each pinned to a core" if pin else "")
    try:
        write_cost_file(out, cost_file(model.name, "this machine", "measured", limits, costs, fitted.error, note))
    except OSError as error:
        fail(f"--out {out}: cannot be written: {error.strerror}")
    _tell(out, probed, fitted, costs)


def _tell(out: Path, probed: Probed, fitted: Fitted, costs: CostModel) -> None:
    if probed.failed:
        console.print(f"[yellow]{probed.failed} of {probed.answered + probed.failed} requests failed; what they computed is counted all the same[/]")
    console.print(f"{out}: {fitted.samples:,} steps; off by {fitted.error:.1%} each on average, by {fitted.bias:+.1%} in all")
    front = ", ".join(
        f"{1e3 * seconds:.1f} ms beside {leases:.0f}" for leases, seconds in list(zip(costs.front.at, costs.front.value, strict=True))[:-1]
    )
    console.print(f"around the steps a request takes {front} before them, {1e3 * costs.back_s:.1f} ms after")
