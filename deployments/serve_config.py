"""Serve's configuration of one cell, as its REST API (`PUT /api/serve/applications/`) and KubeRay's RayService take it.

Pure. It has an application for the gateways and one for each model, so that a change to one model restarts no other,
and what may change while the cell runs stands where Serve restarts nothing for it (`user_config`, and options of
deployments). The tenants' keys are left out: they come from a file on each node.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cluster.launch import cell_folder
from cluster.spec import ClusterSpec, Model, Pool, Region
from deployments.app import app_name, scaling_options, with_estimate
from deployments.deployed import keys_digest
from deployments.engine.deployment import deployment_name, shutdown_s
from deployments.gateway.deployment import GATEWAY_APP, gateway_options
from deployments.gateway.operators.live_spec import split_live

_GATEWAY_BUILDER = "deployments.deployed:gateway_app"
_ENGINE_BUILDER = "deployments.deployed:engine_app"
_OF_A_REPLICA = {"name", "accelerator", "gpus_per_node", "cpus_per_node", "spot", "spot_notice_url"}
"""Keys of a pool on which a replica depends."""
OF_THE_CELL = {"aliases", "fallback", "replicas", "autoscaling", "regions", "residency"}
"""Keys of a model on which no replica depends."""


def serve_config(
    spec: ClusterSpec, region: Region, estimates: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The content, JSON alone, valid by Serve's own schema. Defaults of the spec are left out. `estimates`: by group,
    the content of an estimated cost file, which its policy starts from."""
    engines = [_engines(spec, region, view, estimates.get(view.group_key)) for view in spec.views_in(region)]
    return {
        "proxy_location": "Disabled",
        "applications": [_gateways(spec, region), *engines],
    }


def _gateways(spec: ClusterSpec, region: Region) -> dict[str, Any]:
    frozen, live = split_live(deployed_content(spec))
    frozen.setdefault("gateway", {})  # there or not, whatever of it may change while the cell runs
    models = frozen["models"]  # of a model that changes, the replicas are replaced, and no gateway
    frozen["models"] = [_names(model) for model in models]
    for tenant in live.get("tenants", []):
        tenant.pop("keys")
    folder = f"~/{cell_folder(spec.cell_name(region))}"
    arguments = {
        "spec": frozen,
        "gateways": spec.gateway.replicas,
        "region": region.name,
        "run_dir": f"{folder}/run",
        "secrets": f"{folder}/secrets",
    }
    # A change of the keys alone is a change, too: then the gateways read their file again.
    user_config = {
        "models": models,
        "live": live,
        "keys": keys_digest({tenant.name: tenant.keys for tenant in spec.tenants}),
    }
    deployment = {**gateway_options(spec, region, many_nodes=True), "user_config": user_config}
    return _application(GATEWAY_APP, _GATEWAY_BUILDER, arguments, deployment)


def _names(model: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model the gateways' arguments hold: that it is there, and its groups."""
    groups = [{"name": group["name"]} for group in model.get("groups", ())]
    return {"name": model["name"]} | ({"groups": groups} if groups else {})


def deployed_content(spec: ClusterSpec) -> dict[str, Any]:
    """The spec as the cell's processes get it: without where its regions run, which only `raylane deploy` reads."""
    content = spec.model_dump(mode="json", exclude_defaults=True)
    for region in content["regions"]:
        region.pop("deploy", None)
    return content


def _engines(spec: ClusterSpec, region: Region, model: Model, estimate: str | None) -> dict[str, Any]:
    frozen = model.model_dump(mode="json", exclude_defaults=True, exclude=OF_THE_CELL)
    pool: Pool = spec.pool_of(model, region)
    arguments = {
        "model": frozen,
        "pool": pool.model_dump(mode="json", exclude_defaults=True, include=_OF_A_REPLICA),
        "artifacts": spec.artifacts.model_dump(mode="json", exclude_defaults=True),
        "starts": spec.starts.model_dump(mode="json", exclude_defaults=True),
        **({"tracing": spec.tracing.model_dump(mode="json")} if spec.tracing else {}),
    }
    run_dir = f"~/{cell_folder(spec.cell_name(region))}/run"
    # The policy gets its spec from the directory, so that these arguments change with the engine alone.
    policy = {"spec": "", "model": model.group_key, "region": region.name, "run_dir": run_dir}
    policy |= with_estimate(estimate)
    deployment = {
        "name": deployment_name(model.group_key),
        "autoscaling_config": scaling_options(model.replicas.count, policy),
        "graceful_shutdown_timeout_s": shutdown_s(spec.gateway.timeouts.total_s),
    }
    return _application(app_name(model.group_key), _ENGINE_BUILDER, arguments, deployment)


def _application(
    name: str, builder: str, arguments: Mapping[str, Any], deployment: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": None,
        "import_path": builder,
        "args": dict(arguments),
        "deployments": [dict(deployment)],
    }
