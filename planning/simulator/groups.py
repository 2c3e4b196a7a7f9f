"""The groups of a simulated cell: how many replicas of which engine each begins with, and how it scales. A model
without groups has one."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.spec import DEFAULT_GROUP
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import Binding
from deployments.scheduling.replica import ANY_CONTEXT
from planning.simulator.fleet import ReplicaKind
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.starts import SimulatedStarts, StartPlan
from planning.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """`replicas` engines of `limits`, whose steps cost `cost`, from the start; one that starts later takes
    `start_up_s`, or as long as `starts` says. `max_model_len`: the longest sequence of its engines (tokens). With
    `scaling`, an autoscaler decides how many there are from second 0 on.

    `name`: as the scheduler's policy has it (`SchedulingPolicy.groups`)."""

    replicas: int
    limits: EngineModelLimits
    cost: CostModel
    max_model_len: int = 1 << 30
    start_up_s: float = 60.0
    scaling: SimulatedScaling | None = None
    starts: StartPlan | None = None
    name: str = DEFAULT_GROUP


def kinds_of(groups: Sequence[SimulatedGroup], binding: Binding) -> list[ReplicaKind]:
    """What the replicas of each group have in common. One group alone takes whatever is sent to it."""
    found = []
    for group in groups:
        limits, context = group.limits, ANY_CONTEXT if len(groups) == 1 else group.max_model_len
        capacity = binding.capacity(limits.sequences, limits.kv_tokens, limits.step_tokens, group.name, context)
        starts = None if group.starts is None else SimulatedStarts(group.starts)
        found.append(ReplicaKind(capacity, limits, group.cost, group.start_up_s, starts))
    return found


def check_lengths(groups: Sequence[SimulatedGroup], work: Workload) -> None:
    """Raises ValueError where a request could be placed on an engine whose KV cache it does not fit."""
    longest = int((work.prompt_tokens + work.output_tokens).max()) if len(work) else 0
    for group in groups:
        context = longest if len(groups) == 1 else min(longest, group.max_model_len)
        if context > group.limits.kv_tokens:
            raise ValueError(
                f"a request of {context} tokens in the workload; allowed: the {group.limits.kv_tokens} that the KV "
                f"cache {'' if len(groups) == 1 else f'of group {group.name} '}holds"
            )
