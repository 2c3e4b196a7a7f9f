"""What the costs of an engine's steps say of `itl_ms`: with how many sequences a replica should begin, and what its
steps cannot keep. The cap itself follows what is measured (`scheduling/itl_cap.py`)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cluster.spec import ClusterSpec, Model, Region
from deployments.engine_model.cost_file import CostFileError, read_cost_file
from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.fits import cost_of, limits_for
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.replica_rate import best_point
from deployments.scheduling.policy import SchedulingPolicy

USUAL_LENGTHS = (1_024.0, 256.0)
"""Tokens of prompts and answers, assumed while the traffic is not known: those of chat, roughly."""

Costs = Mapping[str, tuple[EngineModelLimits, CostModel]]
"""By group."""


def with_starts(policy: SchedulingPolicy, costs: Costs) -> SchedulingPolicy:
    """The policy; where a class names an `itl_ms`, with the sequences at which a step takes that long on average
    (`best_point`)."""

    def start(limits: EngineModelLimits, cost: CostModel, itl_s: float) -> int:
        point = best_point(limits, cost, *USUAL_LENGTHS, itl_s)
        return 1 if point is None else point.sequences

    itl = {
        name: replace(target, starts={group: start(*one, target.itl_s) for group, one in costs.items()})
        for name, target in policy.itl.items()
        if not target.starts
    }
    return replace(policy, itl={**policy.itl, **itl})


def group_costs(spec: ClusterSpec, views: tuple[Model, ...], region: Region) -> Costs:
    """The costs of those of a model's groups that name a cost file which can be read."""
    found = {}
    for view in views:
        if (named := spec.costs_of(view)) is not None:
            try:
                file = read_cost_file(Path(named))
            except CostFileError:  # `spec check` names it
                continue
            found[view.group] = limits_for(view, spec.pool_of(view, region), file), cost_of(view, file)
    return found


def itl_problems(spec: ClusterSpec) -> Iterator[str]:
    """Each `itl_ms` that is shorter than a step with one whole chunk of a prompt beside decodes: while long prompts
    come one after the other, no cap keeps it."""
    for view in spec.views_in():
        for limits, cost in group_costs(spec, (view,), spec.regions_of(view)[0]).values():
            chunk = min(limits.long_prefill_tokens or limits.step_tokens, view.settings.max_model_len)
            floor_ms = 1e3 * cost.step_s([Chunk(chunk, 0)], 1, chunk, 1)
            for one in spec.classes:
                if one.itl_ms is not None and one.itl_ms < floor_ms:
                    yield (
                        f"classes.{one.name}.itl_ms = {one.itl_ms:g}: a step of {view.where} with a prompt's chunk of "
                        f"{chunk} tokens beside decodes takes {floor_ms:.0f} ms; allowed: at least that, or a smaller "
                        "max_num_batched_tokens"
                    )
