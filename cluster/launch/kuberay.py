"""A region's cell on Kubernetes: the objects that KubeRay and Kubernetes run, and the values of the Helm chart
(`infra/helm/raylane`), which makes the same objects.

Pure. The Secret is not among them: `raylane deploy` makes it, or whoever looks after secrets does.
"""

from collections.abc import Mapping
from typing import Any

from cluster.launch.environment import JOINED_ENVIRONMENT, RAY_ENVIRONMENT
from cluster.launch.nodes import (
    DASHBOARD_PORT,
    GCS_PORT,
    KEYS_FILE,
    PEERS_FILE,
    SECRET_FILE,
    TOKEN_FILE,
    cell_folder,
)
from cluster.launch.yaml_text import yaml_text
from cluster.node_labels import labels_of
from cluster.spec import ZONE_LABEL, ClusterSpec, KubernetesDeploy, KubernetesPool, Pool, PoolPart, Region, Toleration

VALUES = "values.yaml"
MANIFESTS = "manifests.yaml"
TOKEN_KEY = "auth_token"
"""The key of Ray's token in the Secret, which KubeRay expects by this name."""
_HOME = "/home/raylane"
_USER = 1000
"""The user of the image: no root, whatever the image says."""
_SHARED_MEMORY_SHARE = 4
"""One part in so many of a pod's memory may be shared memory (Ray's objects, what vLLM's processes hand each other)."""

_Volumes = dict[str, tuple[dict[str, Any], str]]
"""Each volume's source and where it is mounted, by its name."""


def kubernetes_files(
    spec: ClusterSpec, region: Region, deploy: KubernetesDeploy, serve_config: Mapping[str, Any]
) -> dict[str, str]:
    """The chart's values and the objects, by file name."""
    values = chart_values(spec, region, deploy, serve_config)
    heading = f"# {spec.cell_name(region)}. Rendered by `raylane deploy`: change the spec, not this file.\n"
    objects = chart_objects(values, deploy.namespace)
    return {
        VALUES: heading + yaml_text(values),
        MANIFESTS: heading + yaml_text(*objects),
    }


def secret_name(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy) -> str:
    """The Secret with the cluster's secret, Ray's token and the digests of the tenants' keys."""
    return deploy.secrets.name or spec.cell_name(region)


def chart_values(
    spec: ClusterSpec, region: Region, deploy: KubernetesDeploy, serve_config: Mapping[str, Any]
) -> dict[str, Any]:
    """What the chart's templates read."""
    return {
        "cell": spec.cell_name(region),
        "rayService": True,
        "serveConfig": yaml_text(dict(serve_config)),
        "serveService": _gateway_service(spec, region, deploy),
        "rayCluster": _ray_cluster(spec, region, deploy),
        "headVolume": _claim(1, deploy.store_class),
    }


def chart_objects(values: Mapping[str, Any], namespace: str) -> list[dict[str, Any]]:
    """What the chart makes of these values, in that namespace."""
    cell = values["cell"]
    labels = {"app.kubernetes.io/name": "raylane", "app.kubernetes.io/instance": cell}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{cell}-head", "namespace": namespace, "labels": labels},
        "spec": values["headVolume"],
    }
    metadata = {"name": cell, "namespace": namespace, "labels": labels}
    if not values["rayService"]:
        cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": values["rayCluster"]}
        return [claim, cluster]
    service = {
        "excludeHeadPodFromServeSvc": True,
        # A second cluster beside the first one would need as many GPUs again.
        "upgradeStrategy": {"type": "None"},
        "serveConfigV2": values["serveConfig"],
        "serveService": values["serveService"],
        "rayClusterConfig": values["rayCluster"],
    }
    return [claim, {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata, "spec": service}]


def _gateway_service(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": f"{spec.cell_name(region)}-gateway"}
    if deploy.gateway_annotations:
        metadata["annotations"] = dict(deploy.gateway_annotations)
    port = {"name": "serve", "port": spec.gateway.port, "targetPort": spec.gateway.port}
    return {"metadata": metadata, "spec": {"type": deploy.gateway_service, "ports": [port]}}


def _ray_cluster(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy) -> dict[str, Any]:
    pools = {pool.name: pool for pool in region.pools}
    gateways = {pool.name for pool in spec.gateway_pools(region)}
    groups = []
    for one in deploy.pools:
        pool = pools[one.pool]
        for part in one.parts(pool.nodes, pool.zones):
            group = _worker_group(spec, deploy, one, pool, part, _volumes(spec, region, deploy, one.memory_gib))
            if one.pool in gateways:
                _add_gateway(group["template"]["spec"]["containers"][0], spec.gateway.port)
            groups.append(group)
    cluster: dict[str, Any] = {
        "authOptions": {"mode": "token", "secretName": secret_name(spec, region, deploy)},
        "gcsFaultToleranceOptions": _store(deploy),
        "headGroupSpec": _head_group(spec, region, deploy),
        "workerGroupSpecs": groups,
    }
    if any(group["minReplicas"] < group["maxReplicas"] for group in groups):
        cluster["enableInTreeAutoscaling"] = True
        cluster["autoscalerOptions"] = {"version": "v2", "idleTimeoutSeconds": 600}
    return cluster


def _store(deploy: KubernetesDeploy) -> dict[str, Any]:
    if deploy.head_store.kind == "redis":
        return {"backend": "redis", "redisAddress": deploy.head_store.address}
    storage: dict[str, Any] = {"size": f"{deploy.store_gib}Gi", "deletionPolicy": "Retain"}
    if deploy.store_class is not None:
        storage["storageClassName"] = deploy.store_class
    return {"backend": "rocksdb", "storage": storage}


def _head_group(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy) -> dict[str, Any]:
    cell = spec.cell_name(region)
    container = _container("ray-head", deploy, deploy.head_cpus, deploy.head_memory_gib)
    container["ports"] = [
        {"name": "gcs", "containerPort": GCS_PORT},
        {"name": "dashboard", "containerPort": DASHBOARD_PORT},
    ]
    volumes = _volumes(spec, region, deploy, deploy.head_memory_gib)
    volumes["run"] = ({"persistentVolumeClaim": {"claimName": f"{cell}-head"}}, f"{_HOME}/{cell_folder(cell)}/run")
    pod = _pod(deploy, container, volumes, deploy.head_node_selector, deploy.head_tolerations)
    # No CPU and no GPU to offer, and no pool's label: neither a gateway nor a replica runs on the head.
    parameters = {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"}
    return {"rayStartParams": parameters, "template": {"spec": pod}}


def group_name(pool: str, zone: str | None) -> str:
    """KubeRay's name of the pods of a pool in a zone (None: the pool has none)."""
    return pool if zone is None else f"{pool}-{zone}"


def _worker_group(
    spec: ClusterSpec, deploy: KubernetesDeploy, one: KubernetesPool, pool: Pool, part: PoolPart, volumes: _Volumes
) -> dict[str, Any]:
    container = _container("ray-worker", deploy, pool.cpus_per_node, one.memory_gib, pool.gpus_per_node)
    cache = spec.artifacts.cache.replace("~", _HOME, 1)
    volumes["models"] = (_models_volume(deploy), cache)
    own_zone = {} if part.zone is None else {ZONE_LABEL: part.zone}
    pod = _pod(deploy, container, volumes, {**one.node_selector, **own_zone}, one.tolerations)
    if one.runtime_class is not None:
        pod["runtimeClassName"] = one.runtime_class
    # A replica that stops lets its requests end.
    pod["terminationGracePeriodSeconds"] = int(spec.gateway.timeouts.total_s) + 60
    return {
        "groupName": group_name(pool.name, part.zone),
        "replicas": part.nodes,
        "minReplicas": part.min,
        "maxReplicas": part.max,
        "labels": labels_of(pool.name, part.zone),
        "rayStartParams": {},
        "template": {"spec": pod},
    }


def _add_gateway(container: dict[str, Any], port: int) -> None:
    """The pod is ready when its gateway is: then the Service sends it requests."""
    container["ports"] = [{"name": "serve", "containerPort": port}]
    container["readinessProbe"] = {
        "httpGet": {"path": "/ready", "port": port},
        "periodSeconds": 5,
        "timeoutSeconds": 3,
        "failureThreshold": 2,
    }


def _container(name: str, deploy: KubernetesDeploy, cpus: int | None, memory_gib: int, gpus: int = 0) -> dict[str, Any]:
    amounts: dict[str, Any] = {"cpu": str(cpus), "memory": f"{memory_gib}Gi"}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    # KubeRay sets the mode of authentication, and the token from the Secret.
    variables = {**RAY_ENVIRONMENT, **JOINED_ENVIRONMENT, "HOME": _HOME, **deploy.environment}
    del variables["RAY_AUTH_MODE"]
    return {
        "name": name,
        "image": deploy.image,
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _volumes(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy, memory_gib: int) -> _Volumes:
    keys = {SECRET_FILE: SECRET_FILE, TOKEN_KEY: TOKEN_FILE}
    if spec.tenants:
        keys[KEYS_FILE] = KEYS_FILE
    items = [{"key": key, "path": path} for key, path in keys.items()]
    name, peers = secret_name(spec, region, deploy), None if spec.peering is None else spec.peering.secret
    secret: dict[str, Any] = {"secret": {"secretName": name, "defaultMode": 0o440, "items": items}}
    if peers is not None and peers.kind == "kubernetes":
        shared_items = [{"key": PEERS_FILE, "path": PEERS_FILE}]
        sources = [(name, items), (peers.name or f"{spec.name}-peers", shared_items)]
        projected = [{"secret": {"name": one, "items": keys_of}} for one, keys_of in sources]
        secret = {"projected": {"defaultMode": 0o440, "sources": projected}}
    shared = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{max(1, memory_gib // _SHARED_MEMORY_SHARE)}Gi"}}
    return {
        "home": ({"emptyDir": {}}, _HOME),
        "secrets": (secret, f"{_HOME}/{cell_folder(spec.cell_name(region))}/secrets"),
        "shared-memory": (shared, "/dev/shm"),
    }


def _models_volume(deploy: KubernetesDeploy) -> dict[str, Any]:
    cache = deploy.model_cache
    if cache.host_path is not None:
        return {"hostPath": {"path": cache.host_path, "type": "DirectoryOrCreate"}}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": _claim(cache.size_gib or 1, cache.storage_class)}}}


def _claim(size_gib: int, storage_class: str | None) -> dict[str, Any]:
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{size_gib}Gi"}}}
    return claim if storage_class is None else {**claim, "storageClassName": storage_class}


def _pod(
    deploy: KubernetesDeploy,
    container: dict[str, Any],
    volumes: _Volumes,
    node_selector: Mapping[str, str],
    tolerations: tuple[Toleration, ...],
) -> dict[str, Any]:
    container["volumeMounts"] = [
        {"name": name, "mountPath": path, **({"readOnly": True} if name == "secrets" else {})}
        for name, (_, path) in volumes.items()
    ]
    pod: dict[str, Any] = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": name, **source} for name, (source, _) in volumes.items()],
    }
    if deploy.service_account is not None:
        pod["serviceAccountName"] = deploy.service_account
    if deploy.image_pull_secret is not None:
        pod["imagePullSecrets"] = [{"name": deploy.image_pull_secret}]
    if node_selector:
        pod["nodeSelector"] = dict(node_selector)
    if tolerations:
        pod["tolerations"] = [one.model_dump(exclude_none=True) for one in tolerations]
    return pod
