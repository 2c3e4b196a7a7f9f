"""A cost file where no engine was measured: from a profile of the model's layers, or from data sheets. For `raylane
costs`, and for plans."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostBasis, CostFile, cost_file
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.host import TYPICAL_HOST, Host
from planning.costs.interconnect import Parallel
from planning.costs.profile import Costs, from_profile
from planning.costs.profile_files import is_of_gpu, profiled_gpu, read_profile
from planning.costs.roofline import layers_of, roofline
from planning.fit.architecture import read_architecture
from planning.fit.memory import Plan, plan_of
from planning.fit.of_spec import ModelFit, config_of, fit_on


def estimated(
    spec: ClusterSpec, model: Model, gpu: str, profile: Path | None = None, host: Host = TYPICAL_HOST
) -> CostFile:
    """The cost file of a spec's model on that GPU. Raises ValueError and ArtifactError for a model that is not at hand,
    not modelled or would not start, and for a profile that cannot be read."""
    settings = model.settings
    plan = plan_of(read_architecture(config_of(model)), settings, spec.hardware.gpu_named(gpu))
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
