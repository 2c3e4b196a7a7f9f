"""Where one replica runs: a model and its pool, as Ray Serve's placement options.

Pure. A replica is one Ray actor, which reserves its cores and all its GPUs; in which zone of its pool is chosen when it
starts (`zones.py`). An actor is on one node, so vLLM's `mp`
executor finds every rank's GPU beside it. Serve spreads actors over the nodes of their pool, which it does not do with
placement groups. Not here: how many replicas there are (`deployment.py`).
"""

from dataclasses import dataclass
from typing import Any

from cluster.node_labels import pool_selector, zone_selector
from cluster.spec import Model, Pool

_RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """What Ray must find on one node: the replica actor's resources, by Ray's names for an actor's, and the pool that
    the node's label names, in one of its `zones`, where the pool has some."""

    actor_options: dict[str, float]
    pool: str
    accelerator_type: str | None = None
    zones: tuple[str, ...] = ()

    @property
    def resources(self) -> dict[str, float]:
        """What the replica takes from its node, by Ray's names for a node's resources."""
        # Ray reserves a sliver of a node's accelerator type for each actor that asks for it.
        kind = {} if self.accelerator_type is None else {f"accelerator_type:{self.accelerator_type}": 0.001}
        return {_RAY_NAMES[name]: amount for name, amount in self.actor_options.items()} | kind

    def serve_options(self, env_vars: dict[str, str]) -> dict[str, Any]:
        environment = {"runtime_env": {"env_vars": env_vars}} if env_vars else {}
        kind = {} if self.accelerator_type is None else {"accelerator_type": self.accelerator_type}
        selector = pool_selector([self.pool]) | (zone_selector(self.zones) if self.zones else {})
        options = {**self.actor_options, **kind, "label_selector": selector, **environment}
        return {"ray_actor_options": options}


def place(model: Model, pool: Pool) -> NodePlacement:
    """The placement of one replica of `model` in `pool`.

    On CPUs the ranks of a replica share the booked cores. A simulated engine reserves no GPU, whatever its
    pool has.
    """
    cpus = model.cpus
    if pool.accelerator == "cpu" or model.engine == "simulated":
        return NodePlacement({"num_cpus": cpus}, pool.name, zones=pool.zones or ())
    gpus = float(model.settings.ranks)
    return NodePlacement({"num_cpus": cpus, "num_gpus": gpus}, pool.name, pool.accelerator, pool.zones or ())
