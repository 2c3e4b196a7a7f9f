"""Turns a spec into a policy, its bounds and its knowledge of replicas, for Serve, a shadow, `simulate` and `tune`.

Pure but for the cost file that it reads.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from autoscaling.policies.policy import ReplicaProfile
from autoscaling.policies.registry import PolicyChoice
from autoscaling.policies.settings import Value
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from autoscaling.scaler.groups import GroupOverflow
from autoscaling.scaler.schedule import Schedule, ScheduledBounds
from cluster.spec import Autoscaling, ClusterSpec, Model, Pool, Region, Rollback
from cluster.spec import PolicySpec as SpecPolicy
from deployments.accounting.tariffs import usd_per_replica_hour
from deployments.engine_model.cost_file import CostFile, read_cost_file
from deployments.engine_model.fits import async_scheduling, cost_of, limits_for
from deployments.engine_model.limits import EngineModelLimits
from deployments.starts.phases import Phase, PhaseSeconds

FIXED, BACKLOG = "fixed", "backlog"
_PROCESS_S = 5.0
"""How long the process of a simulated replica takes beyond its `start_up_s`, before one was seen (seconds)."""
_START_UP_S = 60.0
"""The assumed start-up time of a real engine's replica, before one was seen (seconds)."""


@dataclass(frozen=True, slots=True)
class ScalingSetup:
    """How one model, or one group of it, scales in one cell. `attainment`: of each class. `period_s`: how often the
    policy is asked if nothing is new. `forecast`: the forecast that policies get. `start_seconds`: how long the phases
    of a start take, where the spec says so."""

    policy: PolicyChoice
    shadow: PolicyChoice | None
    bounds: Bounds
    replica_profile: ReplicaProfile
    attainment: Mapping[str, float]
    period_s: float
    forecast: Literal["none", "seasonal"]
    rollback: Rollback
    start_seconds: PhaseSeconds | None = None

    def autoscaler(self) -> Autoscaler:
        """A new autoscaler. Raises ValueError that names the policy, the setting and what is allowed."""
        return Autoscaler(self.policy.make(self.replica_profile), self.bounds, self.replica_profile.start_up_s)

    def overflow(self) -> GroupOverflow:
        """What finds out how much of its demand the group cannot carry, new."""
        estimator = PolicyChoice(BACKLOG, {}).make(self.replica_profile) if self.policy.name == FIXED else None
        return GroupOverflow(self.replica_profile.start_up_s, estimator)


def setup_of(
    spec: ClusterSpec,
    model: Model,
    region: Region,
    cost: CostFile | None = None,
    read_costs: bool = True,
    start_up_s: float | None = None,
) -> ScalingSetup:
    """The scaling of the model (a view, if it has groups) in that region. `cost`: the engine's costs, instead of the
    file that the spec names; without `read_costs` no file is read, and policies know only what they see. `start_up_s`:
    a better known start-up time.

    Raises CostFileError, and ValueError for invalid bounds.
    """
    scaling = spec.autoscaling_of(model)
    named = spec.costs_of(model) if read_costs and cost is None else None
    pool = spec.pool_of(model, region)
    replica_profile = _replica_profile(spec, model, pool, cost if named is None else read_cost_file(Path(named)))
    policy, shadow = choices_of(spec, model)
    return ScalingSetup(
        policy=policy,
        shadow=shadow,
        bounds=_bounds(scaling, model, usd_per_replica_hour(spec, model, pool, region)),
        replica_profile=replica_profile if start_up_s is None else replace(replica_profile, start_up_s=start_up_s),
        attainment={one.name: one.attainment for one in spec.classes},
        period_s=scaling.period_s,
        forecast=scaling.forecast,
        rollback=scaling.rollback,
        start_seconds=_start_seconds(model) if start_up_s is None else None,
    )


def _start_seconds(model: Model) -> PhaseSeconds | None:
    """By the spec. A simulated engine loads for its `start_up_s`, too, and its process is quick."""
    if model.start is None:
        return None
    seconds = {Phase(name): value for name, value in model.start.model_dump().items()}
    if model.simulated is not None:
        seconds[Phase.LOAD] += model.simulated.start_up_s
    return seconds


def scaling_problems(spec: ClusterSpec, read_costs: bool = True) -> list[str]:
    """What this machine cannot follow in a spec's scaling: an unknown policy or setting, an unreadable cost file, a
    cost ceiling that would be none. Without `read_costs`: what no machine can follow."""
    return [
        f"{view.where}: autoscaling: {problem}"
        for view in spec.views_in()
        if (problem := _problem(spec, view, read_costs))
    ]


def _problem(spec: ClusterSpec, model: Model, read_costs: bool) -> str | None:
    try:
        setup = setup_of(
            spec,
            model,
            spec.regions_of(model)[0],
            read_costs=read_costs and spec.autoscaling_of(model).costs is not None,
        )
        for choice in choices_of(spec, model):
            if choice is not None:
                choice.make(setup.replica_profile)
    except ValueError as error:
        return str(error)
    return _ceiling_problem(spec, model)


def _ceiling_problem(spec: ClusterSpec, model: Model) -> str | None:
    """Where the hourly ceiling would be none, for want of a price, or because `replicas.min` comes first."""
    usd, least = spec.autoscaling_of(model).usd_per_hour, model.replicas.lowest
    for region in spec.regions_of(model) if usd is not None else ():
        pool = spec.pool_of(model, region)
        each = usd_per_replica_hour(spec, model, pool, region)
        ceiling, where = _ceiling(usd, each), f"usd_per_hour = {usd} in region {region.name}"
        if ceiling is None:
            return f"{where}: no price of pool {pool.name} is known; allowed: with `price_usd_per_hour`"
        if ceiling < least:
            return f"{where}: allowed: at least {float(each * least):g}, which replicas.min = {least} costs"
    return None


def choices_of(spec: ClusterSpec, model: Model) -> tuple[PolicyChoice, PolicyChoice | None]:
    scaling = spec.autoscaling_of(model)
    shadow = None if scaling.shadow is None else _choice(scaling.shadow, scaling.period_s, model)
    return _choice(scaling, scaling.period_s, model), shadow


def _choice(policy: SpecPolicy, period_s: float, model: Model) -> PolicyChoice:
    if policy.policy == FIXED:
        return policy_choice(FIXED, {"replicas": model.replicas.count}, period_s)
    return policy_choice(policy.policy, settings_in(policy), period_s)


def settings_in(policy: SpecPolicy) -> dict[str, Value]:
    """The settings of the policy in a spec's section: all of the backlog policy's, the written ones of any other."""
    return dict(policy.settings if policy.policy not in (FIXED, BACKLOG) else policy.backlog.model_dump())


def policy_choice(policy: str, settings: Mapping[str, Value], period_s: float) -> PolicyChoice:
    """The policy by name and settings, asked every `period_s` unless its own settings say how often."""
    return PolicyChoice(policy, {**settings, "period_s": period_s} if is_paced(policy) else settings)


def is_paced(policy: str) -> bool:
    """Whether the spec says how often the policy is asked; otherwise its own settings do."""
    return policy in (FIXED, BACKLOG)


def _bounds(scaling: Autoscaling, model: Model, usd_each: Fraction) -> Bounds:
    """Only its count bounds a fixed policy; an operator may still order any number. `usd_each`: an hour of a replica;
    0: not known."""
    counts, fixed = model.replicas, scaling.policy == FIXED and scaling.shadow is None
    maximum = counts.count if fixed else counts.max or counts.count
    return Bounds(
        minimum=0 if fixed else min(counts.min, maximum),
        maximum=maximum,
        ceiling=_ceiling(scaling.usd_per_hour, usd_each),
        up_per_min=scaling.up_per_minute or math.inf,
        down_per_min=scaling.down_per_minute or math.inf,
        stale_s=scaling.stale_s,
        unresponsive_s=scaling.unresponsive_s,
        unschedulable_s=scaling.unschedulable_s,
        retry_s=scaling.retry_s,
        schedule=_schedule(model),
    )


def _schedule(model: Model) -> Schedule | None:
    given = model.replicas.schedule
    if given is None:
        return None
    entries = (ScheduledBounds(one.name, one.weekdays, *one.span_min, one.min, one.max) for one in given.entries)
    return Schedule(given.time_zone, tuple(entries))


def _ceiling(usd_per_hour: float | None, usd_each: Fraction) -> int | None:
    """As many replicas as the hourly ceiling pays for; None without a ceiling or a price."""
    return None if usd_per_hour is None or not usd_each else int(Fraction(str(usd_per_hour)) / usd_each)


def _replica_profile(spec: ClusterSpec, model: Model, pool: Pool, file: CostFile | None) -> ReplicaProfile:
    settings, simulated = model.settings, model.simulated
    start_up_s = _START_UP_S if simulated is None else simulated.start_up_s + _PROCESS_S
    if (phases := _start_seconds(model)) is not None:
        start_up_s = sum(phases.values())
    weight = spec.scheduling.decode_weight
    if file is None:
        copies, step_tokens = settings.data_parallel_size, max(settings.max_num_batched_tokens, settings.max_num_seqs)
        return ReplicaProfile(
            EngineModelLimits(
                copies * settings.max_num_seqs,
                copies * step_tokens,
                copies * settings.max_num_seqs * settings.max_model_len,
                async_scheduling=async_scheduling(model, pool.accelerator != "cpu"),
            ),
            weight,
            None,
            start_up_s,
        )
    return ReplicaProfile(limits_for(model, pool, file), weight, cost_of(model, file), start_up_s)
