"""The files of one region's cell, by what applies them: the launcher or kubectl, and Serve's REST API."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cli.deploy.record import EngineEstimate
from cluster.launch import kubernetes_files, launcher_files, lost_head_procedure
from cluster.spec import AwsDeploy, ClusterSpec, KubernetesDeploy, LocalDeploy, Region

SERVE_CONFIG = "serve-config.json"
LOST_HEAD = "lost-head.md"


@dataclass(frozen=True, slots=True)
class Rendering:
    """`cluster`: the files that make the Ray cluster; `cluster_digest` is the same from any folder of the spec.
    `applications`: Serve's configuration. `content`: the spec,
    without keys. `lost_head`: what to do when the head's machine is lost; empty: it is replaced. `estimates`: what the
    applications say of the costs of engines, by group."""

    region: str
    provider: str
    cluster: Mapping[str, str]
    cluster_digest: str
    applications: Mapping[str, Any]
    content: Mapping[str, Any]
    lost_head: str = ""
    estimates: Mapping[str, EngineEstimate] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """All that is written to the region's folder. On Kubernetes the applications are in the cluster's files."""
        if self.provider == "kubernetes":
            return dict(self.cluster)
        procedure = {LOST_HEAD: self.lost_head} if self.lost_head else {}
        return {**self.cluster, SERVE_CONFIG: json.dumps(self.applications, indent=2) + "\n", **procedure}

    @property
    def applications_digest(self) -> str:
        return digest_of_texts({SERVE_CONFIG: json.dumps(self.applications, sort_keys=True)})


def digest_of_texts(texts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits of named texts."""
    return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()[:16]


def estimates_of(
    spec: ClusterSpec, unplaced: ClusterSpec, region: Region, known: Mapping[str, EngineEstimate]
) -> dict[str, EngineEstimate]:
    """By group, for models that scale without a cost file: as recorded while their engines are the same, else from data
    sheets. What is recorded counts for all operators, since not all of them have the model's files."""
    from deployments.serve_config import OF_THE_CELL  # imports Ray, which takes seconds

    found = {}
    for view in unplaced.views_in(unplaced.region(region.name)):
        if not unplaced.lacks_costs(view):
            continue
        gpu = unplaced.pool_of(view, unplaced.region(region.name)).accelerator
        engine = digest_of_texts({gpu: view.model_dump_json(exclude=OF_THE_CELL)})
        recorded = known.get(view.group_key)
        if recorded is None or recorded.engine != engine:
            from cli.costs import estimate  # takes seconds to import

            content = estimate(spec, region, spec.view(view.group_key))
            recorded = EngineEstimate(engine=engine, costs="" if content is None else content.model_dump_json())
        found[view.group_key] = recorded
    return found


def rendering_of(
    spec: ClusterSpec,
    unplaced: ClusterSpec,
    region: Region,
    estimates: Mapping[str, EngineEstimate] = MappingProxyType({}),
) -> Rendering:
    """What the region needs. `unplaced`: the spec with its paths as they are written, as the nodes read them."""
    from deployments.serve_config import serve_config  # imports Ray, which takes seconds

    deploy, as_written = region.deploy, unplaced.region(region.name).deploy
    assert deploy is not None
    costs = {name: one.costs for name, one in estimates.items()}
    applications = serve_config(unplaced, unplaced.region(region.name), costs)
    lost_head = ""
    if isinstance(deploy, KubernetesDeploy):
        cluster = digested = kubernetes_files(unplaced, region, deploy, applications)
    else:
        assert isinstance(as_written, LocalDeploy | AwsDeploy)
        cluster, digested = launcher_files(spec, region, deploy), launcher_files(unplaced, region, as_written)
        if not (isinstance(deploy, AwsDeploy) and deploy.head_group is not None):
            lost_head = lost_head_procedure(spec, region, deploy)
    content = unplaced.model_dump(mode="json", exclude_defaults=True)
    for tenant in content.get("tenants", []):
        tenant.pop("keys")
    digest = digest_of_texts(digested)
    return Rendering(region.name, deploy.provider, cluster, digest, applications, content, lost_head, estimates)
