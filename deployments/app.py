"""From a cluster spec to Ray Serve applications: one for the gateway, one for each model of a cell or group of it.

Applications are apart so that a change to one model or group leaves the others, and the gateway, running.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeStatus

from cluster.spec import ClusterSpec, GatewaySpec, Model, Region
from deployments.engine.deployment import engine_deployment
from deployments.gateway.deployment import GATEWAY_APP, gateway_deployment

POLICY = "autoscaling.serve.policy:ServePolicy"
_MODEL_APP = "model-"
_MAX = 10_000
"""Serve's own bound, which is never to decide anything."""


def scaling_config(
    spec: ClusterSpec, model: Model, region: Region, run_dir: Path, estimate: str | None = None
) -> AutoscalingConfig:
    """Serve's autoscaling of `model`, a view, in the cell of `region`. `run_dir` is on the node of Serve's
    controller; `estimate`: a cost file's content, for a model that names none."""
    reported = spec.model_copy(update={"models": _scaled(spec, model, region), "tenants": (), "gateway": GatewaySpec()})
    arguments = {
        "spec": reported.model_dump_json(),
        "model": model.group_key,
        "region": region.name,
        "run_dir": str(run_dir),
        **with_estimate(estimate),
    }
    return AutoscalingConfig(**scaling_options(model.replicas.count, arguments))


def with_estimate(estimate: str | None) -> dict[str, str]:
    """The argument by which a policy gets it; none where there is none."""
    return {"estimate": estimate} if estimate else {}


def scaling_options(initial: int, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Serve's settings that leave every decision to our policy, which gets these arguments."""
    return {
        "min_replicas": 0,
        "initial_replicas": initial,
        "max_replicas": _MAX,
        "upscaling_factor": 1.0,
        "downscaling_factor": 1.0,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "downscale_to_zero_delay_s": 0.0,
        "policy": {"policy_function": POLICY, "policy_kwargs": dict(arguments)},
    }


def _scaled(spec: ClusterSpec, model: Model, region: Region) -> tuple[Model, ...]:
    """The model, and those that share its region's nodes: what they take is not there for it."""
    own = next(one for one in spec.models if one.name == model.name)
    return (own, *(one for one in spec.models if one is not own and region in spec.regions_of(one)))


_OURS = ("gateway", "engine-")
"""How the names of our deployments begin."""


def our_apps(status: ServeStatus) -> set[str]:
    """The names of a cell's applications among those of Serve, which may have others."""
    return {
        name
        for name, app in status.applications.items()
        if (name == GATEWAY_APP or name.startswith(_MODEL_APP))
        and all(deployment.startswith(_OURS) for deployment in app.deployments)
    }


@dataclass(frozen=True)
class CellApp:
    """An application by its name in Serve, not yet running. `replicas` is how many there are at first."""

    name: str
    target: Any
    replicas: int


def cell_apps(
    spec: ClusterSpec,
    region: Region,
    run_dir: Path,
    many_nodes: bool = False,
    estimates: Mapping[str, str] = MappingProxyType({}),
) -> list[CellApp]:
    """The applications of one cell. The gateway comes first: it starts fast, and waits for the replicas by itself.

    `many_nodes`: the cell is not this machine alone, so its processes reach each other by their nodes' addresses.
    `estimates`: by group, the content of an estimated cost file, which its policy starts from.
    """
    gateways = gateway_deployment(spec, region, run_dir, many_nodes)
    apps = [CellApp(GATEWAY_APP, gateways, spec.gateway.replicas)]
    for view in spec.views_in(region):
        scaling = scaling_config(spec, view, region, run_dir, estimates.get(view.group_key))
        pool, total_s = spec.pool_of(view, region), spec.gateway.timeouts.total_s
        target = engine_deployment(view, pool, total_s, spec.artifacts, spec.starts, scaling, many_nodes, spec.tracing)
        apps.append(CellApp(app_name(view.group_key), target, view.replicas.count))
    return apps


def app_name(group_key: str) -> str:
    """The Serve application of a model or one of its groups, by `Model.group_key` (Serve's names know no slash)."""
    return _MODEL_APP + "".join(char if char.isalnum() or char in "-_." else "-" for char in group_key)
