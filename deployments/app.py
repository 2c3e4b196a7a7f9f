"""From a cluster spec to Ray Serve applications: one for the gateway, one for each model of a cell.

Applications are apart so that a change to one model leaves the others, and the gateway, running.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.spec import ClusterSpec, Region
from deployments.engine.deployment import engine_deployment
from deployments.engine.scaling import scaling_config
from deployments.gateway.deployment import gateway_deployment

GATEWAY_APP = "gateway"


@dataclass(frozen=True)
class CellApp:
    """An application by its name in Serve, not yet running. `replicas` is how many there are at first."""

    name: str
    target: Any
    replicas: int


def cell_apps(spec: ClusterSpec, region: Region, run_dir: Path) -> list[CellApp]:
    """The applications of one cell. The gateway comes first: it starts fast, and waits for the replicas by itself."""
    apps = [CellApp(GATEWAY_APP, gateway_deployment(spec, region, run_dir), spec.gateway.replicas)]
    for model in spec.models:
        if region in spec.regions_of(model):
            scaling = scaling_config(spec, model, region, run_dir)
            target = engine_deployment(model, spec.pool_of(model, region), spec.gateway.timeouts.total_s, scaling)
            apps.append(CellApp(app_name(model.name), target, model.replicas.count))
    return apps


def app_name(model: str) -> str:
    """The Serve application of a model (Serve's names know no slash)."""
    return "model-" + "".join(char if char.isalnum() or char in "-_." else "-" for char in model)
