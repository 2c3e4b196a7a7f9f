"""How many replicas of a model there is room for: by its pool in the spec, and by Ray's nodes once all nodes of the
pool are there. Pure.

A cluster that may still grow is not limited by its current nodes; then only the pool counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.node_labels import EVERY_POOL
from cluster.spec import ClusterSpec, Model, Pool, Region
from deployments.engine.placement import place
from deployments.protocol import ReplicaFacts
from deployments.starts.start import ReplicaStart

Amounts = Mapping[str, float]
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Node:
    """A live node of Ray: its total resources, by Ray's names, and its label's pool."""

    node_id: str
    total: Amounts
    pool: str | None


def schedulable(
    spec: ClusterSpec, model: Model, region: Region, nodes: Iterable[Node], replicas: Iterable[ReplicaFacts]
) -> int | None:
    """The maximum number of replicas of `model` (a view, if it has groups) that can run beside those of other models
    and groups; None if neither the pool nor Ray limits it."""
    pool = spec.pool_of(model, region)
    known = [
        number
        for number in (_by_pool(model, pool), _by_nodes(spec, model, region, pool, nodes, replicas))
        if number is not None
    ]
    return min(known, default=None)


def nodes_with_room(
    spec: ClusterSpec,
    model: Model,
    region: Region,
    nodes: Iterable[Node],
    replicas: Iterable[ReplicaFacts],
    starting: Iterable[ReplicaStart],
) -> frozenset[str] | None:
    """The nodes on which one more replica of `model` fits beside all that run or start there; None where no node is
    known."""
    free = {node.node_id: dict(node.total) for node in nodes}
    if not free:
        return None
    models = {view.group_key: view for view in spec.views_in(region)}
    there = {one.replica_id: (one.group_key, one.node_id) for one in replicas}
    there |= {one.replica_id: (one.model, one.node_id) for one in starting}
    for name, node_id in there.values():
        if name in models and node_id in free:
            for resource, amount in needs(models[name], spec.pool_of(models[name], region)).items():
                free[node_id][resource] = free[node_id].get(resource, 0.0) - amount
    need = needs(model, spec.pool_of(model, region))
    return frozenset(node_id for node_id, left in free.items() if _fits(need, left))


def _by_pool(model: Model, pool: Pool) -> int | None:
    if pool.accelerator != "cpu":
        return pool.nodes * (pool.gpus_per_node // model.settings.ranks)
    return None if pool.cpus_per_node is None else pool.nodes * int(pool.cpus_per_node / model.cpus + _ROUNDING)


def _by_nodes(
    spec: ClusterSpec, model: Model, region: Region, pool: Pool, nodes: Iterable[Node], replicas: Iterable[ReplicaFacts]
) -> int | None:
    need = needs(model, pool)
    able = {
        node.node_id: dict(node.total)
        for node in nodes
        if node.pool in (pool.name, EVERY_POOL) and _fits(need, node.total)
    }
    if len(able) < pool.nodes:
        return None
    models = {view.group_key: view for view in spec.views_in(region)}
    for facts in replicas:
        other, free = models.get(facts.group_key), able.get(facts.node_id)
        if facts.group_key != model.group_key and other is not None and free is not None:
            for name, amount in needs(other, spec.pool_of(other, region)).items():
                free[name] = free.get(name, 0.0) - amount
    return sum(_fits(need, free) for free in able.values())


def needs(model: Model, pool: Pool) -> Amounts:
    """The resources that one replica takes from a node, by Ray's names."""
    return place(model, pool).resources


def _fits(need: Amounts, free: Amounts) -> int:
    return int(max(0.0, min(free.get(name, 0.0) / amount for name, amount in need.items() if amount > 0) + _ROUNDING))
