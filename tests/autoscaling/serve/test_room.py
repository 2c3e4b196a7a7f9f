from typing import Any

from autoscaling.serve.room import Node, schedulable
from cluster.node_labels import EVERY_POOL
from cluster.spec import ClusterSpec
from deployments.protocol import ReplicaFacts


def spec(pool: dict[str, Any], *models: dict[str, Any]) -> ClusterSpec:
    engine = {"max_model_len": 100}
    reported = [
        {"source": "s", "name": f"m{number}", "settings": {**engine, **model}}
        for number, model in enumerate(models or ({},))
    ]
    return ClusterSpec.model_validate(
        {"name": "x", "regions": [{"name": "r", "pools": [{"name": "p", **pool}]}], "models": reported}
    )


def room(spec: ClusterSpec, nodes: list[Node], replicas: tuple[ReplicaFacts, ...] = ()) -> int | None:
    return schedulable(spec, spec.models[0], spec.regions[0], nodes, replicas)


def facts(model: str, node_id: str) -> ReplicaFacts:
    return ReplicaFacts("x", model, "", 1, node_id, "generate", 100, 1, 16, 1)


def gpu_node(node_id: str, gpus: float) -> Node:
    return Node(node_id, {"CPU": 32.0, "GPU": gpus, "accelerator_type:H100": 1.0}, "p")


def test_a_cpu_pool_has_room_for_what_rays_nodes_hold() -> None:
    assert room(spec({}), [Node("a", {"CPU": 5.0}, "p")]) == 5
    assert room(spec({}, {"cpus": 2.0}), [Node("a", {"CPU": 5.0}, "p")]) == 2
    assert room(spec({"nodes": 2}), [Node("a", {"CPU": 5.0}, "p"), Node("b", {"CPU": 1.5}, "p")]) == 6


def test_the_pool_says_how_many_where_the_cluster_may_still_grow() -> None:
    pool = {"accelerator": "H100", "gpus_per_node": 8, "nodes": 3}
    assert room(spec(pool), []) == 24
    assert room(spec(pool, {"tensor_parallel_size": 4}), [gpu_node("a", 8)]) == 6
    assert room(spec(pool, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}), [gpu_node("a", 8)]) == 6
    assert room(spec({"nodes": 2}), [Node("a", {"CPU": 5.0}, "p")]) is None
    assert room(spec({"nodes": 2, "cpus_per_node": 4}), [Node("a", {"CPU": 5.0}, "p")]) == 8


def test_a_whole_pool_is_held_to_what_is_there() -> None:
    pool = {"accelerator": "H100", "gpus_per_node": 8, "nodes": 2}
    broken = [gpu_node("a", 8), gpu_node("b", 7)]
    assert room(spec(pool), broken) == 15
    assert room(spec(pool, {"tensor_parallel_size": 4}), broken) == 3
    other = Node("b", {"CPU": 32.0, "GPU": 8.0, "accelerator_type:L40S": 1.0}, "p")
    assert room(spec(pool), [gpu_node("a", 8), other]) == 16


def test_what_other_models_hold_is_not_there() -> None:
    pool = {"accelerator": "H100", "gpus_per_node": 8}
    both = spec(pool, {}, {"tensor_parallel_size": 4})
    there = (facts("m1", "a"), facts("m0", "a"), facts("m1", "elsewhere"), facts("gone", "a"))
    assert room(both, [gpu_node("a", 8)], there) == 4


def test_only_nodes_of_the_pool_count() -> None:
    nodes = [Node("head", {"CPU": 8.0}, None), Node("a", {"CPU": 5.0}, "p"), Node("b", {"CPU": 7.0}, "q")]
    assert room(spec({}), nodes) == 5
    assert room(spec({}), [Node("a", {"CPU": 5.0}, EVERY_POOL)]) == 5
