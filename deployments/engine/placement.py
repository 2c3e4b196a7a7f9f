"""Where one replica runs: a model and its pool, as Ray Serve's placement options.

Pure. One Ray placement per replica: a CPU replica books cores; a GPU replica books its cores and all its GPUs as one
bundle, which Ray cannot split over nodes, so that vLLM's `mp` executor finds every rank's GPU beside it. Not here: how
many replicas there are (`deployment.py`).
"""

from dataclasses import dataclass
from typing import Any

from cluster.spec import Model, Pool


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """What Ray must find on one node: the replica actor's resources, and for GPUs the placement group that holds
    them."""

    actor_options: dict[str, float]
    bundles: tuple[dict[str, float], ...] = ()

    def serve_options(self, env_vars: dict[str, str]) -> dict[str, Any]:
        environment = {"runtime_env": {"env_vars": env_vars}} if env_vars else {}
        options: dict[str, Any] = {"ray_actor_options": {**self.actor_options, **environment}}
        if self.bundles:
            options |= {
                "placement_group_bundles": [dict(bundle) for bundle in self.bundles],
                "placement_group_strategy": "STRICT_PACK",
            }
        return options


def place(model: Model, pool: Pool) -> NodePlacement:
    """The placement of one replica of `model` in `pool`.

    On CPUs tensor parallelism splits the same booked cores among its ranks. A GPU bundle also asks for a sliver of the
    node's accelerator type, Ray's way of saying "this kind of GPU and no other". A simulated engine books no GPU,
    whatever its pool has.
    """
    cpus = model.cpus
    if pool.accelerator == "cpu" or model.engine == "simulated":
        return NodePlacement({"num_cpus": cpus})
    gpus = float(model.settings.tensor_parallel_size)
    bundle = {"CPU": cpus, "GPU": gpus, f"accelerator_type:{pool.accelerator}": 0.001}
    return NodePlacement({"num_cpus": cpus, "num_gpus": gpus}, (bundle,))
