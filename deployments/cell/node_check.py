"""What the nodes of a Ray cluster must be like before a cell is deployed on it: one version of everything, a node for
each pool, the files that the spec names, and neither a gateway nor a replica on the head of several nodes.

`look_at_nodes` asks the nodes; `node_problems` is pure. `raylane up --address` calls both. A node may also come later:
each gateway and each replica asks the head whether its node may be part of the cell (`check_own_node`).
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.node_labels import EVERY_POOL, POOL, ZONE, is_in_pool
from cluster.spec import ClusterSpec, Model, Region
from cluster.versions import ENGINE, differences, versions_here

_ANSWER_S = 10.0
_PATIENCE_S = 60.0
"""How long a node may take to start a process that imports raylane (seconds)."""


class NodesDiffer(ValueError):
    """Nodes that cannot be part of the cell; the message names each of them."""


async def check_own_node(directory: Any, address: str) -> None:
    """Raises NodesDiffer where this node, of that address, has other versions than the head now. A directory that does
    not answer refuses nobody."""
    problems: list[str] = []
    with contextlib.suppress(TimeoutError, RayError, AttributeError):  # AttributeError: a directory of an older version
        async with asyncio.timeout(_ANSWER_S):
            problems = await directory.version_differences.remote(versions_here())
    if problems:
        raise NodesDiffer(f"node {address}: {', '.join(problems)}; needed: what the head has")


@dataclass(frozen=True, slots=True)
class CellNode:
    """A live node of Ray, by its address, and what it reported: its versions, and which paths it lacks. `error`: why it
    reported nothing."""

    address: str
    is_head: bool
    labels: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    error: str = ""


def paths_on_nodes(model: Model, spec: ClusterSpec) -> dict[str, str]:
    """The local files and folders that the nodes of a model's pool must have, by the spec's keys for them."""
    costs = f"{model.where}.autoscaling.costs"
    named = {**model.local_paths, costs: spec.autoscaling_of(model).costs}
    return {key: path for key, path in named.items() if path is not None and path.startswith(("/", "~"))}


def report_node(paths: tuple[str, ...]) -> dict[str, Any]:
    """Runs on a node. Plain data, so that a node with another version of raylane can answer."""
    missing = tuple(path for path in paths if not os.path.exists(os.path.expanduser(path)))
    return {"versions": versions_here(), "missing": missing}


def look_at_nodes(paths: Iterable[str]) -> list[CellNode]:
    """Asks each live node for its versions, and which of these paths it lacks. Ray must be connected."""
    asked = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(report_node)
    alive = [node for node in ray.nodes() if node["Alive"]]
    looked_for = tuple(sorted(set(paths)))
    reports = [
        asked.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(looked_for)
        for node in alive
    ]
    deadline = time.monotonic() + _PATIENCE_S
    return [_reported(node, report, deadline) for node, report in zip(alive, reports, strict=True)]


def _reported(node: Mapping[str, Any], report: Any, deadline: float) -> CellNode:
    known = CellNode(node["NodeManagerAddress"], HEAD_NODE_RESOURCE_NAME in node["Resources"], node.get("Labels") or {})
    try:
        found = ray.get(report, timeout=max(0.1, deadline - time.monotonic()))
        return CellNode(known.address, known.is_head, known.labels, found["versions"], tuple(found["missing"]))
    except (RayError, ImportError, LookupError, TypeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        return CellNode(known.address, known.is_head, known.labels, error=lines[-1].strip())


def node_problems(
    spec: ClusterSpec, region: Region, expected: Mapping[str, str], nodes: Sequence[CellNode]
) -> list[str]:
    """Why the cell of `region` cannot be deployed on these nodes; each problem names its node. `expected`: the versions
    that every node must have.

    Nodes without a label of one of the region's pools are not looked at, except the head, which runs the directory and
    Serve's controller.
    """
    if not any(node.is_head for node in nodes):
        return ["the cluster has no living head"]
    models = spec.views_in(region)
    used = [node for node in nodes if node.is_head or is_in_pool(node.labels, *(pool.name for pool in region.pools))]
    problems = [problem for node in used for problem in _problems_of(spec, region, expected, models, node)]
    if len(nodes) > 1:
        problems += [
            f"node {node.address}: is the head of {len(nodes)} nodes and has the label {POOL}={node.labels[POOL]}; "
            "allowed: the label on other nodes alone, since no gateway and no replica runs on the head"
            for node in used
            if node.is_head and POOL in node.labels
        ]
        problems += [
            f"node {node.address}: has the label {POOL}={EVERY_POOL}; allowed: only in a cluster of one node"
            for node in used
            if not node.is_head and node.labels.get(POOL) == EVERY_POOL
        ]
    problems += [problem for node in used for problem in _zone_problems(region, node)]
    return problems + _pools_without_nodes(spec, region, models, nodes)


def _zone_problems(region: Region, node: CellNode) -> list[str]:
    """A node of a pool with zones must be in one of them, or it would get no replica."""
    pool = next((pool for pool in region.pools if pool.name == node.labels.get(POOL)), None)
    if pool is None or pool.zones is None or node.labels.get(ZONE) in pool.zones:
        return []
    label = f"the label {ZONE}={node.labels[ZONE]}" if ZONE in node.labels else f"no label {ZONE}"
    return [f"node {node.address}: has {label}; needed, as a node of pool {pool.name}: {' or '.join(pool.zones)}"]


def _problems_of(
    spec: ClusterSpec, region: Region, expected: Mapping[str, str], models: Sequence[Model], node: CellNode
) -> list[str]:
    if node.error:
        return [f"node {node.address}: did not report its versions (is raylane installed there?): {node.error}"]
    hosted = [model for model in models if is_in_pool(node.labels, spec.pool_of(model, region).name)]
    needed = dict(expected)
    if not any(model.engine == "vllm" for model in hosted):
        needed.pop(ENGINE, None)
    elif ENGINE not in node.versions:
        needed.setdefault(ENGINE, "any version")
    problems = [f"node {node.address}: {difference}" for difference in differences(needed, node.versions)]
    for model in models if node.is_head else hosted:
        problems += [
            f"node {node.address}: {key} = {path!r} does not exist there"
            for key, path in paths_on_nodes(model, spec).items()
            if path in node.missing and (model in hosted or key.endswith("autoscaling.costs"))
        ]
    return problems


def _pools_without_nodes(
    spec: ClusterSpec, region: Region, models: Sequence[Model], nodes: Sequence[CellNode]
) -> list[str]:
    users = {
        spec.pool_of(model, region).name: f"model {model.group_key}" for model in models if spec.min_replicas(model)
    }
    if spec.gateway.pool is not None:
        users.setdefault(spec.gateway.pool, "the gateways")
    labels = ", ".join(f"{node.address}: {node.labels.get(POOL, 'none')}" for node in nodes)
    places = sum(pool.nodes for pool in spec.gateway_pools(region))
    few = [
        f"gateway.replicas = {spec.gateway.replicas}: allowed: 1 to {places}, one for each node (`nodes`) of its pools"
    ]
    return (few if places < spec.gateway.replicas else []) + [
        f"no node has the label {POOL}={pool}, which {user} needs; the nodes and their labels: {labels}"
        for pool, user in users.items()
        if not any(is_in_pool(node.labels, pool) for node in nodes)
    ]


def gateway_nodes(spec: ClusterSpec, region: Region, nodes: Iterable[CellNode]) -> int:
    """How many of these nodes may have a gateway."""
    pools = [pool.name for pool in spec.gateway_pools(region)]
    return sum(is_in_pool(node.labels, *pools) for node in nodes)


def expected_versions(nodes: Iterable[CellNode]) -> dict[str, str]:
    """The versions of this machine; where it has no vLLM, that of the first node that has it."""
    here = versions_here()
    engines = (node.versions[ENGINE] for node in nodes if ENGINE in node.versions)
    engine = here.get(ENGINE) or next(engines, None)
    return here if engine is None else {**here, ENGINE: engine}
