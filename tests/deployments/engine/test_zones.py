"""Replicas over zones: by Ray Serve's own scheduler, over nodes that only its cache of them knows."""

import warnings
from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.node_labels import POOL, ZONE, pool_selector, zone_selector, zones_in
from deployments.engine.zones import emptiest, leaving, spread_over_zones

with warnings.catch_warnings():  # Ray's own use of pydantic
    warnings.simplefilter("ignore", DeprecationWarning)
    from ray.serve._private.cluster_node_info_cache import ClusterNodeInfoCache
    from ray.serve._private.common import DeploymentID, ReplicaID
    from ray.serve._private.deployment_scheduler import (
        DeploymentDownscaleRequest,
        DeploymentScheduler,
        ReplicaSchedulingRequest,
        SpreadDeploymentSchedulingPolicy,
    )

APP = DeploymentID("engine-m", "model-m")


def test_the_emptiest_zone_with_room_is_chosen_and_of_equals_the_first() -> None:
    assert emptiest(("a", "b"), {"a": 1}, {"a", "b"}) == "b"
    assert emptiest(("a", "b"), {"a": 1}, {"a"}) == "a"
    assert emptiest(("b", "a"), {}, {"a", "b"}) == "b"
    assert emptiest(("a", "b"), {}, {"c"}) is None


@given(st.dictionaries(st.integers(0, 50), st.sampled_from("abc"), max_size=12), st.integers(0, 12))
def test_whoever_leaves_leaves_the_fullest_zone(zone_of: dict[int, str], number: int) -> None:
    gone = leaving(sorted(zone_of), zone_of, number)
    assert len(gone) == len(set(gone)) == min(number, len(zone_of))
    before = Counter(zone_of.values())
    after = before - Counter(zone_of[one] for one in gone)
    for zone in {zone_of[one] for one in gone}:
        assert after[zone] >= max(after.values(), default=0) - 1, "none that lost one is left with fewer than another"


class _Nodes(ClusterNodeInfoCache):
    """So many nodes for so many replicas each, by zone."""

    def __init__(self, zones: dict[str, int], each: int = 4) -> None:
        self.labels = {
            f"{zone}{number}": {POOL: "p", ZONE: zone} for zone, count in zones.items() for number in range(count)
        }
        self.each = each

    def update(self) -> None: ...

    def get_alive_nodes(self) -> list[tuple[str, str, str]]:
        return [(node, "", "") for node in self.labels]

    def get_alive_node_ids(self) -> set[str]:
        return set(self.labels)

    def get_draining_nodes(self) -> dict[str, int]:
        return {}

    def get_node_az(self, node_id: str) -> str | None:
        return None

    def get_available_resources_per_node(self) -> dict[str, dict[str, float]]:
        return {node: {"CPU": float(self.each)} for node in self.labels}

    def get_total_resources_per_node(self) -> dict[str, dict[str, float]]:
        return self.get_available_resources_per_node()

    def get_node_labels(self, node_id: str) -> dict[str, str]:
        return self.labels.get(node_id, {})


class _Actor:
    """Takes the place of a replica's actor class: remembers with which options it was started."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []

    def options(self, **options: Any) -> "_Actor":
        self.started.append(options)
        return self

    def remote(self, *arguments: Any) -> "_Actor":
        return self


class Cell:
    """A deployment on these nodes. Ray places each replica where its selector says, on the node with the most room."""

    def __init__(self, nodes: _Nodes, selector: dict[str, str]) -> None:
        spread_over_zones()
        self.nodes, self.actor, self.selector = nodes, _Actor(), selector
        self.scheduler = DeploymentScheduler(nodes, "head", lambda request: None)
        self.scheduler.on_deployment_created(APP, SpreadDeploymentSchedulingPolicy())
        self.scheduler._deployments[APP].label_selector = selector
        from ray.serve._private.deployment_scheduler import RequestedResources

        self.scheduler._deployments[APP].actor_resources = RequestedResources({"CPU": 1.0})
        self.where: dict[ReplicaID, str] = {}
        self._number = 0

    def start(self, number: int) -> None:
        requests = []
        for _ in range(number):
            self._number += 1
            name = ReplicaID(f"r{self._number:03}", APP)
            options = {"name": name.unique_id, "label_selector": dict(self.selector)}
            requests.append(
                ReplicaSchedulingRequest(name, self.actor, {"CPU": 1.0}, options, (), lambda *_, **__: None)  # type: ignore[arg-type]
            )
        before = len(self.actor.started)
        self.scheduler.schedule({APP: requests}, {})
        for request, options in zip(requests, self.actor.started[before:], strict=True):
            self._place(request.replica_id, options)

    def _place(self, replica: ReplicaID, options: dict[str, Any]) -> None:
        used = Counter(self.where.values())
        for selector in (options["label_selector"], *(one["label_selector"] for one in options["fallback_strategy"])):
            zone = selector[ZONE]
            nodes = [
                node
                for node, labels in self.nodes.labels.items()
                if (labels[ZONE] == zone or labels[ZONE] in zones_in(selector)) and used[node] < self.nodes.each
            ]
            if nodes:
                self.where[replica] = min(nodes, key=lambda node: used[node])
                self.scheduler.on_replica_running(replica, self.where[replica])
                return

    def stop(self, number: int) -> None:
        gone = self.scheduler.schedule({}, {APP: DeploymentDownscaleRequest(APP, number)})[APP]
        assert len(gone) == number
        self.end(gone)

    def end(self, replicas: set[ReplicaID]) -> None:
        for replica in replicas:
            self.scheduler.on_replica_stopping(replica)
            del self.where[replica]

    def lose(self, zone: str) -> int:
        gone = {replica for replica, node in self.where.items() if self.nodes.labels[node][ZONE] == zone}
        self.nodes.labels = {node: labels for node, labels in self.nodes.labels.items() if labels[ZONE] != zone}
        self.end(gone)
        return len(gone)

    @property
    def zones(self) -> Counter[str]:
        return Counter(self.nodes.labels[node][ZONE] for node in self.where.values())


def _cell(zones: dict[str, int], each: int = 4) -> Cell:
    return Cell(_Nodes(zones, each), pool_selector(["p"]) | zone_selector(zones))


def test_replicas_are_spread_over_zones_and_come_back_in_the_others_when_one_is_lost() -> None:
    cell = _cell({"a": 2, "b": 2, "c": 2})
    cell.start(7)
    assert sorted(cell.zones.values()) == [2, 2, 3]
    lost = cell.lose("b")
    assert lost <= ceil(7 / 3)
    cell.start(lost)
    assert sorted(cell.zones.values()) == [3, 4]
    cell.stop(3)
    assert sorted(cell.zones.values()) == [2, 2]


def test_a_zone_without_room_gets_none_and_blocks_none() -> None:
    cell = _cell({"a": 1, "b": 2}, each=2)
    cell.start(2)
    cell.start(2)
    cell.start(2)
    assert cell.zones == {"a": 2, "b": 4}


def test_each_replica_asks_for_its_zone_and_would_take_any_other() -> None:
    cell = _cell({"a": 1, "b": 1})
    cell.start(1)
    (options,) = cell.actor.started
    assert options["label_selector"] == {**pool_selector(["p"]), ZONE: "a"}
    assert options["fallback_strategy"] == [{"label_selector": pool_selector(["p"]) | zone_selector(["a", "b"])}]


def test_a_deployment_without_zones_is_scheduled_as_serve_does() -> None:
    cell = Cell(_Nodes({"a": 1}), pool_selector(["p"]))
    name = ReplicaID("r1", APP)
    options = {"name": "r1", "label_selector": dict(cell.selector)}
    request = ReplicaSchedulingRequest(name, cell.actor, {"CPU": 1.0}, options, (), lambda *_, **__: None)  # type: ignore[arg-type]
    cell.scheduler.schedule({APP: [request]}, {})
    assert cell.actor.started == [{"scheduling_strategy": "SPREAD", **options}]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=12), st.integers(2, 4))
def test_the_loss_of_a_zone_takes_at_most_its_share(steps: list[tuple[bool, int]], zones: int) -> None:
    cell = _cell({"abcd"[number]: 3 for number in range(zones)}, each=20)
    for up, number in steps:
        if up:
            cell.start(number)
        elif number <= len(cell.where):
            cell.stop(number)
        assert max(cell.zones.values(), default=0) <= ceil(len(cell.where) / zones)


@pytest.mark.parametrize("selector", [{}, {ZONE: "a"}, zone_selector(["x-1", "y"])])
def test_a_selectors_zones_are_read_again(selector: dict[str, str]) -> None:
    assert (
        zones_in(selector)
        == ({"": ()} | {"a": ("a",), zone_selector(["x-1", "y"])[ZONE]: ("x-1", "y")})[selector.get(ZONE, "")]
    )
