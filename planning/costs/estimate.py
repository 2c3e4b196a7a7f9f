"""A cost file where no engine was measured: from a profile of the model's layers, or from data sheets. For `raylane
costs`, and for plans."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from cluster.hardware import gpu_named
from cluster.spec import ClusterSpec, Model
from cluster.spec.models import EngineSettings
from deployments.engine_model.cost_file import CostBasis, CostFile, cost_file
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.host import TYPICAL_HOST, Host
from planning.costs.profile import Costs, from_profile
from planning.costs.profile_files import is_of_gpu, profiled_gpu, read_profile
from planning.costs.roofline import layers_of, roofline
from planning.fit.architecture import read_architecture
from planning.fit.memory import Plan, batch_defaults, plan_of
from planning.fit.of_spec import ModelFit, config_in, config_of, fit_on
from planning.fit.verdict import fit

_CONTEXT = 8_192
"""Of an engine that no spec describes, at most."""


def estimated(
    spec: ClusterSpec, model: Model, gpu: str, profile: Path | None = None, host: Host = TYPICAL_HOST
) -> CostFile:
    """The cost file of a spec's model on that GPU. Raises ValueError and ArtifactError for a model that is not at hand,
    not modelled or would not start, and for a profile that cannot be read."""
    plan = plan_of(read_architecture(config_of(model)), model.settings, spec.hardware.gpu_named(gpu))
    return _file(model.name, plan, _kv_tokens(fit_on(spec, model, gpu)), profile, host)


def estimated_alone(
    source: str, gpu: str, tensor: int = 1, profile: Path | None = None, host: Host = TYPICAL_HOST
) -> CostFile:
    """The same without a spec: of the model in a folder, with vLLM's own limits of sequences and step tokens."""
    folder = str(Path(source).resolve()) if Path(source).is_dir() else source
    model = read_architecture(config_in(folder))
    step_tokens, sequences = batch_defaults(gpu_named(gpu))
    settings = EngineSettings(
        max_model_len=min(_CONTEXT, model.longest or _CONTEXT),
        max_num_seqs=sequences,
        max_num_batched_tokens=step_tokens,
        tensor_parallel_size=tensor,
    )
    plan = plan_of(model, settings, gpu_named(gpu))
    found = ModelFit(Path(folder).name, f"{tensor} x {gpu}", fit(model, settings, plan.gpu))
    return _file(found.model, plan, _kv_tokens(found), profile, host)


def _file(name: str, plan: Plan, kv_tokens: int, profile: Path | None, host: Host) -> CostFile:
    found, basis, note = _costs(plan, profile, host)
    return cost_file(
        name,
        f"{plan.settings.ranks} x {plan.gpu.title}",
        basis,
        EngineModelLimits(plan.settings.max_num_seqs, plan.settings.max_num_batched_tokens, kv_tokens),
        found.model,
        note=note,
        sources=found.sources,
        unmodelled=found.notes,
    )


def _costs(plan: Plan, profile: Path | None, host: Host) -> tuple[Costs, Literal["profile", "roofline"], str]:
    if profile is None:
        return roofline(plan, host), "roofline", "from data sheets; nothing was measured"
    tables, profiled = read_profile(profile, plan.parallel.tensor), profiled_gpu(profile)
    own = profiled is None or is_of_gpu(profiled, plan.gpu)
    basis = CostBasis.PROFILE if own else CostBasis.OTHER_PROFILE
    found = from_profile(tables, layers_of(plan.model), plan.parallel, plan.gpu, host, basis=basis)
    if not own:
        found = replace(found, notes=(*found.notes, f"the profile is of {profiled}, not of {plan.gpu.title}"))
    return found, "profile", f"from the profile {profile.name}; no engine was measured"


def _kv_tokens(found: ModelFit) -> int:
    """What the KV pool holds. Raises ValueError for an engine that would not start, or whose memory is not modelled."""
    if found.fit is None or found.problems:
        raise ValueError("; ".join(found.problems) or str(found.unknown))
    return found.fit.kv_tokens
