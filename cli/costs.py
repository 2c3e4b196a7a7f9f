"""`raylane costs`: a cost file for `raylane simulate` from the data sheet of a spec's GPU and the shape of its model.
Marked as unmeasured."""

from pathlib import Path
from typing import Annotated

import typer

from cli.console import console, fail
from cli.options import chosen_model
from cluster.artifacts import ArtifactError, resolve_source
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.roofline import read_shape, roofline
from planning.fit.of_spec import ModelFit, fit_on


def costs(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec.")],
    out: Annotated[Path, typer.Option(help="Where to write the cost file.")],
    model: Annotated[
        str | None, typer.Option(help="The model. Default: the spec's first. Its folder must be on this machine.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU. Default: the accelerator of the model's pool.")] = None,
) -> None:
    """Estimate an engine's step costs from data sheets (a roofline): good for orders of magnitude."""
    spec, chosen = chosen_model(spec_file, model)
    settings = chosen.settings
    name = gpu or spec.pool_of(chosen, spec.regions_of(chosen)[0]).accelerator
    weight_bytes = (
        1.0 if settings.quantization in ("fp8", "compressed-tensors") else 0.5 if settings.quantization else 2.0
    )
    kv_bytes = 1.0 if settings.kv_cache_dtype.startswith("fp8") else 2.0
    try:
        device = spec.hardware.gpu_named(name)
        shape = read_shape(Path(resolve_source(chosen.source)), weight_bytes, kv_bytes)
        room = _kv_tokens(fit_on(spec, chosen, name))
    except (ValueError, ArtifactError) as error:
        fail(str(error), code=2)
    limits = EngineModelLimits(settings.max_num_seqs, settings.max_num_batched_tokens, room)
    cost = roofline(shape, device, settings.tensor_parallel_size)
    hardware = f"{settings.tensor_parallel_size} x {device.title}"
    try:
        write_cost_file(
            out,
            cost_file(chosen.name, hardware, "roofline", limits, cost, note="from data sheets; nothing was measured"),
        )
    except OSError as error:
        fail(f"--out {out}: cannot be written: {error.strerror}", code=2)
    console.print(f"{out}: {chosen.name} on {hardware}, {room:,} KV tokens; [yellow]not measured[/]")


def _kv_tokens(found: ModelFit) -> int:
    """What the KV pool holds. Raises ValueError for an engine that would not start, or whose memory is not modelled."""
    if found.fit is None or found.problems:
        raise ValueError("; ".join(found.problems) or str(found.unknown))
    return found.fit.kv_tokens
