"""Spreads the replicas of a deployment over the zones of its pool, in Serve's controller.

A replica that starts gets the zone with the fewest replicas of its deployment, among those that have a node with room
for it; Ray gets that zone as the label selector, and all zones of the pool as the fallback. Where replicas stop, the
fullest zone loses one first. So as long as zones have room, two of them differ by at most one replica, and the loss of
one takes at most ceil(n / zones) of n. Replicas of a lost zone start in the others.

Serve spreads over nodes and knows no zones, and it has no hook for this: two methods of its scheduler are wrapped, for
deployments with a zone selector alone. Where Serve no longer has them, its own spread over nodes is left.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from cluster.node_labels import ZONE, zones_in

log = logging.getLogger("raylane.zones")

Replica = TypeVar("Replica", bound=Hashable)

_MARK = "raylane_zone"
"""The attribute of Serve's record of a replica that is starting: the zone chosen for it."""


def emptiest(zones: Sequence[str], counts: Mapping[str, int], roomy: Collection[str]) -> str | None:
    """The zone with the fewest replicas among those with room, of equals the first; None where there is no room."""
    return min((zone for zone in zones if zone in roomy), key=lambda zone: counts.get(zone, 0), default=None)


def leaving(in_order: Sequence[Replica], zone_of: Mapping[Replica, str], number: int) -> list[Replica]:
    """Which of the replicas stop: each time the first of the fullest zone. `in_order`: those first that are to stop
    first where zones are alike."""
    left, counts, found = list(in_order), Counter(zone_of[one] for one in in_order), []
    for _ in range(min(number, len(left))):
        one = max(left, key=lambda replica: counts[zone_of[replica]])
        left.remove(one)
        counts[zone_of[one]] -= 1
        found.append(one)
    return found


def spread_over_zones() -> None:
    """Wraps the scheduler of this process's Serve, once."""
    from ray.serve._private import deployment_scheduler  # only the controller needs Serve's insides

    scheduler: Any = deployment_scheduler.DeploymentScheduler
    names = ("_schedule_replica", "_get_replicas_to_stop", "_get_available_resources_per_node")
    missing = [name for name in names if not hasattr(scheduler, name)]
    if missing:
        log.warning("replicas are not spread over zones: Serve's scheduler has no %s", ", ".join(missing))
        return
    if not hasattr(scheduler, _MARK):
        scheduler._schedule_replica = _choosing(scheduler._schedule_replica)
        scheduler._get_replicas_to_stop = _stopping(scheduler._get_replicas_to_stop)
        setattr(scheduler, _MARK, True)


def _choosing(schedule: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(schedule)
    def schedule_replica(self: Any, scheduling_request: Any, *arguments: Any, **more: Any) -> bool:
        request, zone = scheduling_request, None
        selector = request.actor_options.get("label_selector") or {}
        if zones_in(selector) and request.placement_group_bundles is None:
            zone = emptiest(zones_in(selector), _counts(self, request.replica_id.deployment_id), _roomy(self, request))
        if zone is not None:
            own = {"label_selector": {**selector, ZONE: zone}, "fallback_strategy": [{"label_selector": selector}]}
            request.actor_options = {**request.actor_options, **own}
        scheduled = schedule(self, request, *arguments, **more)
        launching = self._launching_replicas[request.replica_id.deployment_id].get(request.replica_id)
        if zone is not None and launching is not None:
            setattr(launching, _MARK, zone)
        return scheduled

    return schedule_replica


def _stopping(stop: Callable[..., set[Any]]) -> Callable[..., set[Any]]:
    @wraps(stop)
    def replicas_to_stop(self: Any, deployment_id: Any, max_num_to_stop: int, *arguments: Any, **more: Any) -> set[Any]:
        running = self._running_replicas[deployment_id]
        if not zones_in(self._deployments[deployment_id].label_selector or {}):
            return stop(self, deployment_id, max_num_to_stop, *arguments, **more)
        states = (self._pending_replicas, self._launching_replicas, self._recovering_replicas)
        starting = [replica for state in states for replica in state[deployment_id]]
        per_node = self._get_node_to_running_replicas()
        newest_first = list(reversed(running))
        newest_first.sort(key=lambda replica: len(per_node[running[replica]]))
        zone_of = {replica: _zone_of(self, node) for replica, node in running.items()}
        chosen = starting[:max_num_to_stop]
        return {*chosen, *leaving(newest_first, zone_of, max_num_to_stop - len(chosen))}

    return replicas_to_stop


def _zone_of(scheduler: Any, node_id: str) -> str:
    return str(scheduler._cluster_node_info_cache.get_node_labels(node_id).get(ZONE, ""))


def _counts(scheduler: Any, deployment_id: Any) -> Counter[str]:
    """The deployment's replicas by zone: those that run, and those that are on their way."""
    counts = Counter(_zone_of(scheduler, node) for node in scheduler._running_replicas[deployment_id].values())
    counts.update(getattr(one, _MARK, "") for one in scheduler._launching_replicas[deployment_id].values())
    return counts


def _roomy(scheduler: Any, request: Any) -> set[str]:
    """The zones that have a node of the pool with room for the replica."""
    from ray._raylet import node_labels_match_selector  # type: ignore[attr-defined]  # compiled

    selector = request.actor_options["label_selector"]
    return {
        _zone_of(scheduler, node)
        for node, free in scheduler._get_available_resources_per_node().items()
        if free.can_fit(request.requested_resources)
        and node_labels_match_selector(scheduler._cluster_node_info_cache.get_node_labels(node), selector)
    }
