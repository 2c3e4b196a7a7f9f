"""`raylane costs`: a cost file for `raylane simulate` where no engine can be measured: from a profile of the model's
layers, or from the data sheet of a GPU. Marked as unmeasured."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.console import console, fail
from cli.options import chosen_model
from cluster.artifacts import ArtifactError
from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostBasis, CostFile, cost_file, read_cost_file, write_cost_file
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.host import TYPICAL_HOST, Host, calibrated_host
from planning.costs.interconnect import Parallel
from planning.costs.profile import Costs, from_profile
from planning.costs.profile_files import is_of_gpu, profiled_gpu, read_profile
from planning.costs.roofline import layers_of, roofline
from planning.fit.architecture import read_architecture
from planning.fit.memory import Plan, plan_of
from planning.fit.of_spec import ModelFit, config_of, fit_on, settings_of


def costs(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC", help="The cluster spec.")],
    out: Annotated[Path, typer.Option(help="Where to write the cost file.")],
    model: Annotated[
        str | None, typer.Option(help="The model. Default: the spec's first. Its folder must be on this machine.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU. Default: the accelerator of the model's pool.")] = None,
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
) -> None:
    """Estimate an engine's step costs from a profile of its layers, or from data sheets (a roofline)."""
    spec, chosen = chosen_model(spec_file, model)
    name = gpu or spec.pool_of(chosen, spec.regions_of(chosen)[0]).accelerator
    try:
        own = TYPICAL_HOST if host is None else calibrated_host(read_cost_file(host))
        content = estimated(spec, chosen, name, profile, own)
    except (ValueError, ArtifactError) as error:
        fail(str(error), code=2)
    except OSError as error:
        fail(f"--profile {profile}: cannot be read: {error.strerror}", code=2)
    try:
        write_cost_file(out, content)
    except OSError as error:
        fail(f"--out {out}: cannot be written: {error.strerror}", code=2)
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


def estimated(
    spec: ClusterSpec, model: Model, gpu: str, profile: Path | None = None, host: Host = TYPICAL_HOST
) -> CostFile:
    """The cost file of a spec's model on that GPU. Raises ValueError and ArtifactError for a model that is not at hand,
    not modelled or would not start, and for a profile that cannot be read."""
    settings = model.settings
    plan = plan_of(read_architecture(config_of(model)), settings_of(model), spec.hardware.gpu_named(gpu))
    parallel = Parallel(
        settings.tensor_parallel_size,
        settings.pipeline_parallel_size,
        experts=bool(settings.extra.get("enable_expert_parallel")),
    )
    room = _kv_tokens(fit_on(spec, model, gpu))
    limits = EngineModelLimits(settings.max_num_seqs, settings.max_num_batched_tokens, room)
    found, basis, note = _costs(plan, parallel, profile, host)
    hardware = f"{settings.ranks} x {plan.gpu.title}"
    return cost_file(
        model.name,
        hardware,
        basis,
        limits,
        found.model,
        note=note,
        sources=found.sources,
        unmodelled=found.notes,
    )


def _costs(
    plan: Plan, parallel: Parallel, profile: Path | None, host: Host
) -> tuple[Costs, Literal["profile", "roofline"], str]:
    if profile is None:
        return roofline(plan, parallel, host), "roofline", "from data sheets; nothing was measured"
    tables, profiled = read_profile(profile, parallel.tensor), profiled_gpu(profile)
    own = profiled is None or is_of_gpu(profiled, plan.gpu)
    basis = CostBasis.PROFILE if own else CostBasis.OTHER_PROFILE
    found = from_profile(tables, layers_of(plan.model), parallel, plan.gpu, host, basis=basis)
    if not own:
        found = replace(found, notes=(*found.notes, f"the profile is of {profiled}, not of {plan.gpu.title}"))
    return found, "profile", f"from the profile {profile.name}; no engine was measured"


def _kv_tokens(found: ModelFit) -> int:
    """What the KV pool holds. Raises ValueError for an engine that would not start, or whose memory is not modelled."""
    if found.fit is None or found.problems:
        raise ValueError("; ".join(found.problems) or str(found.unknown))
    return found.fit.kv_tokens
