"""What of a spec cannot be deployed where a region runs, though it is valid: each problem names the key, the value and
what is allowed. Nothing of a spec is lost in silence on its way to a cell."""

import ipaddress
from collections.abc import Iterator
from pathlib import PurePosixPath

from cluster.launch.kuberay import cache_folder, group_name, override_problem
from cluster.launch.nodes import shared_secrets
from cluster.spec import ClusterSpec, KubernetesDeploy, LocalDeploy, Region


def deploy_problems(spec: ClusterSpec, region: Region) -> list[str]:
    """A line for each problem. `spec` is read without its folder: its relative paths are as written."""
    if region.deploy is None:
        return [f"regions.{region.name}.deploy: missing; needed: where the region runs (local, aws or kubernetes)"]
    found = [*_gateways(spec, region), *_paths(spec, region), *_hosts(spec, region), *_secrets(spec, region)]
    if isinstance(region.deploy, KubernetesDeploy):
        found += _kubernetes(spec, region, region.deploy)
    return found


def _gateways(spec: ClusterSpec, region: Region) -> Iterator[str]:
    assert region.deploy is not None
    gateway = spec.gateway
    pools = {pool.name: pool.nodes for pool in spec.gateway_pools(region)}
    nodes = sum(one.bounds(pools[one.pool])[1] for one in region.deploy.pools if one.pool in pools)
    where = f"of {', '.join(pools)} in {region.name}"
    if gateway.replicas > nodes:
        yield f"gateway.replicas = {gateway.replicas}: allowed: at most {nodes}, one for each node {where}"
    address = ipaddress.ip_address(gateway.host)
    if not address.is_loopback and not address.is_unspecified and nodes > 1:
        yield (
            f"gateway.host = {gateway.host!r}: no address of each node {where}; allowed: 0.0.0.0, ::, or a loopback "
            "address"
        )


def _hosts(spec: ClusterSpec, region: Region) -> Iterator[str]:
    """A host has one Ray: what starts it for one cell ends that of another."""
    hosts = {one.name: one.deploy.addresses for one in spec.regions if isinstance(one.deploy, LocalDeploy)}
    for host in hosts.get(region.name, ()):
        if others := [name for name, of in hosts.items() if host in of and name != region.name]:
            yield f"regions.{region.name}.deploy: {host} is a host of {others[0]}, too; allowed: one cell on a host"


def _secrets(spec: ClusterSpec, region: Region) -> Iterator[str]:
    """A node gets them as it gets the cell's own, or asks AWS."""
    assert region.deploy is not None
    own = region.deploy.secrets.kind
    if own == "kubernetes" and not isinstance(region.deploy, KubernetesDeploy):
        yield f"regions.{region.name}.deploy.secrets.kind = {own!r}: allowed on hosts: file, aws"
    for one in shared_secrets(spec):
        if one.source.kind not in (own, "aws"):
            allowed = ", ".join(dict.fromkeys((own, "aws")))
            yield (
                f"{one.key}.kind = {one.source.kind!r}: allowed in {region.name}: {allowed}; its nodes get the cell's "
                f"own secrets by {own}"
            )


def _kubernetes(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy) -> Iterator[str]:
    if ipaddress.ip_address(spec.gateway.host).is_loopback:
        yield (
            f"gateway.host = {spec.gateway.host!r}: nobody reaches a pod's loopback; allowed on Kubernetes: 0.0.0.0 or "
            "::, with allow_public and tenants"
        )
    tls = spec.gateway.tls
    if (tls is None) != (deploy.tls_secret is None):
        yield "gateway.tls: allowed on Kubernetes: together with deploy.tls_secret, whose files these are"
    elif tls is not None and PurePosixPath(tls.cert).parent != PurePosixPath(tls.key).parent:
        yield f"gateway.tls.key = {tls.key!r}: allowed on Kubernetes: a file beside {tls.cert}, from the same Secret"
    caches = (spec.artifacts.cache, spec.starts.compile_cache)
    if not all(cache.startswith(("/", "~/")) for cache in caches) or not cache_folder(spec):
        yield (
            f"artifacts.cache, starts.compile_cache = {', '.join(caches)}: allowed on Kubernetes: two folders in one "
            "of their own, such as ~/.cache/raylane, since they share a volume"
        )
    if problem := override_problem(spec, region, deploy):
        yield f"regions.{region.name}.deploy.{problem}"
    pools = {pool.name: pool for pool in region.pools}
    gateways = {pool.name for pool in spec.gateway_pools(region)}
    pods = sum(one.bounds(pools[one.pool].nodes)[1] for one in deploy.pools if one.pool in gateways)
    if spec.gateway.replicas < pods:
        yield (
            f"gateway.replicas = {spec.gateway.replicas}: allowed on Kubernetes: {pods}, one for each pod of "
            f"{', '.join(sorted(gateways))}: a pod of these pools is ready when its gateway is; gateway.pool names a "
            "smaller pool"
        )
    groups = [
        group_name(one.pool, part.zone)
        for one in deploy.pools
        for part in one.parts(pools[one.pool].nodes, pools[one.pool].zones)
    ]
    if twice := next((name for name in groups if groups.count(name) > 1), None):
        yield f"regions.{region.name}.pools: two groups of pods would be named {twice!r}; allowed: other names of pools"
    for one in deploy.pools:
        if pools[one.pool].cpus_per_node is None:
            yield f"regions.{region.name}.pools.{one.pool}.cpus_per_node: missing; a pod asks for so many"


def _paths(spec: ClusterSpec, region: Region) -> Iterator[str]:
    """A path of the machine that deploys says nothing on a node."""
    places = {
        "gateway.trace_file": spec.gateway.trace_file,
        "gateway.decision_log": spec.gateway.decision_log,
        "gateway.simulator_error": spec.gateway.simulator_error,
        "gateway.drift": spec.gateway.drift,
        "autoscaling.costs": spec.autoscaling.costs,
    }
    for where, tls in (("gateway", spec.gateway.tls), ("peering", spec.peering and spec.peering.tls)):
        places |= {f"{where}.tls.{key}": path for key, path in tls or ()}
    for view in spec.views_in(region):
        places |= view.local_paths | {f"{view.where}.step_log": view.step_log}
    for key, path in places.items():
        if path is not None and not path.startswith("/"):
            yield f"{key} = {path!r}: allowed in a deployed cell: an absolute path, the same on each node"
