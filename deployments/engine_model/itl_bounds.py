"""What the costs of an engine's steps say of `itl_ms`: with how many sequences a replica should begin, and what its
steps cannot keep. The cap itself follows what is measured (`scheduling/itl_cap.py`)."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from cluster.spec import ClusterSpec, Model, Region
from deployments.engine_model.cost_file import CostFileError, read_cost_file
from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.fits import cost_of, limits_for
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.replica_rate import best_point

USUAL_LENGTHS = (1_024.0, 256.0)
"""Tokens of prompts and answers, assumed while the traffic is not known: those of chat, roughly."""

log = logging.getLogger(__name__)


def itl_starts(
    limits: EngineModelLimits, cost: CostModel, itl_s: Mapping[str, float], isl: float, osl: float, cv: float = 1.0
) -> dict[str, int]:
    """By class, the sequences with which a step takes no longer than its `itl_s` on average, for prompts and answers of
    these mean lengths (`best_point`)."""
    points = {name: best_point(limits, cost, isl, osl, one_s, output_cv=cv) for name, one_s in itl_s.items()}
    return {name: 1 if point is None else point.sequences for name, point in points.items()}


def starts_of_spec(spec: ClusterSpec, model: Model, region: Region) -> dict[str, dict[str, int]]:
    """The same by group, as far as cost files say it; a file that cannot be read is logged."""
    itl_s = {one.name: one.itl_ms / 1e3 for one in spec.classes if one.itl_ms is not None}
    found = {}
    for view in spec.groups_of(model, region) if itl_s else ():
        try:
            costs = _costs(spec, view, region)
        except CostFileError as error:
            log.error("model %s begins without a cap for itl_ms: %s", view.group_key, error)
        else:
            if costs is not None:
                found[view.group] = itl_starts(*costs, itl_s, *USUAL_LENGTHS)
    return found


def itl_problems(spec: ClusterSpec) -> Iterator[str]:
    """Each `itl_ms` that is shorter than a step with one whole chunk of a prompt beside decodes: while long prompts
    come one after the other, no cap keeps it."""
    for view in spec.views_in():
        region = spec.regions_of(view)[0]
        try:
            costs = _costs(spec, view, region)
        except CostFileError:
            continue  # `spec check` says so elsewhere
        if costs is None:
            continue
        limits, cost = costs
        chunk = min(limits.long_prefill_tokens or limits.step_tokens, view.settings.max_model_len)
        floor_ms = 1e3 * cost.step_s([Chunk(chunk, 0)], 1, chunk, 1)
        for one in spec.classes:
            if one.itl_ms is not None and one.itl_ms < floor_ms:
                yield (
                    f"classes.{one.name}.itl_ms = {one.itl_ms:g}: a step of {view.where} with a prompt's chunk of "
                    f"{chunk} tokens beside decodes takes {floor_ms:.0f} ms; allowed: at least that, or a smaller "
                    "max_num_batched_tokens"
                )


def _costs(spec: ClusterSpec, view: Model, region: Region) -> tuple[EngineModelLimits, CostModel] | None:
    named = spec.costs_of(view)
    if named is None:
        return None
    file = read_cost_file(Path(named))
    return limits_for(view, spec.pool_of(view, region), file), cost_of(view, file)
