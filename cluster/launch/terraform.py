"""What Terraform reports of a region that it made (the output `raylane` of `terraform/modules/region`), and the spec's
`deploy` section that follows from it."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.launch.nodes import default_secret
from cluster.spec import SpecError, problem_lines

Text = Annotated[str, Field(min_length=1, max_length=2_048)]


class _Output(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolOutput(_Output):
    """A pool of nodes, as `terraform/modules/region` reports it."""

    kind: Literal["head", "gateway", "worker"]
    instance_type: Text
    image: Text
    spot: bool
    reservation: Text | None = None
    launch_template: Text
    instance_profile: Text
    security_group_ids: Annotated[tuple[Text, ...], Field(min_length=1)]


class GatewayOutput(_Output):
    """The gateway's settings that fit the load balancer; times in seconds."""

    port: int
    total_s: float
    drain_s: float
    lame_duck_s: float
    keep_alive_s: float


class RegionOutput(_Output):
    """The output `raylane` of a region. `zone_subnet_ids`: its subnets by availability zone."""

    cluster: Text
    region: Text
    subnet_ids: Annotated[tuple[Text, ...], Field(min_length=1)]
    zone_subnet_ids: dict[Text, tuple[Text, ...]]
    secret: Text
    head_group: Text | None = None
    key_name: Text | None = None
    ssm: bool = False
    artifacts: Text
    endpoint: Text
    target_group_arn: Text
    gateway: GatewayOutput
    pools: dict[str, PoolOutput]

    @property
    def head(self) -> PoolOutput:
        return next(pool for pool in self.pools.values() if pool.kind == "head")

    @property
    def gateways(self) -> list[str]:
        """The pools that stand behind the load balancer."""
        return [name for name, pool in self.pools.items() if pool.kind == "gateway"]

    @property
    def others(self) -> dict[str, PoolOutput]:
        """All pools but the head's. Workers come first, since a model that names no pool gets the first one."""
        ordered = sorted(self.pools.items(), key=lambda item: item[1].kind == "gateway")
        return {name: pool for name, pool in ordered if pool.kind != "head"}


class _Value(BaseModel):
    """One output of Terraform; its type and whether it is sensitive do not matter here."""

    value: RegionOutput


class Outputs(BaseModel):
    """What `terraform output -json` prints. Other outputs than `raylane` are left alone."""

    raylane: _Value


def read_outputs(text: str, source: str) -> RegionOutput:
    """The region's output. Raises SpecError, whose problems name the field."""
    try:
        found = Outputs.model_validate(json.loads(text)).raylane.value
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise SpecError(source, [f"is not JSON: {error}; needed: what `terraform output -json` prints"]) from error
        raise SpecError(source, problem_lines(error, Outputs)) from error
    heads = [name for name, pool in found.pools.items() if pool.kind == "head"]
    if len(heads) != 1 or not found.gateways:
        raise SpecError(
            source, [f"raylane.value.pools = {list(found.pools)}: allowed: one of kind head, and at least one gateway"]
        )
    return found


def deploy_section(output: RegionOutput, region: str, cell: str, before: dict[str, Any]) -> dict[str, Any]:
    """The region's `deploy`, with all that `before` says of other things; null is what it says and Terraform has no
    more. Groups and profile of its workers are the region's; the head and other pools have their own."""
    typical = next((pool for pool in output.others.values() if pool.kind == "worker"), output.head)
    head, key_name = output.head, output.key_name
    section = before | {
        "provider": "aws",
        "region": None if region == output.region else output.region,
        "image": head.image,
        "subnet_ids": list(output.subnet_ids),
        "zone_subnet_ids": {zone: list(subnets) for zone, subnets in output.zone_subnet_ids.items()},
        "security_group_ids": list(typical.security_group_ids),
        "instance_profile": typical.instance_profile,
        "head_type": head.instance_type,
        "head_security_group_ids": list(head.security_group_ids),
        "head_instance_profile": head.instance_profile,
        "head_launch_template": head.launch_template,
        "head_volume_gib": None,
        "ssm": output.ssm,
        "head_group": key_name and output.head_group,
        "key_name": key_name,
        "ssh_key": key_name and (before.get("ssh_key") or f"~/.ssh/{key_name}.pem"),
    }
    if output.secret != default_secret(cell) or "secrets" in before:
        section["secrets"] = {"kind": "aws", "name": output.secret}
    sizes = {pool["pool"]: pool for pool in before.get("pools") or ()}
    section["pools"] = [
        _pool_section(name, pool, head, typical, sizes.get(name, {})) for name, pool in output.others.items()
    ]
    return {key: value for key, value in section.items() if key in before or value not in (None, False)}


def _pool_section(
    name: str, pool: PoolOutput, head: PoolOutput, typical: PoolOutput, before: dict[str, Any]
) -> dict[str, Any]:
    section: dict[str, Any] = {"pool": name}
    section |= {key: before[key] for key in ("min", "max", "volume_gib") if key in before}
    section |= {"instance_type": pool.instance_type, "launch_template": pool.launch_template}
    if pool.reservation is not None:
        section["reservation"] = pool.reservation
    if pool.image != head.image:
        section["image"] = pool.image
    if pool.security_group_ids != typical.security_group_ids:
        section["security_group_ids"] = list(pool.security_group_ids)
    if pool.instance_profile != typical.instance_profile:
        section["instance_profile"] = pool.instance_profile
    return section
