"""Regions and their pools: the hardware that a cluster has, and where each region runs."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from cluster.hardware import gpu_names
from cluster.spec.base import Name, Section, check_known, check_unique
from cluster.spec.hosts import AwsDeploy, LocalDeploy
from cluster.spec.kubernetes import KubernetesDeploy
from cluster.spec.peering import Endpoint


def _is_a_gpu_name(name: str) -> str:
    if not re.fullmatch("cpu|[A-Z][A-Z0-9-]{1,30}", name):
        raise ValueError(f"allowed: cpu, {gpu_names()}, in capitals")
    return name


GpuName = Annotated[str, AfterValidator(_is_a_gpu_name)]
"""As in a pool's `accelerator` (`L4`, `H100`, `cpu`). Whether there is such a GPU is looked up where it matters."""


class Pool(Section):
    """Nodes of one kind in one region.

    `accelerator` is `cpu` or a GPU's name as in Ray's accelerator types (`L40S`, `H100`). Prices are US dollars per
    GPU-hour (per node-hour for `cpu`), before any discount; plans and explanations use them. `spot`: nodes may be
    reclaimed. Each replica then polls `spot_notice_url` (404: no notice; 200 with a JSON object that has an `action`: a
    notice), and drains itself after a notice. `zones`: those in which its nodes are (None: they do not matter);
    replicas are spread over them (`deployments/engine/zones.py`), and each node's label names its own.
    """

    name: Name
    accelerator: GpuName = "cpu"
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = 0
    cpus_per_node: Annotated[int, Field(ge=1, le=1_024)] | None = None
    price_usd_per_hour: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    spot: bool = False
    zones: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16)] | None = None
    spot_notice_url: Annotated[str, Field(pattern=r"^https?://[^/]+/")] = (
        "http://169.254.169.254/latest/meta-data/spot/instance-action"
    )

    @field_validator("zones")
    @classmethod
    def _are_distinct(cls, zones: tuple[str, ...] | None) -> tuple[str, ...] | None:
        check_unique("zones", zones or ())
        return zones

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def _provider(section: Any) -> Any:
    return section.get("provider") if isinstance(section, Mapping) else getattr(section, "provider", None)


Deploy = Annotated[
    Annotated[LocalDeploy, Tag("local")]
    | Annotated[AwsDeploy, Tag("aws")]
    | Annotated[KubernetesDeploy, Tag("kubernetes")],
    Discriminator(
        _provider,
        custom_error_type="unknown_provider",
        custom_error_message="allowed: local, aws, kubernetes",
    ),
]
"""Where a region runs, by its `provider`."""


class Region(Section):
    """One region is one cell: one Ray cluster, with one or more pools. `endpoint`: where its gateways are reached by
    clients and by the gateways of other regions. `deploy`: where it runs, for `raylane deploy`."""

    name: Name
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    endpoint: Endpoint | None = None
    deploy: Deploy | None = None

    @model_validator(mode="after")
    def _deploys_its_pools(self) -> "Region":
        if self.deploy is None:
            return self
        sizes = {pool.name: pool.nodes for pool in self.pools}
        given = [one.pool for one in self.deploy.pools]
        check_known("deploy.pools.pool", given, sizes)
        check_unique("deploy.pools", given)
        for one in self.deploy.pools:
            lowest, highest = one.bounds(sizes[one.pool])
            if not lowest <= sizes[one.pool] <= highest:
                raise ValueError(
                    f"pools.{one.pool}.nodes = {sizes[one.pool]}, but `deploy` gives it {lowest} to {highest} nodes; "
                    "allowed: a number within"
                )
        if missing := [name for name in sizes if name not in given]:
            raise ValueError(f"deploy: nothing is said of pool {missing[0]!r}; needed: each pool of the region")
        for pool in self.pools:
            if problem := self.deploy.zone_problem(pool.name, pool.nodes, pool.zones):
                raise ValueError(problem)
        return self
