"""`raylane costs`: a cost file for `raylane simulate` where no engine can be measured: from a profile of the model's
layers, or from the data sheet of a GPU. Marked as unmeasured. And how far a cost file is off a recorded run."""

from pathlib import Path
from typing import Annotated

import typer

from cli.console import Table, console, fail, show
from cli.options import check_outputs, chosen_model
from cluster.artifacts import ArtifactError
from cluster.spec import ClusterSpec, Model, Region
from cluster.spec.cluster import scaled_by
from deployments.engine_model.cost_file import CostFile, read_cost_file, write_cost_file
from planning.costs.estimate import estimated, estimated_alone
from planning.costs.host import TYPICAL_HOST, calibrated_host
from planning.costs.recorded_run import compared, read_run


def costs(
    spec_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SPEC]",
            help="The cluster spec. Without: --gpu and --model FOLDER. With --against: the cost file that is compared.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the cost file.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model; its folder must be on this machine. Default: the spec's first. Without a spec: the folder."
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU. Default: the accelerator of the model's pool.")] = None,
    tensor: Annotated[
        int | None, typer.Option("--tp", min=1, max=16, help="Without a spec: over how many GPUs. Default: one.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="A profile of the model's layers on that GPU: a folder, or the common beginning of its files' names."
        ),
    ] = None,
    host: Annotated[
        Path | None,
        typer.Option(
            help="A file of `raylane calibrate`, of any model on this kind of server: what its host adds to a step, "
            "and the time around requests, replace those of a typical server."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Compare a cost file with a recorded run of its engine (docs/costs.md), and write nothing.",
        ),
    ] = None,
) -> None:
    """Estimate an engine's step costs from a profile of its layers, or from data sheets (a roofline)."""
    if against is not None:
        _compare(spec_file, against)
        return
    if out is None:
        fail("--out: missing; allowed: where to write the cost file", code=2)
    check_outputs(out=out)
    if spec_file is not None and tensor is not None:
        fail(f"--tp {tensor}: allowed: without a spec, which says it (settings.tensor_parallel_size)", code=2)
    try:
        own = TYPICAL_HOST if host is None else calibrated_host(read_cost_file(host))
        if spec_file is not None:
            spec, chosen = chosen_model(spec_file, model)
            name = gpu or spec.pool_of(chosen, spec.regions_of(chosen)[0]).accelerator
            content = estimated(spec, chosen, name, profile, own)
        elif model is not None and gpu is not None:
            content = estimated_alone(model, gpu, tensor or 1, profile, own)
        else:
            fail("SPEC: missing; allowed: a spec, or --gpu GPU and --model FOLDER", code=2)
    except (ValueError, ArtifactError) as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"--profile {profile}: cannot be read: {error.strerror}", code=2)
    write_cost_file(out, content)
    low, high = content.likely()
    console.print(
        f"{out}: {content.model} on {content.hardware}, {content.engine.kv_tokens:,} KV tokens; [yellow]not "
        f"measured[/]: steps likely take {low:.0%} to {high:.0%} of what it says"
    )
    for source in content.sources:
        note = f" ({source.note})" if source.note else ""
        console.print(f"  {source.part}: {source.basis}, {source.share:.0%} of a busy step{note}", highlight=False)
    for note in content.unmodelled:
        console.print(f"  [yellow]{note}[/]", highlight=False)


def estimate(spec: ClusterSpec, region: Region, view: Model) -> CostFile | None:
    """The costs of a model, or of a group of one, from data sheets; None where there are none. Says so, and that the
    policy has to learn from the first minutes instead."""
    gpu = spec.pool_of(view, region).accelerator
    learns = f"model {view.group_key}: what a replica carries is learned from the first minutes of traffic"
    if gpu == "cpu":
        console.print(f"{learns}.", markup=False, highlight=False)
        return None
    try:
        content = estimated(spec, view, gpu)
    except (ValueError, ArtifactError, OSError) as error:
        console.print(f"{learns}; no estimate for {gpu}: {error}", markup=False, highlight=False)
        return None
    low, high = content.likely()
    console.print(
        f"model {view.group_key}: what a replica carries is estimated from data sheets of {content.hardware} "
        f"(steps likely take {low:.0%} to {high:.0%} of that), and corrected by what it does",
        markup=False,
        highlight=False,
    )
    return content


def _compare(costs_file: Path | None, run_file: Path) -> None:
    if costs_file is None:
        fail(f"--against {run_file}: allowed: with a cost file, `raylane costs COSTS.json --against RUN`", code=2)
    file, run = read_cost_file(costs_file), read_run(run_file)
    figures = compared(run, file)
    low, high = file.likely()
    requests, unqueued = len(run.prompt), int(run.unqueued.sum())
    table = Table("figure", "measured", "simulated", "error", "stated range", "")
    for one in figures:
        times = [f"{1e3 * seconds:.1f} ms" for seconds in (one.measured_s, one.simulated_s, one.low_s, one.high_s)]
        measured, simulated, *ends = times
        table.add_row(
            one.name, measured, simulated, f"{one.error:+.1%}", " to ".join(ends), "" if one.in_range else "outside"
        )
    console.print(
        f"{run_file}: {requests} requests, of which {unqueued} did not queue; {costs_file}: {file.model} on "
        f"{file.hardware}, at most {file.limits().sequences} sequences; steps likely take {low:.0%} to {high:.0%}"
    )
    show(table)
    console.print(f"{sum(one.in_range for one in figures)} of {len(figures)} figures are in the stated range")


def with_estimates(spec: ClusterSpec, region: Region, folder: Path) -> ClusterSpec:
    """The spec with a cost file in `folder`, from data sheets, for each model that scales by the backlog policy and has
    none."""
    for view in spec.views_in(region):
        if not spec.lacks_costs(view) or (content := estimate(spec, region, view)) is None:
            continue
        path = folder / f"{view.group_key.replace('/', '_')}.costs.json"
        write_cost_file(path, content)
        changed = spec.autoscaling_of(view).model_copy(update={"costs": str(path)})
        models = tuple(scaled_by(one, view, changed) if one.name == view.name else one for one in spec.models)
        spec = spec.model_copy(update={"models": models})
    return spec
