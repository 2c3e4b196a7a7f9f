"""From the spec's words to a law, its bounds and what it may know: the one place that knows both. Serve, `simulate`, `tune` go through it.

Pure but for the cost file that it reads.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autoscaling.costs.speed import slowed
from autoscaling.laws.choice import LawChoice
from autoscaling.laws.law import Plant
from autoscaling.scaler.bounds import Bounds
from cluster.spec import Autoscaling, ClusterSpec, Model, Pool, Region, Rollback
from cluster.spec import Law as SpecLaw
from deployments.engine_model.cost_file import read_cost_file
from deployments.engine_model.limits import Limits

_PROCESS_S = 5.0
"""What the process of a simulated replica takes beyond its `start_up_s`, before one was seen (seconds)."""
_START_UP_S = 60.0
"""What a replica of a real engine is thought to take, before one was seen (seconds)."""


@dataclass(frozen=True, slots=True)
class ScalingSetup:
    """How one model of one cell scales. `plant`: what laws may know of a replica, from the cost file `costs`. `attainment`: what each class promises.
    `period_s`: how often facts are read."""

    law: LawChoice
    shadow: LawChoice | None
    bounds: Bounds
    plant: Plant
    costs: str | None
    attainment: Mapping[str, float]
    period_s: float
    rollback: Rollback


def setup_of(spec: ClusterSpec, model: Model, region: Region, costs: Path | None = None, read_costs: bool = True) -> ScalingSetup:
    """What the spec says of the model's scaling in that region. `costs`: a cost file instead of the one that the spec names; without `read_costs`
    none is read, and laws know of a replica what they see.

    Raises CostFileError, and ValueError for settings that make no bounds.
    """
    scaling = spec.autoscaling_of(model)
    named = str(costs) if costs is not None else scaling.costs or (None if model.simulated is None else model.simulated.costs)
    if not read_costs:
        named = None
    law, shadow = choices_of(spec, model)
    return ScalingSetup(
        law=law,
        shadow=shadow,
        bounds=_bounds(scaling, model, spec.pool_of(model, region)),
        plant=_plant(spec, model, named),
        costs=named,
        attainment={one.name: one.attainment for one in spec.classes},
        period_s=scaling.period_s,
        rollback=scaling.rollback,
    )


def scaling_problems(spec: ClusterSpec) -> list[str]:
    """What of a spec's scaling cannot be followed on this machine: a law or a setting that there is not, a cost file that cannot be read."""
    return [f"models.{model.name}: autoscaling: {problem}" for model in spec.models if (problem := _problem(spec, model))]


def _problem(spec: ClusterSpec, model: Model) -> str | None:
    try:
        setup = setup_of(spec, model, spec.regions_of(model)[0], read_costs=spec.autoscaling_of(model).costs is not None)
        for choice in choices_of(spec, model):
            if choice is not None:
                choice.make(setup.plant)
    except ValueError as error:
        return str(error)
    return None


def choices_of(spec: ClusterSpec, model: Model) -> tuple[LawChoice, LawChoice | None]:
    """The active law of a model, and its shadow."""
    scaling = spec.autoscaling_of(model)
    shadow = None if scaling.shadow is None else _choice(scaling.shadow, scaling.period_s, model)
    return _choice(scaling, scaling.period_s, model), shadow


def _choice(law: SpecLaw, period_s: float, model: Model) -> LawChoice:
    if law.policy == "fixed":
        return LawChoice("fixed", {"count": model.replicas.count, "period_s": period_s})
    if law.policy == "backlog":
        return LawChoice("backlog", {**law.backlog.model_dump(), "period_s": period_s})
    return LawChoice(law.policy, dict(law.settings))


def _bounds(scaling: Autoscaling, model: Model, pool: Pool) -> Bounds:
    """A fixed law is bound by nothing but its count; an operator's word may still be any number."""
    counts, fixed = model.replicas, scaling.policy == "fixed" and scaling.shadow is None
    most = counts.count if fixed else counts.max or counts.count
    return Bounds(
        least=0 if fixed else min(counts.min, most),
        most=most,
        ceiling=_ceiling(scaling, model, pool),
        up_per_min=scaling.up_per_minute or math.inf,
        down_per_min=scaling.down_per_minute or math.inf,
        stale_s=scaling.stale_s,
        silent_s=scaling.silent_s,
        unschedulable_s=scaling.unschedulable_s,
        retry_s=scaling.retry_s,
    )


def _ceiling(scaling: Autoscaling, model: Model, pool: Pool) -> int | None:
    """As many as the hourly ceiling pays for; None without one, or where nothing has a price."""
    each = usd_per_replica_hour(model, pool)
    return None if scaling.usd_per_hour is None or not each else int(scaling.usd_per_hour / each + 1e-9)


def usd_per_replica_hour(model: Model, pool: Pool) -> float:
    """What a replica costs an hour. A CPU pool's price is by node: a replica pays for its cores, for a whole node where their number is unknown."""
    if pool.accelerator != "cpu":
        return pool.price_usd_per_hour * model.settings.tensor_parallel_size
    share = 1.0 if pool.cpus_per_node is None else min(1.0, model.cpus / pool.cpus_per_node)
    return pool.price_usd_per_hour * share


def _plant(spec: ClusterSpec, model: Model, costs: str | None) -> Plant:
    settings, simulated = model.settings, model.simulated
    start_up_s = _START_UP_S if simulated is None else simulated.start_up_s + _PROCESS_S
    weight = spec.scheduling.decode_weight
    if costs is None:
        step_tokens = max(settings.max_num_batched_tokens, settings.max_num_seqs)
        return Plant(Limits(settings.max_num_seqs, step_tokens, settings.max_num_seqs * settings.max_model_len), weight, None, start_up_s)
    file = read_cost_file(Path(costs))
    cost = file.cost_model()
    if simulated is not None and simulated.speed != 1.0:
        cost = slowed(cost, 1.0 / simulated.speed)
    limits = replace(file.limits(), sequences=min(file.engine.max_num_seqs, settings.max_num_seqs))
    return Plant(limits, weight, cost, start_up_s)
