"""The cost file of a simulated model: read, and held against what the spec says of the engine."""

from pathlib import Path

from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile, CostFileError, read_cost_file


def read_costs(model: Model) -> CostFile:
    """The costs of a simulated model. Raises CostFileError, also where they are of an engine with other limits: times
    would be taken of one engine, and placements made for another."""
    assert model.simulated is not None
    costs = read_cost_file(Path(model.simulated.costs))
    settings, engine = model.settings, costs.engine
    for key, known in (
        ("max_num_seqs", engine.max_num_seqs),
        ("max_num_batched_tokens", engine.max_num_batched_tokens),
        ("data_parallel_size", engine.data_ranks),
    ):
        desired = getattr(settings, key)
        if desired != known:
            raise CostFileError(
                f"{model.where}.settings.{key} = {desired}: allowed: {known}, as in its cost file "
                f"{model.simulated.costs}"
            )
    if settings.max_model_len > engine.kv_tokens:
        reported = f"{model.where}.settings.max_model_len = {settings.max_model_len}"
        raise CostFileError(
            f"{reported}: allowed: at most the {engine.kv_tokens} KV tokens of its cost file {model.simulated.costs}"
        )
    return costs


def cost_problems(spec: ClusterSpec) -> list[str]:
    """What is wrong with the cost files of a spec's simulated models on this machine."""
    problems = []
    for view in spec.views_in():
        if view.simulated is not None:
            try:
                read_costs(view)
            except CostFileError as error:
                problems.append(str(error))
    return problems
