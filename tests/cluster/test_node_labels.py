"""The labels by which Ray's scheduler finds the nodes of a pool, and what we make of them ourselves."""

import pytest
from ray._private.label_utils import validate_label_key, validate_label_selector, validate_label_value

from cluster.node_labels import EVERY_POOL, EVERY_ZONE, POOL, ZONE, is_in_pool, pool_selector, zone_of, zone_selector


@pytest.mark.parametrize("pools", [["cpu"], ["h100.spot", "l40s-2"], ["a" * 63]])
def test_ray_accepts_the_labels_and_the_selector(pools: list[str]) -> None:
    assert validate_label_key(POOL) is None
    for value in (*pools, EVERY_POOL):
        validate_label_value(value)
    assert validate_label_selector(pool_selector(pools)) is None


def test_ray_accepts_the_zones() -> None:
    assert validate_label_key(ZONE) is None
    for value in ("us-east-1a", EVERY_ZONE):
        validate_label_value(value)
    assert validate_label_selector(zone_selector(["us-east-1a", "us-east-1b"])) is None


def test_the_only_node_of_a_cluster_is_in_no_zone_of_its_own() -> None:
    assert [zone_of(labels) for labels in ({ZONE: "a"}, {ZONE: EVERY_ZONE}, {})] == ["a", "", ""]


def test_a_node_is_in_the_pool_of_its_label_and_the_only_node_in_all() -> None:
    assert is_in_pool({POOL: "a"}, "b", "a")
    assert is_in_pool({POOL: EVERY_POOL}, "a")
    assert not is_in_pool({POOL: "a"}, "b")
    assert not is_in_pool({}, "a")
    assert not is_in_pool({POOL: "a"})
