"""The application builders that Serve's configuration names (`serve_config.py`), for its REST API and for KubeRay's
RayService: they make the same applications as `app.py`, in a cell that no process of ours holds.

What needs a restart comes as arguments. What may change while the cell runs comes to the gateways as Serve's
`user_config`, and from them by the directory to all others, so that such a change restarts nothing. Secrets come from
files on each node.
"""

import asyncio
import hashlib
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue
from ray import serve

from cluster.launch import FETCH_SCRIPT, KEYS_FILE, SECRET_FILE
from cluster.spec import Artifacts, ClusterSpec, Model, Pool, Region, Starts, Tracing
from deployments.cell.directory import find_directory, start_directory
from deployments.cell.node_check import NodesDiffer, expected_versions, look_at_nodes, node_problems, paths_on_nodes
from deployments.engine.deployment import engine_deployment
from deployments.gateway.deployment import GATEWAY_APP, GatewayReplica
from deployments.gateway.operators.live_spec import joined

_SHORTEST_SECRET = 32
"""Characters."""
_LOOK_S = 1.0


class SecretsError(ValueError):
    """A file of secrets that is missing or unusable; the message names it, never its content."""


class GatewayArguments(BaseModel):
    """`spec`: the part of the spec's content that needs a restart, by `split_live`, and of its models and groups the
    names alone. `gateways`: how many there are when the cell starts.

    `run_dir` and `secrets`: folders on each node; `~` is the home of the user that runs Ray.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec: dict[str, JsonValue]
    gateways: int
    region: str
    run_dir: str
    secrets: str


class EngineArguments(BaseModel):
    """What a replica depends on: if it changes, Serve replaces the replicas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Model
    pool: Pool
    artifacts: Artifacts
    starts: Starts = Starts()
    tracing: Tracing | None = None


class DeployedGateway(GatewayReplica):
    """A gateway that starts, and changes, by what Serve's `user_config` says."""

    def __init__(self, frozen: Mapping[str, Any], region: str, run_dir: str, secrets: str) -> None:
        self._frozen, self._region = frozen, region
        # On this node: others may have their home directories elsewhere.
        self._folder, self._secrets = Path(run_dir).expanduser(), Path(secrets).expanduser()
        self._node_secrets = self._secrets
        self._changing = asyncio.Lock()

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Serve calls it before the gateway counts as started, and at each change. Raises ValueError, which Serve
        reports."""
        async with self._changing:
            await asyncio.to_thread(await_keys, self._secrets, user_config["keys"])
            frozen = {**self._frozen, "models": user_config["models"]}
            spec = spec_of(frozen, user_config["live"], self._secrets)
            region, directory = spec.region(self._region), find_directory()
            # In a cell that runs, a node that came later is refused alone (`check_own_node`).
            if self._gateway is None and (await directory.watch.remote(-1, 0.0)).spec_json is None:
                await asyncio.to_thread(check_nodes, spec, region)
            models = [model.name for model in spec.models if region in spec.regions_of(model)]
            await directory.deployed.remote(spec.model_dump_json(), models)
            if self._gateway is None:
                (self._folder / "logs").mkdir(parents=True, exist_ok=True)
                self._started = asyncio.create_task(self._start(spec, region, self._folder, many_nodes=True))
                await asyncio.shield(self._started)


def check_nodes(spec: ClusterSpec, region: Region) -> None:
    """Raises NodesDiffer where a node that is there has other versions than the head, or lacks a file of the spec. A
    pool whose nodes are still to come is no error."""
    nodes = look_at_nodes(path for view in spec.views_in(region) for path in paths_on_nodes(view, spec).values())
    problems = node_problems(spec, region, expected_versions(nodes), nodes)
    if found := [problem for problem in problems if problem.startswith("node ")]:
        raise NodesDiffer("; ".join(found))


def await_keys(secrets: Path, digest: str, patience_s: float = 180.0) -> None:
    """Returns when the file of the tenants' keys is that of the digest. Raises SecretsError if it is not in time.

    A node of EC2 fetches it; Kubernetes replaces the file in a pod within two minutes or so.
    """
    deadline = time.monotonic() + patience_s
    while keys_digest(tenant_keys(secrets) if (secrets / KEYS_FILE).exists() else {}) != digest:
        if time.monotonic() > deadline:
            raise SecretsError(f"{secrets / KEYS_FILE}: not the keys that were deployed, after {patience_s:g} s")
        script = secrets.parent / FETCH_SCRIPT
        if script.exists():
            subprocess.run(["sh", str(script)], check=False)
        time.sleep(_LOOK_S)


def spec_of(frozen: Mapping[str, Any], live: Mapping[str, Any], secrets: Path) -> ClusterSpec:
    """The whole spec, with the tenants' keys from their file. Raises ValueError."""
    content = joined(frozen, live)
    tenants = content.get("tenants", [])
    if tenants:
        keys = tenant_keys(secrets)
        for tenant in tenants:
            if tenant["name"] not in keys:
                raise SecretsError(f"{secrets / KEYS_FILE}: has no keys of tenant {tenant['name']!r}")
            tenant["keys"] = keys[tenant["name"]]
    return ClusterSpec.model_validate(content)


def keys_digest(keys: Mapping[str, Sequence[str]]) -> str:
    """Twelve hexadecimal digits by which one set of the tenants' keys differs from another."""
    content = json.dumps({name: list(of) for name, of in keys.items()}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def tenant_keys(secrets: Path) -> dict[str, list[str]]:
    """The digests of the tenants' keys, by tenant. Raises SecretsError."""
    try:
        keys = json.loads((secrets / KEYS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SecretsError(f"{secrets / KEYS_FILE}: cannot be read: {error}") from error
    if not isinstance(keys, dict):
        raise SecretsError(f"{secrets / KEYS_FILE}: allowed: a mapping of tenants to lists of digests")
    return keys


def gateway_app(arguments: GatewayArguments) -> serve.Application:
    """The gateways of a cell, and their directory. Serve's configuration says how many, and on which nodes. Raises
    SecretsError."""
    secrets = Path(arguments.secrets).expanduser()
    try:
        secret = (secrets / SECRET_FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SecretsError(f"{secrets / SECRET_FILE}: cannot be read: {error.strerror}") from error
    if len(secret) < _SHORTEST_SECRET:
        raise SecretsError(f"{secrets / SECRET_FILE}: allowed: at least {_SHORTEST_SECRET} characters")
    frozen = arguments.spec
    start_directory(secret, arguments.gateways, Path(arguments.run_dir))
    deployment = serve.deployment(DeployedGateway).options(name=GATEWAY_APP)
    return deployment.bind(frozen, arguments.region, arguments.run_dir, arguments.secrets)


def engine_app(arguments: EngineArguments) -> serve.Application:
    """The replicas of one model. How many there are is in Serve's configuration."""
    total_s = ClusterSpec.model_fields["gateway"].default.timeouts.total_s  # Serve's configuration has the spec's
    given = arguments
    return engine_deployment(
        given.model, given.pool, total_s, given.artifacts, given.starts, many_nodes=True, tracing=given.tracing
    )
