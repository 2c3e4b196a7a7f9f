"""Specs that say where they run, for the tests of rendering."""

from typing import Any

import yaml

from cluster.spec import ClusterSpec, parse_spec

MODEL = {"name": "demo", "source": "demo", "settings": {"max_model_len": 1024}, "replicas": {"count": 2}}
LOCAL: dict[str, Any] = {
    "name": "here",
    "pools": [
        {"name": "cpu", "nodes": 2, "cpus_per_node": 2},
        {"name": "gpu", "accelerator": "L40S", "gpus_per_node": 4},
    ],
    "deploy": {
        "provider": "local",
        "head": "10.77.0.2",
        "workers": [
            {"address": "10.77.0.3", "pool": "cpu"},
            {"address": "10.77.0.4", "pool": "cpu"},
            {"address": "10.77.0.5", "pool": "gpu"},
        ],
        "ssh_user": "root",
        "ssh_key": "~/.ssh/id_ed25519",
        "environment": {"HF_HOME": "/srv/it's here"},
    },
}
AWS: dict[str, Any] = {
    "name": "us-east-1",
    "pools": [
        {"name": "l40s", "accelerator": "L40S", "nodes": 2, "gpus_per_node": 4, "cpus_per_node": 48},
        {"name": "spot", "accelerator": "L40S", "nodes": 1, "gpus_per_node": 4, "spot": True},
    ],
    "deploy": {
        "provider": "aws",
        "image": "ami-0123456789abcdef0",
        "subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
        "security_group_ids": ["sg-0123456789abcdef0"],
        "instance_profile": "arn:aws:iam::123456789012:instance-profile/raylane-node",
        "pools": [
            {"pool": "l40s", "instance_type": "g6e.12xlarge", "reservation": "cr-0123456789abcdef0"},
            {"pool": "spot", "instance_type": "g6e.12xlarge", "min": 0, "max": 4},
        ],
    },
}

KUBERNETES: dict[str, Any] = {
    "name": "eu",
    "pools": [{"name": "gpu", "accelerator": "H100", "gpus_per_node": 8, "cpus_per_node": 64}],
    "deploy": {
        "provider": "kubernetes",
        "image": "registry/raylane:1",
        "pools": [
            {
                "pool": "gpu",
                "memory_gib": 64,
                "node_selector": {"gpu": "h100"},
                "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
            }
        ],
    },
}
PUBLIC: dict[str, Any] = {
    "gateway": {"host": "0.0.0.0", "allow_public": True},
    "tenants": [{"name": "search", "keys": ["sha256:" + "ab" * 32], "weight": 2}],
}
ZONES = ["a", "b"]
ZONED_LOCAL: dict[str, Any] = {
    **LOCAL,
    "pools": [{**LOCAL["pools"][0], "zones": ZONES}, LOCAL["pools"][1]],
    "deploy": {
        **LOCAL["deploy"],
        "workers": [
            {"address": "10.77.0.3", "pool": "cpu", "zone": "a"},
            {"address": "10.77.0.4", "pool": "cpu", "zone": "b"},
            {"address": "10.77.0.5", "pool": "gpu"},
        ],
    },
}
ZONED_AWS: dict[str, Any] = {
    **AWS,
    "pools": [AWS["pools"][0], {**AWS["pools"][1], "nodes": 3, "zones": ZONES}],
    "deploy": {
        **AWS["deploy"],
        "zone_subnet_ids": {"a": ["subnet-aaaaaaaa"], "b": ["subnet-bbbbbbbb"]},
        "pools": [AWS["deploy"]["pools"][0], {"pool": "spot", "instance_type": "g6e.12xlarge", "min": 3, "max": 5}],
    },
}
ZONED_KUBERNETES: dict[str, Any] = {
    **KUBERNETES,
    "pools": [{**KUBERNETES["pools"][0], "nodes": 3, "zones": ZONES}],
    "deploy": {**KUBERNETES["deploy"], "pools": [{**KUBERNETES["deploy"]["pools"][0], "max": 4}]},
}


def spec_of(*regions: dict[str, Any], **sections: Any) -> ClusterSpec:
    content = {"name": "team", "regions": list(regions), "models": [MODEL], **sections}
    return parse_spec(yaml.safe_dump(content))


def changed(region: dict[str, Any], /, **keys: Any) -> dict[str, Any]:
    """The region with other values of its deployment (None: without that key)."""
    deploy = {name: value for name, value in {**region["deploy"], **keys}.items() if value is not None}
    return {**region, "deploy": deploy}
