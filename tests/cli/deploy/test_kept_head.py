"""`python -m cli.deploy.kept_head up` with Ray's own launcher, on EC2 as moto serves it: the Auto Scaling group's
instance is set up, whatever Ray thinks of it, and none is started or ended. SSH is a stand-in that notes commands."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.launch import RAY_YAML, launcher_files
from cluster.spec import AwsDeploy
from tests.aws import CREDENTIALS, moto_server
from tests.cluster.launch.specs import AWS, changed, spec_of

CELL = "team-us-east-1"
TAGS = {"ray-cluster-name": CELL, "ray-node-type": "head", "ray-user-node-type": "head"}


class Account:
    """An AWS account with a cell's network, and a folder that `raylane deploy` has rendered into."""

    def __init__(self, url: str, folder: Path) -> None:
        import boto3

        credentials = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        self.ec2 = boto3.resource("ec2", "us-east-1", endpoint_url=url, **credentials)
        vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")
        self.subnet = vpc.create_subnet(CidrBlock="10.0.0.0/20").id
        self.group = vpc.create_security_group(GroupName="nodes", Description="nodes").id
        self.folder = folder
        self.noted = folder / "ssh.log"
        self._environment = {**os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": url, "HOME": str(folder)}
        self._environment["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
        (folder / "bin").mkdir()
        for name in ("ssh", "rsync"):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.noted}\n')
            program.chmod(0o755)
        (folder / "key.pem").touch(0o600)
        own = {"subnet_ids": [self.subnet], "security_group_ids": [self.group]}
        kept = {"key_name": "deploy", "ssh_key": str(folder / "key.pem"), "head_group": f"{CELL}-head"}
        spec = spec_of(changed(AWS, **own, **kept))
        region = spec.regions[0]
        assert isinstance(region.deploy, AwsDeploy)
        for name, text in launcher_files(spec, region, region.deploy).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def start(self) -> Any:
        """What the Auto Scaling group does."""
        tags = [{"Key": key, "Value": value} for key, value in TAGS.items()]
        image = next(iter(self.ec2.images.all())).id
        (instance,) = self.ec2.create_instances(
            ImageId=image,
            MinCount=1,
            MaxCount=1,
            SubnetId=self.subnet,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        return instance

    def running(self) -> list[str]:
        states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        return [one.id for one in self.ec2.instances.filter(Filters=states)]

    def up(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command, "up", "-y", "--no-config-cache", RAY_YAML],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    with moto_server() as url:
        yield Account(url, tmp_path)


@pytest.mark.long
def test_the_groups_instance_is_set_up_and_none_is_started(account: Account) -> None:
    none = account.up("-m", "cli.deploy.kept_head")
    assert none.returncode != 0
    assert "has no instance that runs" in none.stderr + none.stdout
    assert account.running() == []
    head = account.start()
    done = account.up("-m", "cli.deploy.kept_head")
    assert done.returncode == 0, done.stdout + done.stderr
    assert account.running() == [head.id]
    noted = account.noted.read_text()
    assert f"ubuntu@{head.private_ip_address}" in noted
    assert f"sh ~/.raylane/{CELL}/node/install-head-service" in noted
    assert f"RAY_CLOUD_INSTANCE_ID={head.id}" in noted
