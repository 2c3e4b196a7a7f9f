"""The configuration of Ray's cluster launcher (`ray up`) for one region: providers `local` and `aws`.

Pure. The file's local paths are relative to the folder that it is rendered into, from which `ray up` must run. What a
node runs is in files beside it (`nodes.py`).
"""

from typing import Any

from cluster.launch.nodes import (
    HEAD_SCRIPT,
    INSTALL_SCRIPT,
    STOP_SCRIPT,
    WORKER_SCRIPT,
    aws_region,
    cell_folder,
    node_files,
)
from cluster.launch.yaml_text import yaml_text
from cluster.node_labels import labels_of
from cluster.spec import AwsDeploy, AwsPool, ClusterSpec, LocalDeploy, Pool, PoolPart, Region

RAY_YAML = "ray-cluster.yaml"
SECRETS = "secrets"
"""The folder of secrets beside the YAML, where the spec names no other one."""
_HEAD_TYPE = "head"


def launcher_files(spec: ClusterSpec, region: Region, deploy: LocalDeploy | AwsDeploy) -> dict[str, str]:
    """All that `ray up` needs for the region but its secrets: the YAML and the nodes' files, by name."""
    heading = (
        f"# Ray's cluster of {spec.cell_name(region)}. Rendered by `raylane deploy`: change the spec, not this file.\n"
    )
    return {RAY_YAML: heading + yaml_text(ray_cluster(spec, region, deploy))} | node_files(spec, region, deploy)


def ray_cluster(spec: ClusterSpec, region: Region, deploy: LocalDeploy | AwsDeploy) -> dict[str, Any]:
    """The content of the YAML."""
    cell = spec.cell_name(region)
    folder = f"~/{cell_folder(cell)}"
    mounts = {f"{folder}/node": "node"}
    if deploy.secrets.kind == "file":
        mounts[f"{folder}/secrets"] = deploy.secrets.folder or SECRETS
    start_head = [f"sh {folder}/{INSTALL_SCRIPT}"]
    if deploy.head_service == "none":
        start_head = [f"{deploy.venv}/bin/ray stop", f"sh {folder}/{HEAD_SCRIPT}"]
    return {
        "cluster_name": cell,
        **(_local(deploy) if isinstance(deploy, LocalDeploy) else _aws(region, deploy)),
        "auth": _auth(region, deploy),
        "file_mounts": mounts,
        "setup_commands": list(deploy.setup),
        "head_start_ray_commands": start_head,
        "worker_start_ray_commands": [f"sh {folder}/{STOP_SCRIPT}", f"sh {folder}/{WORKER_SCRIPT}"],
    }


def _auth(region: Region, deploy: LocalDeploy | AwsDeploy) -> dict[str, str]:
    auth = {"ssh_user": deploy.ssh_user}
    if deploy.ssh_key:
        auth["ssh_private_key"] = deploy.ssh_key
    if isinstance(deploy, AwsDeploy) and deploy.ssm:
        # Ray gives addresses; sessions are with instances.
        aws = f"aws --region {aws_region(region)}"
        address = "Name=private-ip-address,Values=%h Name=instance-state-name,Values=running"
        instance = f"{aws} ec2 describe-instances --filters {address} --output text"
        query = "'Reservations[].Instances[].InstanceId'"
        document = "--document-name AWS-StartSSHSession --parameters portNumber=%p"
        auth["ssh_proxy_command"] = f"{aws} ssm start-session --target $({instance} --query {query}) {document}"
    return auth


def _local(deploy: LocalDeploy) -> dict[str, Any]:
    workers = [str(worker.address) for worker in deploy.workers]
    return {
        "max_workers": len(workers),
        "provider": {"type": "local", "head_ip": str(deploy.head), "worker_ips": workers},
    }


def _aws(region: Region, deploy: AwsDeploy) -> dict[str, Any]:
    pools = {pool.name: pool for pool in region.pools}
    types = {
        name: one_type for one in deploy.pools for name, one_type in _worker_types(deploy, one, pools[one.pool]).items()
    }
    head = {
        # Amounts of 0, and no pool's label: neither a gateway nor a replica runs on the head.
        "resources": {"CPU": 0, "GPU": 0},
        "node_config": _head_instance(deploy),
    }
    return {
        "max_workers": sum(one["max_workers"] for one in types.values()),
        # A node that is idle for so long goes back; the autoscaler keeps each pool's minimum.
        "idle_timeout_minutes": 10,
        "provider": {
            "type": "aws",
            "region": aws_region(region),
            "use_internal_ips": True,
            # A stopped instance keeps costing its volume, and a spot instance cannot be stopped.
            "cache_stopped_nodes": False,
        },
        "available_node_types": {_HEAD_TYPE: head, **types},
        "head_node_type": _HEAD_TYPE,
    }


def _worker_types(deploy: AwsDeploy, one: AwsPool, pool: Pool) -> dict[str, dict[str, Any]]:
    """By name: the pool's, or one for each of its zones."""
    return {
        pool.name if part.zone is None else f"{pool.name}@{part.zone}": _worker_type(deploy, one, pool, part)
        for part in one.parts(pool.nodes, pool.zones)
    }


def _worker_type(deploy: AwsDeploy, one: AwsPool, pool: Pool, part: PoolPart) -> dict[str, Any]:
    subnet_ids = (one.subnet_ids or deploy.subnet_ids) if part.zone is None else deploy.zone_subnet_ids[part.zone]
    config = _instance(deploy, one.instance_type, one.volume_gib)
    config["ImageId"] = one.image or deploy.image
    config["SubnetIds"] = list(subnet_ids)
    config |= _own(one.security_group_ids, one.instance_profile, one.launch_template)
    if one.reservation is not None:
        config["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": one.reservation}
        }
    if pool.spot:
        config["InstanceMarketOptions"] = {"MarketType": "spot"}
    amounts = {"CPU": pool.cpus_per_node} if pool.cpus_per_node else {}
    amounts |= {"GPU": pool.gpus_per_node} if pool.gpus_per_node else {}
    return {
        "min_workers": part.min,
        "max_workers": part.max,
        "resources": amounts,  # what is not here Ray knows from the instance's type
        "labels": labels_of(pool.name, part.zone),
        "node_config": config,
    }


def _head_instance(deploy: AwsDeploy) -> dict[str, Any]:
    volume_gib = deploy.head_volume_gib or (100 if deploy.head_launch_template is None else None)
    config = _instance(deploy, deploy.head_type, volume_gib)
    return config | _own(deploy.head_security_group_ids, deploy.head_instance_profile, deploy.head_launch_template)


def _own(groups: tuple[str, ...] | None, profile: str | None, launch_template: str | None) -> dict[str, Any]:
    """What the head or a pool has of its own, in place of the region's."""
    config: dict[str, Any] = {}
    if groups is not None:
        config["SecurityGroupIds"] = list(groups)
    if profile is not None:
        config["IamInstanceProfile"] = _profile(profile)
    if launch_template is not None:
        config["LaunchTemplate"] = {"LaunchTemplateId": launch_template, "Version": "$Default"}
    return config


def _profile(profile: str) -> dict[str, str]:
    return {"Arn" if profile.startswith("arn:") else "Name": profile}


def _instance(deploy: AwsDeploy, instance_type: str, volume_gib: int | None) -> dict[str, Any]:
    """The parameters of EC2's RunInstances."""
    config: dict[str, Any] = {
        "InstanceType": instance_type,
        "ImageId": deploy.image,
        "SubnetIds": list(deploy.subnet_ids),
        "SecurityGroupIds": list(deploy.security_group_ids),
        "IamInstanceProfile": _profile(deploy.instance_profile),
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
    }
    if deploy.key_name is not None:
        config["KeyName"] = deploy.key_name
    if volume_gib is not None:
        volume = {"VolumeSize": volume_gib, "VolumeType": "gp3", "Encrypted": True}
        config["BlockDeviceMappings"] = [{"DeviceName": "/dev/sda1", "Ebs": volume}]
    return config
