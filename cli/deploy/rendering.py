"""The files of one region's cell, by what applies them: the launcher or kubectl, and Serve's REST API."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.launch import kubernetes_files, launcher_files, lost_head_procedure
from cluster.spec import AwsDeploy, ClusterSpec, KubernetesDeploy, Region

SERVE_CONFIG = "serve-config.json"
LOST_HEAD = "lost-head.md"


@dataclass(frozen=True, slots=True)
class Rendering:
    """`cluster`: the files that make the Ray cluster. `applications`: Serve's configuration. `content`: the spec,
    without keys. `lost_head`: what to do when the head's machine is lost; empty: it is replaced."""

    region: str
    provider: str
    cluster: Mapping[str, str]
    applications: Mapping[str, Any]
    content: Mapping[str, Any]
    lost_head: str = ""

    @property
    def files(self) -> dict[str, str]:
        """All that is written to the region's folder. On Kubernetes the applications are in the cluster's files."""
        if self.provider == "kubernetes":
            return dict(self.cluster)
        procedure = {LOST_HEAD: self.lost_head} if self.lost_head else {}
        return {**self.cluster, SERVE_CONFIG: json.dumps(self.applications, indent=2) + "\n", **procedure}

    @property
    def cluster_digest(self) -> str:
        return digest_of_texts(self.cluster)

    @property
    def applications_digest(self) -> str:
        return digest_of_texts({SERVE_CONFIG: json.dumps(self.applications, sort_keys=True)})


def digest_of_texts(texts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits of named texts."""
    return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()[:16]


def rendering_of(spec: ClusterSpec, unplaced: ClusterSpec, region: Region) -> Rendering:
    """What the region needs. `unplaced`: the spec with its paths as they are written, as the nodes read them."""
    from deployments.serve_config import serve_config  # imports Ray, which takes seconds

    deploy = region.deploy
    assert deploy is not None
    applications = serve_config(unplaced, unplaced.region(region.name))
    lost_head = ""
    if isinstance(deploy, KubernetesDeploy):
        cluster = kubernetes_files(unplaced, region, deploy, applications)
    else:
        cluster = launcher_files(spec, region, deploy)
        if not (isinstance(deploy, AwsDeploy) and deploy.head_group is not None):
            lost_head = lost_head_procedure(spec, region, deploy)
    content = unplaced.model_dump(mode="json", exclude_defaults=True)
    for tenant in content.get("tenants", []):
        tenant.pop("keys")
    return Rendering(region.name, deploy.provider, cluster, applications, content, lost_head)
