"""What a region's deployment has in common, wherever its Ray cluster runs: the head's state, secrets, pools.

Only `raylane deploy` reads it. Secrets are named here, never written here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator, model_validator

from cluster.spec.base import Name, Section, beside_the_spec

Folder = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]+$", max_length=256)]
"""An absolute path of letters, digits, dots, dashes and underscores, so that a shell needs no quotes."""

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Instances = Annotated[int, Field(ge=0, le=10_000)]

_SECRET_VARIABLE = re.compile(
    r"TOKEN(?!IZERS)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY", re.IGNORECASE
)
_OUR_VARIABLES = ("RAY_AUTH_", "RAY_gcs_storage", "RAY_REDIS_")


def _at_home_or_beside_the_spec(path: str, info: ValidationInfo) -> str:
    return beside_the_spec(path, info) if path and not path.startswith("~") else path


DeployPath = Annotated[str, AfterValidator(_at_home_or_beside_the_spec)]
"""As `RelativePath`, but `~` stays as it is: what is rendered is then the same whoever renders it."""


def has_a_port_that_there_is(address: str) -> str:
    """Whatever the address is, if it has a port at its end."""
    port = address.rpartition(":")[2]
    if port.isdigit() and not 0 < int(port) < 1 << 16:
        raise ValueError(f"port {port}: allowed: 1 to 65535")
    return address


class HeadStore(Section):
    """Where the head keeps Ray's state, so that a head that restarts finds its cluster again.

    `rocksdb`: a folder on the head's disk (`path`; None: `gcs` in the cell's folder). `redis`: a Redis at
    `address` (`host:port`), for a head that may start on another machine.
    """

    kind: Literal["rocksdb", "redis"] = "rocksdb"
    path: Folder | None = None
    address: (
        Annotated[
            str,
            Field(pattern=r"^(rediss?://)?[A-Za-z0-9.-]+:[0-9]{1,5}$"),
            AfterValidator(has_a_port_that_there_is),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _has_its_place(self) -> "HeadStore":
        if self.kind == "redis" and self.address is None:
            raise ValueError("address: missing; kind = 'redis' needs the host:port of the Redis")
        if self.kind == "redis" and self.path is not None:
            raise ValueError(f"path = {self.path!r}: allowed: only with kind = 'rocksdb'; Redis has an `address`")
        if self.kind == "rocksdb" and self.address is not None:
            raise ValueError(f"address = {self.address!r}: allowed: only with kind = 'redis'; RocksDB has a `path`")
        return self


class SecretSource(Section):
    """Where the cluster's secret, Ray's token and the digests of the tenants' keys are kept.

    `file`: a folder on the machine that deploys (`folder`; None: in raylane's own state folder), copied to the nodes by
    SSH. `aws`: a secret of AWS Secrets Manager (`name`), read on each node with the instance's role. `kubernetes`: a
    Secret (`name`) in the region's namespace. None for `name`: raylane/CLUSTER/REGION, or CLUSTER-REGION on Kubernetes.
    """

    kind: Literal["file", "aws", "kubernetes"]
    folder: DeployPath | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9/_+=.@-]{0,250}$")] | None = None

    @model_validator(mode="after")
    def _has_its_own_keys(self) -> "SecretSource":
        if self.kind != "file" and self.folder is not None:
            raise ValueError(f"folder = {self.folder!r}: allowed: only with kind = 'file'")
        if self.kind == "file" and self.name is not None:
            raise ValueError(f"name = {self.name!r}: allowed: only with kind = 'aws' or 'kubernetes'")
        return self


class DeployBase(Section):
    """What all providers have: where the head keeps its state, and further environment variables of every node."""

    head_store: HeadStore = HeadStore()
    environment: dict[Variable, str] = Field(default_factory=dict)

    @field_validator("environment")
    @classmethod
    def _holds_no_secret(cls, variables: Mapping[str, str]) -> Mapping[str, str]:
        for name in variables:
            if name.startswith(_OUR_VARIABLES):
                raise ValueError(f"{name}: allowed: any variable but those that raylane sets itself")
            if _SECRET_VARIABLE.search(name):
                raise ValueError(
                    f"{name}: looks like a secret, and this file is no place for one; allowed: a role of the instance "
                    "or the pod, or a file on the nodes"
                )
        return variables


@dataclass(frozen=True, slots=True)
class PoolPart:
    """The nodes of a pool in one `zone` (None: the pool has no zones): `min` to `max` of them, `nodes` at first."""

    zone: str | None
    min: int
    max: int
    nodes: int


class ElasticPool(Section):
    """A pool whose nodes come and go: `min` (None: the pool's `nodes`) to `max` (None: as many) of them. Zones get even
    shares of these numbers."""

    pool: Name
    min: Instances | None = None
    max: Instances | None = None

    def bounds(self, nodes: int) -> tuple[int, int]:
        """The fewest and the largest number of nodes, for a pool of so many."""
        return nodes if self.min is None else self.min, nodes if self.max is None else self.max

    def parts(self, nodes: int, zones: Sequence[str] | None) -> list[PoolPart]:
        """The pool by its zones, for a pool of so many nodes. Where shares are not even, the first zones have more."""
        lowest, highest = self.bounds(nodes)
        if zones is None:
            return [PoolPart(None, lowest, highest, nodes)]
        return [
            PoolPart(
                zone, *(number // len(zones) + (rank < number % len(zones)) for number in (lowest, highest, nodes))
            )
            for rank, zone in enumerate(zones)
        ]

    def zone_problem(self, nodes: int, zones: Sequence[str]) -> str:
        """Why a pool of so many nodes cannot be in these zones; empty: it can."""
        highest = self.bounds(nodes)[1]
        if highest < len(zones):
            return f"{len(zones)} zones, but `deploy` gives the pool at most {highest} nodes; needed: one for each zone"
        return ""
