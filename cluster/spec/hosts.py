"""A region on machines that are reached by SSH: those that one has, or EC2 instances. Ray's cluster launcher starts
both."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.spec.base import Name, Section, check_unique
from cluster.spec.deploy import DeployBase, DeployPath, ElasticPool, Folder, SecretSource


class _Hosts(DeployBase):
    """What machines reached by SSH have in common.

    `venv`: the virtual environment with raylane and its engine, at the same place on each node. `setup`: shell commands
    that install it, run on each node before Ray starts. `head_service`: `systemd` restarts the head after a failure or
    a reboot; with `none` somebody else must. `ssh_key`: the private key's file on the machine that deploys.
    """

    venv: Folder = "/opt/raylane/.venv"
    setup: tuple[str, ...] = ()
    head_service: Literal["systemd", "none"] = "systemd"
    ssh_user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "ubuntu"
    ssh_key: DeployPath | None = None


class LocalWorker(Section):
    """A machine by its `address`, in a pool of its region; `zone`: one of that pool's, where it has some."""

    address: IPv4Address
    pool: Name
    zone: Name | None = None


class LocalDeploy(_Hosts):
    """Machines that one has, by their addresses: Ray's cluster launcher starts the head by SSH, and the head starts the
    workers by SSH. Neither a gateway nor a replica runs on the head."""

    provider: Literal["local"]
    head: IPv4Address
    workers: Annotated[tuple[LocalWorker, ...], Field(min_length=1)]
    secrets: SecretSource = SecretSource(kind="file")

    @model_validator(mode="after")
    def _has_each_address_once(self) -> "LocalDeploy":
        check_unique("head and workers.address", map(str, self.addresses))
        return self

    @property
    def addresses(self) -> tuple[IPv4Address, ...]:
        """Of all machines, the head's first."""
        return self.head, *(worker.address for worker in self.workers)

    @property
    def pools(self) -> tuple["WorkerPool", ...]:
        """The workers by pool."""
        names = dict.fromkeys(worker.pool for worker in self.workers)
        return tuple(
            WorkerPool(name, tuple(worker for worker in self.workers if worker.pool == name)) for name in names
        )

    def zone_problem(self, pool: str, nodes: int, zones: Sequence[str] | None) -> str:
        """Why the workers of a pool cannot be its nodes in these zones (None: it has none); empty: they can."""
        own = [worker for worker in self.workers if worker.pool == pool]
        allowed = "none, since the pool has no `zones`" if zones is None else ", ".join(zones)
        for worker in own:
            if worker.zone not in (zones or (None,)):
                value = "missing" if worker.zone is None else f"{worker.zone!r} is not a zone of pool {pool!r}"
                return f"deploy.workers: zone of {worker.address}: {value}; allowed: {allowed}"
        for zone in zones or ():
            if zone not in {worker.zone for worker in own}:
                return f"pools.{pool}.zones: no worker is in {zone!r}; needed: a worker of the pool in each of them"
        return ""


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """The machines of one pool."""

    pool: str
    workers: tuple[LocalWorker, ...]

    def bounds(self, nodes: int) -> tuple[int, int]:
        return len(self.workers), len(self.workers)


SubnetId = Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]
SubnetIds = Annotated[tuple[SubnetId, ...], Field(min_length=1)]
SecurityGroups = Annotated[tuple[Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")], ...], Field(min_length=1)]
InstanceProfile = Annotated[str, Field(pattern=r"^[A-Za-z0-9+=,.@:/_-]{1,256}$")]
LaunchTemplate = Annotated[str, Field(pattern=r"^lt-[0-9a-f]{8,17}$")]


class AwsPool(ElasticPool):
    """The instances of one pool, all of one type.

    What is None is the region's. `launch_template` (an id) sets what is not set here; `reservation` is a capacity
    reservation's id. A pool with `spot: true` gets spot instances.
    """

    instance_type: Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]
    image: Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")] | None = None
    subnet_ids: tuple[SubnetId, ...] | None = None
    security_group_ids: SecurityGroups | None = None
    instance_profile: InstanceProfile | None = None
    launch_template: LaunchTemplate | None = None
    reservation: Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,17}$")] | None = None
    volume_gib: Annotated[int, Field(ge=8, le=65_536)] | None = None


class AwsDeploy(_Hosts):
    """EC2 instances, by Ray's cluster launcher. `region` is AWS's (None: the name of this region).

    `security_group_ids`, `subnet_ids` and `instance_profile` (a name or an ARN) are what `terraform/` makes.
    `zone_subnet_ids`: the subnets of each availability zone, for pools with `zones`.
    The head may have groups, a profile (it starts nodes, which no other node may) and a launch template of its own.
    `head_volume_gib`: None is the launch template's, or 100. `key_name`: the key pair in EC2 that belongs to `ssh_key`
    (None: Ray makes one).
    `head_group`: the Auto Scaling group that keeps the head's instance, where `terraform/` made one. `deploy` sets that
    instance up, and starts none. One that takes its place gets its address and its disk, and needs no `deploy`; so its
    image has all that `setup` would install.
    `ssm`: SSH goes through AWS Systems Manager, so that no port is open to whoever deploys; needs the AWS CLI and its
    session-manager-plugin there.
    """

    provider: Literal["aws"]
    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$")] | None = None
    image: Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")]
    subnet_ids: SubnetIds
    zone_subnet_ids: dict[Name, SubnetIds] = Field(default_factory=dict)
    security_group_ids: SecurityGroups
    instance_profile: InstanceProfile
    key_name: str | None = None
    head_type: Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")] = "m7i.xlarge"
    head_volume_gib: Annotated[int, Field(ge=8, le=65_536)] | None = None
    head_security_group_ids: SecurityGroups | None = None
    head_instance_profile: InstanceProfile | None = None
    head_launch_template: LaunchTemplate | None = None
    head_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,255}$")] | None = None
    ssm: bool = False
    pools: Annotated[tuple[AwsPool, ...], Field(min_length=1)]
    secrets: SecretSource = SecretSource(kind="aws")

    @model_validator(mode="after")
    def _keys_belong_together(self) -> "AwsDeploy":
        if self.key_name is not None and self.ssh_key is None:
            raise ValueError(f"key_name = {self.key_name!r}: needs `ssh_key`, the file of that pair's private key")
        if self.ssh_key is not None and self.key_name is None:
            raise ValueError(f"ssh_key = {self.ssh_key!r}: needs `key_name`, the name of that key pair in EC2")
        if self.head_group is not None and (self.head_service == "none" or self.setup or self.key_name is None):
            raise ValueError(
                f"head_group = {self.head_group!r}: allowed: with key_name, without setup, and with head_service = "
                "'systemd'; an instance that takes the head's place starts it without `deploy`"
            )
        return self

    def zone_problem(self, pool: str, nodes: int, zones: Sequence[str] | None) -> str:
        """Why the instances of a pool cannot be in these zones (None: it has none); empty: they can."""
        if zones is None:
            return ""
        one = next(one for one in self.pools if one.pool == pool)
        if problem := one.zone_problem(nodes, zones):
            return f"pools.{pool}.zones: {problem}"
        if one.subnet_ids is not None:
            return f"deploy.pools.{pool}.subnet_ids: allowed: none, since the pool has `zones`: see zone_subnet_ids"
        if one.reservation is not None and len(zones) > 1:
            return (
                f"deploy.pools.{pool}.reservation = {one.reservation!r}: is of one zone; allowed: with one zone of the "
                "pool, not with several"
            )
        for zone in zones:
            if zone not in self.zone_subnet_ids:
                known = ", ".join(self.zone_subnet_ids) or "none"
                return (
                    f"pools.{pool}.zones: deploy.zone_subnet_ids has no {zone!r}, only {known}; needed: its subnets "
                    "(`raylane spec from-terraform` writes them)"
                )
        return ""
