"""The files of one region's cell, by what applies them: the launcher or kubectl, and Serve's REST API."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.launch import kubernetes_files, launcher_files
from cluster.spec import ClusterSpec, KubernetesDeploy, Region

SERVE_CONFIG = "serve-config.json"


@dataclass(frozen=True, slots=True)
class Rendering:
    """`cluster`: the files that make the Ray cluster. `applications`: Serve's configuration. `content`: the spec as the
    cell gets it, without keys."""

    region: str
    provider: str
    cluster: Mapping[str, str]
    applications: Mapping[str, Any]
    content: Mapping[str, Any]

    @property
    def files(self) -> dict[str, str]:
        """All that is written to the region's folder. On Kubernetes the applications are in the cluster's files."""
        if self.provider == "kubernetes":
            return dict(self.cluster)
        return {**self.cluster, SERVE_CONFIG: json.dumps(self.applications, indent=2) + "\n"}

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
    from deployments.serve_config import deployed_content, serve_config  # imports Ray, which takes seconds

    deploy = region.deploy
    assert deploy is not None
    applications = serve_config(unplaced, unplaced.region(region.name))
    if isinstance(deploy, KubernetesDeploy):
        cluster = kubernetes_files(unplaced, region, deploy, applications)
    else:
        cluster = launcher_files(spec, region, deploy)
    content = deployed_content(unplaced)
    for tenant in content.get("tenants", []):
        tenant.pop("keys")
    return Rendering(region.name, deploy.provider, cluster, applications, content)
