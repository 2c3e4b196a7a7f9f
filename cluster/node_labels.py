"""Ray's node labels, by which gateways and replicas find the nodes of their pool, and replicas are spread over zones.

Whoever starts a node gives it the labels: `ray start --labels=raylane.io/pool=NAME,raylane.io/zone=ZONE`. A node
without a pool's label, such as the head of a cluster of several nodes, gets neither a gateway nor a replica.
"""

from collections.abc import Iterable, Mapping

POOL = "raylane.io/pool"
EVERY_POOL = "every_pool"
"""The label's value on the only node of a cluster, which is in all pools. No pool can have this name."""
ZONE = "raylane.io/zone"
EVERY_ZONE = "every_zone"
"""...and on that node, which stands for all zones."""


def labels_of(pool: str, zone: str | None = None) -> dict[str, str]:
    """The labels of a node of this pool, in a zone where the pool has some."""
    return {POOL: pool} | ({} if zone is None else {ZONE: zone})


def pool_selector(pools: Iterable[str]) -> dict[str, str]:
    """Ray's `label_selector` for the nodes of any of these pools."""
    return {POOL: f"in({','.join((*pools, EVERY_POOL))})"}


def zone_selector(zones: Iterable[str]) -> dict[str, str]:
    """Ray's `label_selector` for the nodes in any of these zones."""
    return {ZONE: f"in({','.join((*zones, EVERY_ZONE))})"}


def zones_in(selector: Mapping[str, str]) -> tuple[str, ...]:
    """The zones of a selector that `zone_selector` made; none, if it has none."""
    listed = selector.get(ZONE, "").removeprefix("in(").removesuffix(")").split(",")
    return tuple(zone for zone in listed if zone and zone != EVERY_ZONE)


def zone_of(labels: Mapping[str, str]) -> str:
    """The zone of a node with these labels; empty, where it has none of its own."""
    zone = labels.get(ZONE, "")
    return "" if zone == EVERY_ZONE else zone


def is_in_pool(labels: Mapping[str, str], *pools: str) -> bool:
    """Whether a node with these labels is in one of the pools."""
    return labels.get(POOL) in (*pools, EVERY_POOL)
