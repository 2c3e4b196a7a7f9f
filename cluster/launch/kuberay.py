"""A region's cell on Kubernetes: the objects that KubeRay and Kubernetes run, and the values of the Helm chart
(`infra/helm/raylane`), which makes the same objects.

Pure. The Secret is not among them: `raylane deploy` makes it, or whoever looks after secrets does.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from posixpath import commonpath
from typing import Any

from cluster.launch.environment import JOINED_ENVIRONMENT, RAY_ENVIRONMENT
from cluster.launch.nodes import (
    DASHBOARD_PORT,
    GCS_PORT,
    KEYS_FILE,
    SECRET_FILE,
    TOKEN_FILE,
    cell_folder,
    shared_secrets,
)
from cluster.launch.yaml_text import yaml_text
from cluster.node_labels import labels_of
from cluster.spec import (
    ZONE_LABEL,
    ClusterSpec,
    Ingress,
    KubernetesDeploy,
    KubernetesPool,
    Pool,
    PoolPart,
    Region,
    Toleration,
)

VALUES = "values.yaml"
MANIFESTS = "manifests.yaml"
TOKEN_KEY = "auth_token"
"""The key of Ray's token in the Secret, which KubeRay expects by this name."""
CELL_LABEL = "raylane.io/cell"
_GATEWAY_LABEL = "raylane.io/gateway"
"""Labels of pods."""
ROLLOUT_ANNOTATION = "raylane.io/rollout"
"""Of the RayService; KubeRay copies it to a RayCluster that it makes, which so says what it was made from."""
POD = "Pod"
"""Of `overrides`: each pod's template."""
_HOME = "/home/raylane"
_HUB_TOKEN = f"{_HOME}/.raylane/hub/token"
_STORE_VOLUME = "gcs-storage"
"""KubeRay's name of the volume with Ray's state, which it makes for each cluster."""
_SECRET_VOLUMES = ("secrets", "hub-token", "tls")
_LEAVING_S, _KILLED_S = 5, 25
"""What a pod has before Ray drains it, for load balancers to see that it ends, and afterwards (seconds)."""
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
    """What the chart's template reads: the objects by kind, with what the spec overrides."""
    cell = spec.cell_name(region)
    cluster = _ray_cluster(spec, region, deploy)
    service = {
        "excludeHeadPodFromServeSvc": True,
        **_upgrade(spec, deploy),
        "serveConfigV2": yaml_text(dict(serve_config)),
        "serveService": _gateway_service(spec, region, deploy),
        "rayClusterConfig": cluster,
    }
    # All but one pod of the fewest that there are; KubeRay's objects have no scale, which a share of them would need.
    pods = sum(group["minReplicas"] for group in cluster["workerGroupSpecs"])
    own = {"selector": {"matchLabels": {CELL_LABEL: cell}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    objects = {
        "RayService": _object("ray.io/v1", cell, service),
        "PodDisruptionBudget": _object("policy/v1", cell, {"minAvailable": pods, **own}),
        "NetworkPolicy": _object("networking.k8s.io/v1", cell, _network_policy(spec, region)),
    }
    if deploy.upgrade == "replace":
        objects["PersistentVolumeClaim"] = _object("v1", f"{cell}-head", _claim(1, deploy.store_class))
    if deploy.ingress is not None:
        objects["Ingress"] = _object("networking.k8s.io/v1", cell, _ingress(spec, region, deploy.ingress))
        objects["Ingress"]["metadata"]["annotations"] = dict(deploy.ingress.annotations)
    for kind, patch in deploy.overrides.items():
        if kind != POD:
            objects[kind] = _merged(objects[kind], patch)
    objects = {kind: objects[kind] for kind in sorted(objects) if objects[kind] is not None}
    made = objects.get("RayService", {"metadata": {}, "spec": {"rayClusterConfig": {}}})
    annotations = made["metadata"].setdefault("annotations", {})
    annotations[ROLLOUT_ANNOTATION] = _rollout(made["spec"]["rayClusterConfig"])
    return {"cell": cell, "rayService": True, "objects": objects}


def override_problem(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy) -> str:
    """What is wrong with an override: it is of no object, or takes away what the object must have; empty: nothing."""
    made = chart_values(spec, region, deploy.model_copy(update={"overrides": {}}), {})["objects"]
    made = {POD: {"metadata": {}, "spec": {}}, **made}
    for kind, patch in deploy.overrides.items():
        if kind not in made:
            return f"overrides.{kind}: allowed: {', '.join(made)}"
        if patch is not None and (lost := _lost(made[kind], _merged(made[kind], patch))):
            return f"overrides.{kind}{lost}: allowed: neither null nor another kind of value"
    return ""


def _lost(made: Mapping[str, Any], merged: Mapping[str, Any]) -> str:
    """Which of the keys that raylane reads is no longer what it was, after a dot; empty: none."""
    for key in ("apiVersion", "metadata", "name", "spec", "rayClusterConfig"):
        if key in made and not isinstance(merged.get(key), type(made[key])):
            return f".{key}"
        if isinstance(made.get(key), dict) and (below := _lost(made[key], merged[key])):
            return f".{key}{below}"
    return ""


def chart_objects(values: Mapping[str, Any], namespace: str) -> list[dict[str, Any]]:
    """What the chart makes of these values, in that namespace."""
    found = []
    for kind, one in values["objects"].items():
        labels = {"app.kubernetes.io/name": "raylane", "app.kubernetes.io/instance": values["cell"]}
        metadata = _merged(one["metadata"], {"namespace": namespace, "labels": labels})
        found.append({"apiVersion": one["apiVersion"], "kind": kind, "metadata": metadata, "spec": one["spec"]})
    return found


def _object(version: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "metadata": {"name": name}, "spec": spec}


def _merged(base: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386: null removes), whose lists of named items are merged by name."""
    if isinstance(patch, dict):
        old = base if isinstance(base, dict) else {}
        new = {key: _merged(value, patch[key]) if key in patch else value for key, value in old.items()}
        new |= {key: _merged(None, value) for key, value in patch.items() if key not in old}
        return {key: value for key, value in new.items() if value is not None}
    if isinstance(patch, list) and isinstance(base, list) and all(map(_item_name, (*base, *patch))):
        changes = {_item_name(one): one for one in patch}
        return [*(_merged(one, changes.pop(_item_name(one), {})) for one in base), *changes.values()]
    return patch


def _item_name(item: Any) -> str | None:
    names = (item.get(key) for key in ("mountPath", "name", "groupName")) if isinstance(item, dict) else ()
    return next((name for name in names if name), None)


def _rollout(cluster: Mapping[str, Any]) -> str:
    """A digest of what needs other pods. As KubeRay sees it: how many there are, and tolerations, do not."""
    pods = json.loads(json.dumps(cluster))
    for group in (pods.get("headGroupSpec", {}), *pods.get("workerGroupSpecs", ())):
        for key in ("replicas", "minReplicas", "maxReplicas"):
            group.pop(key, None)
        group.get("template", {}).get("spec", {}).pop("tolerations", None)
    return hashlib.sha256(json.dumps(pods, sort_keys=True).encode()).hexdigest()[:16]


def _upgrade(spec: ClusterSpec, deploy: KubernetesDeploy) -> dict[str, Any]:
    if deploy.upgrade == "replace":  # by `raylane deploy`: a second cluster would need as many GPUs again
        return {"upgradeStrategy": {"type": "None"}}
    # The old cluster's streams may end.
    return {"upgradeStrategy": {"type": "NewCluster"}, "rayClusterDeletionDelaySeconds": _drain_s(spec)}


def _drain_s(spec: ClusterSpec) -> int:
    """How long Ray may take to end a node (seconds). Serve stops a replica this long before the end that it needs at
    most to let requests finish; until then it looks for room elsewhere."""
    gateway = spec.gateway
    return int(max(gateway.timeouts.total_s + 30, gateway.stop_s)) + 30


def _network_policy(spec: ClusterSpec, region: Region) -> dict[str, Any]:
    """Who may connect to the cell's pods: these among themselves, clients to gateways, KubeRay to Ray's head."""
    own = {"matchLabels": {CELL_LABEL: spec.cell_name(region)}}
    operator = {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}
    return {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": own}]},
            {"ports": [{"port": spec.gateway.port}]},
            {"from": [{"namespaceSelector": {}, "podSelector": operator}], "ports": [{"port": DASHBOARD_PORT}]},
        ],
    }


def _ingress(spec: ClusterSpec, region: Region, ingress: Ingress) -> dict[str, Any]:
    service = {"name": f"{spec.cell_name(region)}-gateway", "port": {"number": spec.gateway.port}}
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": service}}
    tls: dict[str, Any] = {"hosts": [ingress.host]}
    if ingress.tls_secret is not None:
        tls["secretName"] = ingress.tls_secret
    made: dict[str, Any] = {"tls": [tls], "rules": [{"host": ingress.host, "http": {"paths": [path]}}]}
    return made if ingress.class_name is None else {"ingressClassName": ingress.class_name, **made}


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
            group = _worker_group(spec, region, deploy, one, pool, part, one.pool in gateways)
            groups.append(group)
    cluster: dict[str, Any] = {
        "authOptions": {"mode": "token", "secretName": secret_name(spec, region, deploy)},
        "gcsFaultToleranceOptions": _store(deploy),
        "headGroupSpec": _head_group(spec, region, deploy),
        "workerGroupSpecs": groups,
    }
    if any(group["minReplicas"] < group["maxReplicas"] for group in groups):
        head = cluster["headGroupSpec"]["template"]["spec"]
        head.pop("automountServiceAccountToken", None)  # it starts and ends pods
        cluster["enableInTreeAutoscaling"] = True
        cluster["autoscalerOptions"] = {"version": "v2", "idleTimeoutSeconds": 600}
    return cluster


def _store(deploy: KubernetesDeploy) -> dict[str, Any]:
    if deploy.head_store.kind == "redis":
        return {"backend": "redis", "redisAddress": deploy.head_store.address}
    storage: dict[str, Any] = {"size": f"{deploy.store_gib}Gi", "deletionPolicy": "DeleteWithCluster"}
    if deploy.store_class is not None:
        storage["storageClassName"] = deploy.store_class
    return {"backend": "rocksdb", "storage": storage}


def _head_group(spec: ClusterSpec, region: Region, deploy: KubernetesDeploy) -> dict[str, Any]:
    cell = spec.cell_name(region)
    # No stream runs here: the next head may start at once.
    container = _container("ray-head", deploy, deploy.head_cpus, deploy.head_memory_gib, drain_s=0)
    container["ports"] = [
        {"name": "gcs", "containerPort": GCS_PORT},
        {"name": "dashboard", "containerPort": DASHBOARD_PORT},
    ]
    volumes = _volumes(spec, region, deploy, deploy.head_memory_gib)
    volumes["run"] = ({"persistentVolumeClaim": {"claimName": f"{cell}-head"}}, f"{_HOME}/{cell_folder(cell)}/run")
    template = _pod(cell, deploy, container, volumes, deploy.head_node_selector, deploy.head_tolerations)
    if deploy.upgrade == "beside":  # both heads run for a while: each has its folder on the volume of its own store
        template["spec"]["volumes"] = [one for one in template["spec"]["volumes"] if one["name"] != "run"]
        container["volumeMounts"][-1] |= {"name": _STORE_VOLUME, "subPath": "run"}
    # No CPU and no GPU to offer, and no pool's label: neither a gateway nor a replica runs on the head.
    parameters = {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"}
    return {"rayStartParams": parameters, "template": _overridden(template, deploy)}


def group_name(pool: str, zone: str | None) -> str:
    """KubeRay's name of the pods of a pool in a zone (None: the pool has none)."""
    return pool if zone is None else f"{pool}-{zone}"


def _worker_group(
    spec: ClusterSpec,
    region: Region,
    deploy: KubernetesDeploy,
    one: KubernetesPool,
    pool: Pool,
    part: PoolPart,
    has_gateway: bool,
) -> dict[str, Any]:
    drain_s, cell = _drain_s(spec), spec.cell_name(region)
    container = _container("ray-worker", deploy, pool.cpus_per_node, one.memory_gib, pool.gpus_per_node, drain_s)
    volumes = _volumes(spec, region, deploy, one.memory_gib)
    volumes["models"] = (_models_volume(deploy), cache_folder(spec))
    if deploy.compile_cache_claim is not None:
        claim = {"persistentVolumeClaim": {"claimName": deploy.compile_cache_claim}}
        volumes["compiled"] = (claim, spec.starts.compile_cache.replace("~", _HOME, 1))
    if has_gateway and deploy.tls_secret is not None and spec.gateway.tls is not None:
        cert, key = PurePosixPath(spec.gateway.tls.cert), PurePosixPath(spec.gateway.tls.key)
        items = [{"key": "tls.crt", "path": cert.name}, {"key": "tls.key", "path": key.name}]
        source = {"secret": {"secretName": deploy.tls_secret, "defaultMode": 0o440, "items": items}}
        volumes["tls"] = (source, str(cert.parent))
    own_zone = {} if part.zone is None else {ZONE_LABEL: part.zone}
    template = _pod(cell, deploy, container, volumes, {**one.node_selector, **own_zone}, one.tolerations)
    pod = template["spec"]
    if one.runtime_class is not None:
        pod["runtimeClassName"] = one.runtime_class
    # Load balancers see that the pod ends, then Ray drains it: running requests end.
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(_LEAVING_S)]}}}
    pod["terminationGracePeriodSeconds"] = _LEAVING_S + drain_s + _KILLED_S
    if has_gateway:
        template["metadata"]["labels"][_GATEWAY_LABEL] = "true"
        _add_gateway(container, pod, spec, cell)
    return {
        "groupName": group_name(pool.name, part.zone),
        "replicas": part.nodes,
        "minReplicas": part.min,
        "maxReplicas": part.max,
        "labels": labels_of(pool.name, part.zone),
        "rayStartParams": {},
        "template": _overridden(template, deploy),
    }


def _overridden(template: Mapping[str, Any], deploy: KubernetesDeploy) -> dict[str, Any]:
    """A pod's template as the spec overrides it. What is said of the other kind of pod's container is not of this."""
    (own,) = template["spec"]["containers"]
    others = {"ray-head", "ray-worker"} - {own["name"]}
    made: dict[str, Any] = _merged(template, deploy.overrides.get(POD) or {})
    made["spec"]["containers"] = [one for one in made["spec"].get("containers", ()) if one.get("name") not in others]
    return made


def _add_gateway(container: dict[str, Any], pod: dict[str, Any], spec: ClusterSpec, cell: str) -> None:
    """The pod is ready when its gateway is: then the Service sends it requests. Each is on a node of its own, where
    there are as many."""
    port = spec.gateway.port
    container["ports"] = [{"name": "serve", "containerPort": port}]
    scheme = {} if spec.gateway.tls is None else {"scheme": "HTTPS"}
    container["readinessProbe"] = {
        "httpGet": {"path": "/ready", "port": port, **scheme},
        "periodSeconds": 5,
        "timeoutSeconds": 3,
        "failureThreshold": 2,
    }
    others = {"matchLabels": {CELL_LABEL: cell, _GATEWAY_LABEL: "true"}}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod["topologySpreadConstraints"] = [{**spread, "labelSelector": others}]


def cache_folder(spec: ClusterSpec) -> str:
    """Where a pod's volume of model files is mounted: it also holds what engines compiled. Empty: they have no folder
    in common that is their own."""
    found = commonpath(path.replace("~", _HOME, 1) for path in (spec.artifacts.cache, spec.starts.compile_cache))
    return "" if PurePosixPath(_HOME).is_relative_to(found) else found


def _container(
    name: str, deploy: KubernetesDeploy, cpus: int | None, memory_gib: int, gpus: int = 0, drain_s: int = 0
) -> dict[str, Any]:
    amounts: dict[str, Any] = {"cpu": str(cpus), "memory": f"{memory_gib}Gi"}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    # KubeRay sets the mode of authentication, and the token from the Secret.
    own = {"HOME": _HOME, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(drain_s)}
    variables = {**RAY_ENVIRONMENT, **JOINED_ENVIRONMENT, **own, **deploy.environment}
    del variables["RAY_AUTH_MODE"]
    if deploy.hub_secret is not None:
        variables["HF_TOKEN_PATH"] = _HUB_TOKEN
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
    name, sources = secret_name(spec, region, deploy), [(one, one.source) for one in shared_secrets(spec)]
    secret: dict[str, Any] = {"secret": {"secretName": name, "defaultMode": 0o440, "items": items}}
    shared_items = [
        (source.name or f"{spec.name}-{one.name}", [{"key": one.file, "path": one.file}])
        for one, source in sources
        if source.kind == "kubernetes"
    ]
    if shared_items:
        projected = [{"secret": {"name": one, "items": keys_of}} for one, keys_of in [(name, items), *shared_items]]
        secret = {"projected": {"defaultMode": 0o440, "sources": projected}}
    shared = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{max(1, memory_gib // _SHARED_MEMORY_SHARE)}Gi"}}
    volumes: _Volumes = {
        "home": ({"emptyDir": {}}, _HOME),
        "secrets": (secret, f"{_HOME}/{cell_folder(spec.cell_name(region))}/secrets"),
        "shared-memory": (shared, "/dev/shm"),
    }
    if deploy.hub_secret is not None:
        token = {"secretName": deploy.hub_secret, "defaultMode": 0o440, "items": [{"key": "token", "path": "token"}]}
        volumes["hub-token"] = ({"secret": token}, str(PurePosixPath(_HUB_TOKEN).parent))
    return volumes


def _models_volume(deploy: KubernetesDeploy) -> dict[str, Any]:
    cache = deploy.model_cache
    if cache.host_path is not None:
        # The kubelet would make it for root; pods run as another user.
        return {"hostPath": {"path": cache.host_path, "type": "Directory"}}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": _claim(cache.size_gib or 1, cache.storage_class)}}}


def _claim(size_gib: int, storage_class: str | None) -> dict[str, Any]:
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{size_gib}Gi"}}}
    return claim if storage_class is None else {**claim, "storageClassName": storage_class}


def _pod(
    cell: str,
    deploy: KubernetesDeploy,
    container: dict[str, Any],
    volumes: _Volumes,
    node_selector: Mapping[str, str],
    tolerations: tuple[Toleration, ...],
) -> dict[str, Any]:
    container["volumeMounts"] = [
        {"name": name, "mountPath": path, **({"readOnly": True} if name in _SECRET_VOLUMES else {})}
        for name, (_, path) in volumes.items()
    ]
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,  # none of ours asks Kubernetes' API
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
    return {"metadata": {"labels": {CELL_LABEL: cell}}, "spec": pod}
