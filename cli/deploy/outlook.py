"""What a change does to the models that run: which of them will have fewer replicas, for how long, and where there is
no room for a new replica beside the old ones. Pure: what Serve, Ray and a gateway say comes in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.node_labels import is_in_pool
from cluster.spec import ClusterSpec, Region
from deployments.app import app_name
from deployments.engine.deployment import SURGE_PERCENT
from deployments.engine.placement import place
from deployments.gateway.deployment import GATEWAY_APP


@dataclass(frozen=True, slots=True)
class RunningCell:
    """`applications`: as Serve's REST API has them. `nodes`: Ray's living nodes. `start_s`: how long a model's last
    starts took (seconds), where a gateway says so."""

    applications: Mapping[str, Any]
    nodes: Sequence[Mapping[str, Any]]
    start_s: Mapping[str, float]

    def free(self, resource: str, pool: str) -> list[float]:
        """What each node of the pool has left of a resource."""
        used = dict.fromkeys((str(node["node_id"]) for node in self.nodes), 0.0)
        for application in self.applications.values():
            for deployment in application["deployments"].values():
                for replica in deployment["replicas"]:
                    if replica.get("node_id") in used:  # one that is pending has none
                        used[replica["node_id"]] += deployment["required_resources"].get(resource, 0.0)
        return [
            node["resources_total"].get(resource, 0.0) - used[node["node_id"]]
            for node in self.nodes
            if is_in_pool(node["labels"], pool)
        ]


def outlook(spec: ClusterSpec, region: Region, config: Mapping[str, Any], cell: RunningCell) -> Iterator[str]:
    """A sentence for each application that a configuration changes or removes."""
    views = {app_name(view.group_key): view for view in spec.views_in(region)}
    new = {one["name"]: one for one in config["applications"]}
    for name, application in cell.applications.items():
        if name not in new:
            yield f"{name}: its replicas end"
            continue
        if (application["deployed_app_config"] or {}).get("args") == new[name]["args"]:
            continue
        if name == GATEWAY_APP:
            yield "gateways: replaced one after the other; what waits is served first, streams have gateway.drain_s"
            continue
        # An application that could not be built has no deployment.
        count = sum(len(one["replicas"]) for one in application["deployments"].values())
        view = views[name]
        if not count:
            yield f"{name}: no replica runs"
            continue
        at_once = max(1, -(-count * SURGE_PERCENT // 100))
        room = place(view, spec.pool_of(view, region))
        lacking = [
            f"{amount:g} {resource} (free: at most {max(cell.free(resource, room.pool), default=0.0):g})"
            for resource, amount in room.resources.items()
            if resource in ("CPU", "GPU") and amount > max(cell.free(resource, room.pool), default=0.0)
        ]
        if lacking:
            yield (
                f"{name}: no node of pool {room.pool!r} has room for a new replica beside the old ones: it needs "
                f"{' and '.join(lacking)}. The {count} old ones keep serving until there is room"
            )
            continue
        took = cell.start_s.get(view.name)
        time = (
            "how long a start takes is not known"
            if took is None
            else (f"a start took {took:.0f} s: about {took * -(-count // at_once):.0f} s in all")
        )
        yield f"{name}: {count} replicas are replaced, {at_once} at a time, each after its new one is ready; {time}"
