"""Ray's node labels, by which gateways and replicas find the nodes of their pool.

Whoever starts a node gives it the label: `ray start --labels=raylane.io/pool=NAME`. A node without the label, such as
the head of a cluster of several nodes, gets neither a gateway nor a replica.
"""

from collections.abc import Iterable, Mapping

POOL = "raylane.io/pool"
EVERY_POOL = "every_pool"
"""The label's value on the only node of a cluster, which is in all pools. No pool can have this name."""


def pool_selector(pools: Iterable[str]) -> dict[str, str]:
    """Ray's `label_selector` for the nodes of any of these pools."""
    return {POOL: f"in({','.join((*pools, EVERY_POOL))})"}


def is_in_pool(labels: Mapping[str, str], *pools: str) -> bool:
    """Whether a node with these labels is in one of the pools."""
    return labels.get(POOL) in (*pools, EVERY_POOL)
