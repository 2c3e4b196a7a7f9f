"""Pools over zones, on machines and on EC2: each node has its zone's label, and Ray starts nodes in the zones."""

import subprocess
from pathlib import Path

import pytest

from cluster.node_labels import EVERY_POOL, EVERY_ZONE, POOL, ZONE
from tests.cluster.launch.specs import AWS, ZONED_AWS, ZONED_LOCAL, ZONES, changed, spec_of
from tests.cluster.launch.test_ray_yaml import Host, cluster_of


def test_a_worker_finds_its_zone_by_its_address(tmp_path: Path) -> None:
    own = next(one for one in subprocess.check_output(["hostname", "-I"], text=True).split() if "." in one)
    first, _, gpu = ZONED_LOCAL["deploy"]["workers"]
    host = Host(tmp_path, changed(ZONED_LOCAL, workers=[first, {"address": own, "pool": "cpu", "zone": "b"}, gpu]))
    done = host.run("start-worker", RAY_HEAD_IP="10.77.0.2")
    assert done.returncode == 0, done.stderr
    argv, _ = host.called()
    assert "--labels=raylane.io/pool=cpu,raylane.io/zone=b" in argv


def test_each_zone_of_a_pool_of_aws_is_a_kind_of_node_with_its_subnets() -> None:
    types = cluster_of(spec_of(ZONED_AWS))["available_node_types"]
    assert set(types) == {"head", "l40s", "spot@a", "spot@b"}
    assert types["spot@b"]["labels"] == {"raylane.io/pool": "spot", "raylane.io/zone": "b"}
    sizes = {name: (one["min_workers"], one["max_workers"]) for name, one in types.items() if "@" in name}
    assert sizes == {"spot@a": (2, 3), "spot@b": (1, 2)}
    assert types["spot@a"]["node_config"]["SubnetIds"] == ["subnet-aaaaaaaa"]
    assert types["spot@b"]["node_config"]["SubnetIds"] == ["subnet-bbbbbbbb"]
    assert types["l40s"]["node_config"]["SubnetIds"] == AWS["deploy"]["subnet_ids"]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("lowest", "lost", "launched"),
    [
        (0, None, {"spot@a": 2, "spot@b": 1}),
        (0, "a", {"spot@a": 1, "spot@b": 2}),  # as many as fit elsewhere
        (0, "b", {"spot@a": 3}),
        (3, "b", {"spot@a": 2, "spot@b": 1}),  # what `min` asks for counts as coming, also in a lost zone
    ],
)
def test_rays_autoscaler_starts_nodes_for_three_replicas(
    lowest: int, lost: str | None, launched: dict[str, int]
) -> None:
    """By its own scheduler, which knows that a zone had no instances when it last asked."""
    from ray.autoscaler._private.util import prepare_config
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.common_pb2 import LabelSelectorOperator

    l40s, spot = ZONED_AWS["deploy"]["pools"]
    region = changed(ZONED_AWS, pools=[{**l40s, "min": 0}, {**spot, "min": lowest}])
    config = AutoscalingConfig(prepare_config(cluster_of(spec_of(region))), skip_content_hash=True)
    wanted = {POOL: ["spot", EVERY_POOL], ZONE: [*ZONES, EVERY_ZONE]}
    selector = [(label, LabelSelectorOperator.LABEL_OPERATOR_IN, values) for label, values in wanted.items()]
    replicas = [ResourceRequestUtil.make({"GPU": 4.0}, None, [selector]) for _ in range(3)]
    reply = ResourceDemandScheduler(None).schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            resource_requests=ResourceRequestUtil.group_by_count(replicas),
            cloud_resource_availabilities={} if lost is None else {f"spot@{lost}": 0.0},
        )
    )
    assert {one.instance_type: one.count for one in reply.to_launch} == launched
    assert reply.infeasible_resource_requests == []
