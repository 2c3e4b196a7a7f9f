"""`raylane spec from-terraform`: what `terraform/` made for a region becomes fields of the spec.

Reads what `terraform output -json` prints, and changes the spec's text where it must; nothing else in it moves. What
both say (ports, time-outs, spot or not) has to agree: Terraform and the spec are two files, and this command is where a
difference is found.
"""

import difflib
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape

from cli.console import console, fail
from cluster.files import write_whole
from cluster.hardware import instances
from cluster.launch.terraform import PoolOutput, RegionOutput, deploy_section, read_outputs
from cluster.spec import AwsDeploy, ClusterSpec, Region, SpecError, parse_spec
from planning.tune.spec_edit import EditError, edited, said_in
from planning.tune.spec_edit import Path as Place


def changes(output: RegionOutput, spec: ClusterSpec, said: Any, source: str) -> list[tuple[Place, Any]]:
    """What to set where in a spec that is `said` so. Raises SpecError where spec and outputs contradict each other."""
    number, region = _region_of(output, spec, source)
    if problems := [*_disagreements(output, spec, region)]:
        raise SpecError(source, problems)
    before = said["regions"][number].get("deploy") or {}
    place: Place = ("regions", number, "deploy")
    after = deploy_section(output, region.name, output.cluster, before)
    found: list[tuple[Place, Any]] = []
    if not before:
        found.append((place, after))
    else:
        found += [((*place, key), value) for key, value in after.items() if before.get(key) != value]
    gateway = output.gateway
    if _is_loopback(spec):  # the load balancer reaches gateways at their nodes' addresses
        found += [(("gateway", "host"), "0.0.0.0"), (("gateway", "allow_public"), True)]
    if spec.gateway.pool is None:
        found.append((("gateway", "pool"), output.gateways[0]))
    if spec.gateway.timeouts.keep_alive_s != gateway.keep_alive_s:
        found.append((("gateway", "timeouts", "keep_alive_s"), _plain(gateway.keep_alive_s)))
    if spec.gateway.lame_duck_s < gateway.lame_duck_s:
        found.append((("gateway", "lame_duck_s"), _plain(gateway.lame_duck_s)))
    return found


def _is_loopback(spec: ClusterSpec) -> bool:
    return ipaddress.ip_address(spec.gateway.host).is_loopback


def _region_of(output: RegionOutput, spec: ClusterSpec, source: str) -> tuple[int, Region]:
    for number, region in enumerate(spec.regions):
        if spec.cell_name(region) == output.cluster:
            if region.deploy is not None and not isinstance(region.deploy, AwsDeploy):
                raise SpecError(
                    source,
                    [f"regions.{region.name}.deploy.provider = {region.deploy.provider!r}: allowed: aws, or none"],
                )
            return number, region
    names = ", ".join(spec.cell_name(region) for region in spec.regions)
    raise SpecError(
        source,
        [
            f"raylane.value.cluster = {output.cluster!r}: no cell of the spec; allowed: {names} (the spec's name, a "
            "dash, the region's name)"
        ],
    )


def _disagreements(output: RegionOutput, spec: ClusterSpec, region: Region) -> Iterator[str]:
    gateway, timeouts = output.gateway, spec.gateway.timeouts
    for name, made, key, said in (
        ("port", gateway.port, "gateway.port", spec.gateway.port),
        ("total_s", gateway.total_s, "gateway.timeouts.total_s", timeouts.total_s),
        ("drain_s", gateway.drain_s, "gateway.drain_s", spec.gateway.drain_s),
    ):
        if made != said:
            yield f"raylane.value.gateway.{name} = {made:g}: the spec has {key} = {said:g}; needed: the same in both"
    if (spec.gateway.pool is None and len(output.gateways) != 1) or spec.gateway.pool not in (None, *output.gateways):
        yield f"gateway.pool = {spec.gateway.pool!r}: allowed: {', '.join(output.gateways)}, a pool of gateways"
    if _is_loopback(spec) and not spec.tenants:
        yield (
            f"gateway.host = {spec.gateway.host!r}: the load balancer cannot reach it; needed: 0.0.0.0 with "
            "allow_public: true, which this command sets where the spec has tenants (`raylane key`)"
        )
    pools = {pool.name: pool for pool in region.pools}
    for name, pool in output.others.items():
        if name not in pools:
            line = _scalar_line(pool_section(name, pool))
            yield f"raylane.value.pools.{name}: not in regions.{region.name}.pools; needed there: {line}"
        elif pools[name].spot != pool.spot:
            said = pools[name].spot
            yield f"raylane.value.pools.{name}.spot = {pool.spot}: the spec has {said}; needed: the same in both"
    for name in [name for name in pools if name not in output.others]:
        yield f"regions.{region.name}.pools.{name}: not in raylane.value.pools; allowed: {', '.join(output.others)}"


def pool_section(name: str, pool: PoolOutput) -> dict[str, Any]:
    """A pool of the spec's region, as far as its type of instance is known."""
    section: dict[str, Any] = {"name": name}
    instance = instances().get(pool.instance_type)
    if instance is not None:
        section |= {"accelerator": instance.gpu.upper(), "gpus_per_node": instance.gpus}
        section |= {"cpus_per_node": instance.vcpus} if instance.vcpus else {}
    section |= {"nodes": 1, **({"spot": True} if pool.spot else {})}
    return section


def _scalar_line(section: dict[str, Any]) -> str:
    return str(yaml.safe_dump(section, default_flow_style=True, sort_keys=False, width=1 << 20)).strip()


def beginning(output: RegionOutput, source: str) -> str:
    """The beginning of a spec: all but its models and tenants, both of which it needs. Raises SpecError."""
    name = output.cluster.removesuffix(f"-{output.region}")
    if name == output.cluster:
        raise SpecError(
            source, [f"raylane.value.cluster = {output.cluster!r}: allowed: a name that ends in -{output.region}"]
        )
    gateway = output.gateway
    region = {
        "name": output.region,
        "pools": [pool_section(name, pool) for name, pool in output.others.items()],
        "deploy": deploy_section(output, output.region, output.cluster, {}),
    }
    timeouts = {"total_s": _plain(gateway.total_s), "keep_alive_s": _plain(gateway.keep_alive_s)}
    section = {
        "host": "0.0.0.0",
        "port": gateway.port,
        "allow_public": True,
        "pool": output.gateways[0],
        "drain_s": _plain(gateway.drain_s),
        "lame_duck_s": _plain(gateway.lame_duck_s),
    }
    content = {"version": 1, "name": name, "regions": [region], "gateway": {**section, "timeouts": timeouts}}
    return str(yaml.safe_dump(content, sort_keys=False, width=110))


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def from_terraform(
    outputs: Annotated[Path, typer.Argument(help="What `terraform output -json` printed, in a region's folder.")],
    spec_file: Annotated[
        Path | None, typer.Option("--spec", help="The spec to change. Without it, the beginning of one is printed.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Show the difference only; status 1 if there is one.")] = False,
) -> None:
    """Write what Terraform made for a region into the spec: `regions[].deploy`, and what the gateway must be set to."""
    try:
        output = read_outputs(_read(outputs), str(outputs))
        if spec_file is None:
            typer.echo(beginning(output, str(outputs)), nl=False)
            return
        text = _read(spec_file)
        spec = parse_spec(text, str(spec_file), spec_file.resolve().parent)
        after = edited(text, changes(output, spec, said_in(text), str(outputs)))
        parse_spec(after, f"{spec_file}, with the outputs", spec_file.resolve().parent)
    except SpecError as error:
        fail(f"{error.source}:\n  " + "\n  ".join(error.problems), code=2)
    except EditError as error:
        fail(f"{spec_file}: {error}", code=2)
    if after == text:
        console.print(f"{escape(str(spec_file))}: nothing to change")
        return
    lines = difflib.unified_diff(text.splitlines(), after.splitlines(), str(spec_file), str(spec_file), lineterm="")
    typer.echo("\n".join(lines))
    if check:
        raise typer.Exit(1)
    write_whole(spec_file, after)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(file), [f"cannot be read: {error}"]) from error
