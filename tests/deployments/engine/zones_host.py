"""A Ray of a head and two nodes, each in a zone of its own, with the replicas of a simulated model over them, for
`test_zones_live.py`.

Answers the replicas of each zone: after the start, and after a zone was lost and as many are ready again.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from private_ray import answer

PATIENCE_S = 180.0
COUNT = 3
ZONES = ("a", "b")


def spec(costs: Path) -> Any:
    from cluster.spec import ClusterSpec

    return ClusterSpec.model_validate(
        {
            "name": "zoned",
            "regions": [{"name": "r", "pools": [{"name": "p", "nodes": 2, "zones": list(ZONES)}]}],
            "models": [
                {
                    "name": "m-simulated",
                    "source": "org/m",
                    "engine": "simulated",
                    "simulated": {"costs": str(costs)},
                    "settings": {"max_model_len": 4096, "max_num_seqs": 128, "max_num_batched_tokens": 8192, "cpus": 1},
                    "replicas": {"count": COUNT},
                }
            ],
        }
    )


def until(holds: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < limit, what
        time.sleep(0.2)


def main(folder: Path, costs: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from cluster.node_labels import POOL, ZONE

    store = {"object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    nodes = {zone: cluster.add_node(num_cpus=COUNT, labels={POOL: "p", ZONE: zone}, **store) for zone in ZONES}
    ray.init(address=cluster.address, namespace="raylane", log_to_driver=False)
    try:
        _lose_a_zone(folder, costs, cluster, nodes)
    finally:
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def _lose_a_zone(folder: Path, costs: Path, cluster: Any, nodes: dict[str, Any]) -> None:
    import ray
    from ray import serve

    from deployments.app import cell_apps
    from deployments.cell.directory import start_directory

    directory = start_directory("secret", run_dir=folder)
    serve.start(proxy_location="Disabled")
    whole = spec(costs)
    app = next(one for one in cell_apps(whole, whole.regions[0], folder) if one.name.startswith("model-"))
    serve._run(app.target, name=app.name, route_prefix=None, _blocking=False)

    def zones() -> Counter[str]:
        listing = ray.get(directory.watch.remote(-1, 0.0))
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return Counter(one.zone for one in listing.replicas if one.node_id in alive)

    until(lambda: zones().total() == COUNT, f"the first replicas: {zones()}")
    answer(["started", dict(zones())])
    cluster.remove_node(nodes.pop("a"), allow_graceful=False)
    until(lambda: zones()["a"] == 0 and zones().total() == COUNT, f"the replicas of zone a: {zones()}")
    answer(["lost", dict(zones())])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
