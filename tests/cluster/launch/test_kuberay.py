"""What runs on Kubernetes is valid by KubeRay's and Kubernetes' own schemas, and the chart makes the same."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.launch import MANIFESTS, deploy_problems, kubernetes_files
from cluster.launch.kuberay import VALUES
from cluster.spec import ClusterSpec, KubernetesDeploy, SpecError
from deployments.serve_config import serve_config
from tests.cluster.launch.chart import CHART, rendered_chart
from tests.cluster.launch.specs import KUBERNETES, MODEL, PUBLIC, ZONED_KUBERNETES, changed, spec_of

CRD_CHECK = CHART.parents[2].parent / "shared" / "tools" / "crd_check.py"


def rendered(spec: ClusterSpec) -> dict[str, str]:
    region = spec.regions[0]
    assert isinstance(region.deploy, KubernetesDeploy)
    return kubernetes_files(spec, region, region.deploy, serve_config(spec, region))


def objects_of(spec: ClusterSpec) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(rendered(spec)[MANIFESTS]))


def object_of(spec: ClusterSpec, kind: str) -> dict[str, Any]:
    return next(one for one in objects_of(spec) if one["kind"] == kind)


def service_of(spec: ClusterSpec) -> dict[str, Any]:
    return dict(object_of(spec, "RayService")["spec"])


def templates_of(spec: ClusterSpec) -> list[dict[str, Any]]:
    """Of the head's pod, and of each group of workers."""
    cluster = service_of(spec)["rayClusterConfig"]
    return [one["template"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


REGIONS = {
    "plain": KUBERNETES,
    "zoned": ZONED_KUBERNETES,
    "elastic": changed(
        KUBERNETES,
        pools=[{"pool": "gpu", "memory_gib": 64, "min": 1, "max": 3, "runtime_class": "nvidia"}],
        model_cache={"size_gib": 100, "storage_class": "fast"},
        head_store={"kind": "redis", "address": "redis:6379"},
        service_account="raylane",
        image_pull_secret="registry",
        gateway_annotations={"example.org/internal": "true"},
        head_tolerations=[{"key": "cpu", "operator": "Equal", "value": "only", "effect": "NoSchedule"}],
        hub_secret="hub",
        ingress={"host": "llm.example.org", "class_name": "nginx", "tls_secret": "certificate"},
    ),
    "own fields": changed(
        KUBERNETES,
        upgrade="beside",
        compile_cache_claim="compiled",
        overrides={
            "Pod": {"metadata": {"annotations": {"a/b": "c"}}, "spec": {"priorityClassName": "serving"}},
            "RayService": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"rayClusterConfig": {"workerGroupSpecs": [{"groupName": "gpu", "idleTimeoutSeconds": 9}]}},
            },
            "NetworkPolicy": None,
        },
    ),
}


@pytest.mark.skipif(not CRD_CHECK.is_file(), reason="KubeRay's schemas (../shared) are not on this machine")
@pytest.mark.whole
def test_kuberays_schema_accepts_it(tmp_path: Path) -> None:
    """One process for all regions: it reads the schemas for seconds. What it must refuse is among them."""
    files: list[Path] = []
    for name, region in REGIONS.items():
        spec = spec_of(region, **PUBLIC)
        service, cluster, wrong = (tmp_path / f"{name}-{kind}.yaml" for kind in ("service", "cluster", "wrong"))
        files += [service, cluster, wrong]
        service.write_text(rendered(spec)[MANIFESTS])
        values = yaml.safe_load(rendered(spec)[VALUES])
        cluster.write_text(yaml.safe_dump_all(rendered_chart({**values, "rayService": False}, "raylane")))
        assert "kind: RayCluster" in cluster.read_text()
        wrong.write_text(service.read_text().replace("rayClusterConfig:", "rayClusterConfiguration:"))
    command = [sys.executable, str(CRD_CHECK), *map(str, files)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    counted, *problems = result.stdout.splitlines()
    assert counted.startswith(f"{len(files)} Ray manifests"), result.stderr
    refused = {Path(problem.split(": ")[0]).stem for problem in problems}
    assert refused == {f"{name}-wrong" for name in REGIONS}, problems


@pytest.mark.whole
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_kubernetes_own_schema_accepts_it(region: dict[str, Any]) -> None:
    """Strictly: each object, the Service, and each pod in KubeRay's objects, which KubeRay's schema checks less."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    spec = spec_of(region, **PUBLIC)
    found = [one for one in objects_of(spec) if one["kind"] != "RayService"]
    found += [{"apiVersion": "v1", "kind": "Service", **service_of(spec)["serveService"]}, *pods_of(spec)]
    for one in found:
        validate(one, "1.32", strict=True)
    errors = import_module("kubernetes_validate.utils")
    with pytest.raises(errors.ValidationError):
        validate({**found[-1], "spec": {**found[-1]["spec"], "toleration": []}}, "1.32", strict=True)


def pods_of(spec: ClusterSpec) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "Pod", **one, "metadata": {"name": "a", **one["metadata"]}}
        for one in templates_of(spec)
    ]


@pytest.mark.whole
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_pods_meet_kubernetes_pod_security(region: dict[str, Any]) -> None:
    """The standard `restricted`, which asks for more than `baseline` does."""
    allowed = {"emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    for pod in pods_of(spec_of(region, **PUBLIC)):
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= allowed
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.whole
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_the_chart_makes_the_same_objects(region: dict[str, Any]) -> None:
    spec = spec_of(region, **PUBLIC)
    assert rendered_chart(yaml.safe_load(rendered(spec)[VALUES]), "raylane") == objects_of(spec)


def test_a_chart_without_values_says_what_is_missing() -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    with pytest.raises(helm.HelmRenderError, match="render the values from a spec"):
        rendered_chart({}, "raylane")


def test_the_head_offers_nothing_and_has_no_pool() -> None:
    cluster = service_of(spec_of(KUBERNETES, **PUBLIC))["rayClusterConfig"]
    head, (worker,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert "labels" not in head
    assert worker["labels"] == {"raylane.io/pool": "gpu"}
    assert cluster["gcsFaultToleranceOptions"]["backend"] == "rocksdb"
    assert worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_each_zone_of_a_pool_has_pods_of_its_own() -> None:
    cluster = service_of(spec_of(ZONED_KUBERNETES, **PUBLIC))["rayClusterConfig"]
    groups = {one["groupName"]: one for one in cluster["workerGroupSpecs"]}
    sizes = {name: (one["minReplicas"], one["replicas"], one["maxReplicas"]) for name, one in groups.items()}
    assert sizes == {"gpu-a": (2, 2, 2), "gpu-b": (1, 1, 2)}
    assert groups["gpu-b"]["labels"] == {"raylane.io/pool": "gpu", "raylane.io/zone": "b"}
    selector = groups["gpu-b"]["template"]["spec"]["nodeSelector"]
    assert selector == {"gpu": "h100", "topology.kubernetes.io/zone": "b"}


def test_two_groups_of_pods_may_not_have_one_name() -> None:
    deploy = ZONED_KUBERNETES["deploy"]
    region = {
        **ZONED_KUBERNETES,
        "pools": [*ZONED_KUBERNETES["pools"], {**KUBERNETES["pools"][0], "name": "gpu-b"}],
        "deploy": {**deploy, "pools": [*deploy["pools"], {**KUBERNETES["deploy"]["pools"][0], "pool": "gpu-b"}]},
    }
    public = {**PUBLIC, "gateway": {**PUBLIC["gateway"], "replicas": 5}}
    spec = spec_of(region, **public)
    found = deploy_problems(spec, spec.regions[0])
    assert found == ["regions.eu.pools: two groups of pods would be named 'gpu-b'; allowed: other names of pools"]


def test_no_secret_is_in_it() -> None:
    text = "".join(rendered(spec_of(KUBERNETES, **PUBLIC)).values())
    assert "ab" * 32 not in text
    spec = service_of(spec_of(KUBERNETES, **PUBLIC))["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    (secret,) = (one["secret"] for one in spec["volumes"] if one["name"] == "secrets")
    assert {item["path"] for item in secret["items"]} == {"secret", "ray_token", "tenant_keys.json"}
    assert all("valueFrom" in one or "TOKEN" not in one["name"] for one in spec["containers"][0]["env"])


@pytest.mark.whole
def test_the_secret_of_the_cells_is_mounted_beside_the_cells_own() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    other = {"name": "us", "endpoint": "https://us.example.org", "pools": [{"name": "cpu"}]}
    for name in (None, "ours"):
        peering = {"secret": {"kind": "kubernetes", **({} if name is None else {"name": name})}}
        spec = spec_of({**KUBERNETES, "endpoint": "https://eu.example.org"}, other, peering=peering, **PUBLIC)
        template = service_of(spec)["rayClusterConfig"]["headGroupSpec"]["template"]
        (volume,) = (one["projected"] for one in template["spec"]["volumes"] if one["name"] == "secrets")
        own, shared = (source["secret"] for source in volume["sources"])
        assert {item["path"] for item in own["items"]} == {"secret", "ray_token", "tenant_keys.json"}
        assert (shared["name"], shared["items"]) == (
            name or "team-peers",
            [{"key": "peers_secret", "path": "peers_secret"}],
        )
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **template}, "1.32", strict=True)
        assert rendered_chart(yaml.safe_load(rendered(spec)[VALUES]), "raylane") == objects_of(spec)


def test_serves_configuration_is_whole() -> None:
    spec = spec_of(KUBERNETES, **PUBLIC)
    assert yaml.safe_load(service_of(spec)["serveConfigV2"]) == serve_config(spec, spec.regions[0])


def test_what_a_pod_keeps_can_be_written_and_is_one_volume() -> None:
    """A folder that the kubelet makes on a node belongs to root."""
    for cache, source in (({"size_gib": 9}, "ephemeral"), ({"host_path": "/data"}, "hostPath")):
        pod = templates_of(spec_of(changed(KUBERNETES, model_cache=cache), **PUBLIC))[1]["spec"]
        (volume,) = (one for one in pod["volumes"] if one["name"] == "models")
        assert source in volume
        assert volume.get("hostPath", {}).get("type", "Directory") == "Directory"
        (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "models")
        assert mount == {"name": "models", "mountPath": "/home/raylane/.cache/raylane"}
        assert pod["securityContext"]["fsGroup"] == 1000
    assert KubernetesDeploy.model_fields["model_cache"].default.host_path is None
    pod = templates_of(spec_of(changed(KUBERNETES, compile_cache_claim="compiled"), **PUBLIC))[1]["spec"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "compiled")
    assert volume["persistentVolumeClaim"] == {"claimName": "compiled"}
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounts["compiled"] == "/home/raylane/.cache/raylane/compiled"


def test_the_two_caches_need_a_folder_in_common() -> None:
    for cache, compiled in (("~/models", "~/compiled"), ("/a/models", "/b/compiled"), ("~", "~/compiled")):
        spec = spec_of(KUBERNETES, artifacts={"cache": cache}, starts={"compile_cache": compiled}, **PUBLIC)
        (problem,) = deploy_problems(spec, spec.regions[0])
        assert problem.startswith(f"artifacts.cache, starts.compile_cache = {cache}, {compiled}: allowed on Kubernetes")


def test_a_pod_that_is_asked_to_end_has_the_time_that_its_requests_have() -> None:
    gateway = {**PUBLIC["gateway"], "timeouts": {"total_s": 900}, "drain_s": 20}
    spec = spec_of(KUBERNETES, **{**PUBLIC, "gateway": gateway})
    head, worker = (one["spec"] for one in templates_of(spec))
    (container,) = worker["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    drain_s = int(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    engine = next(one for one in serve_config(spec, spec.regions[0])["applications"] if one["name"] != "gateway")
    assert drain_s > engine["deployments"][0]["graceful_shutdown_timeout_s"] > 900
    waits = container["lifecycle"]["preStop"]["exec"]["command"]
    assert worker["terminationGracePeriodSeconds"] > drain_s + int(waits[1])
    variables = {one["name"]: one.get("value") for one in head["containers"][0]["env"]}
    assert variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "0"


def test_one_pod_is_evicted_at_a_time_and_gateways_are_spread() -> None:
    spec = spec_of(ZONED_KUBERNETES, **PUBLIC)
    budget = object_of(spec, "PodDisruptionBudget")["spec"]
    head, *workers = templates_of(spec)
    (labels,) = {tuple(one["metadata"]["labels"].items())[:1] for one in (head, *workers)}
    assert budget["selector"]["matchLabels"] == dict(labels) == {"raylane.io/cell": "team-eu"}
    assert budget["minAvailable"] == 3, "the head and three workers, less one"
    assert "raylane.io/gateway" not in head["metadata"]["labels"]
    for worker in workers:
        (spread,) = worker["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()


def test_only_clients_at_the_gateway_and_kuberay_at_the_head_reach_a_cells_pods() -> None:
    policy = object_of(spec_of(KUBERNETES, **PUBLIC), "NetworkPolicy")["spec"]
    among, clients, operator = policy["ingress"]
    assert among == {"from": [{"podSelector": policy["podSelector"]}]}
    assert clients == {"ports": [{"port": 8000}]}
    assert operator["ports"] == [{"port": 8265}]


def test_what_the_spec_overrides_survives() -> None:
    spec = spec_of(REGIONS["own fields"], **PUBLIC)
    for template in templates_of(spec):
        assert template["spec"]["priorityClassName"] == "serving"
        assert template["metadata"]["annotations"] == {"a/b": "c"}
        assert template["metadata"]["labels"]["raylane.io/cell"] == "team-eu"
    (group,) = service_of(spec)["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["groupName"], group["idleTimeoutSeconds"], group["maxReplicas"]) == ("gpu", 9, 1)
    assert object_of(spec, "RayService")["metadata"]["labels"]["team"] == "a"
    assert [one["kind"] for one in objects_of(spec)] == ["PodDisruptionBudget", "RayService"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"Ingress": {"spec": {}}}, "Ingress: allowed: Pod, NetworkPolicy,"),
        ({"RayService": {"metadata": None}}, "RayService.metadata: allowed: neither null nor another kind of value"),
        ({"RayService": {"metadata": {"name": None}}}, "RayService.metadata.name: allowed: neither null"),
        (
            {"RayService": {"spec": {"rayClusterConfig": None}}},
            "RayService.spec.rayClusterConfig: allowed: neither null",
        ),
        ({"NetworkPolicy": {"spec": None}}, "NetworkPolicy.spec: allowed: neither null"),
        ({"NetworkPolicy": {"apiVersion": 1}}, "NetworkPolicy.apiVersion: allowed: neither null"),
        ({"Pod": {"spec": []}}, "Pod.spec: allowed: neither null"),
    ],
)
def test_an_override_without_what_its_object_must_have_is_refused(overrides: dict[str, Any], words: str) -> None:
    wrong = spec_of(changed(KUBERNETES, overrides=overrides), **PUBLIC)
    (problem,) = deploy_problems(wrong, wrong.regions[0])
    assert problem.startswith(f"regions.eu.deploy.overrides.{words}")


@pytest.mark.parametrize("name", ["ray-head", "ray-worker"])
def test_an_override_of_one_kind_of_container_is_of_the_pods_that_have_it(name: str) -> None:
    containers = [{"name": name, "workingDir": "/a"}, {"name": "beside", "image": "registry/beside:1"}]
    spec = spec_of(changed(KUBERNETES, overrides={"Pod": {"spec": {"containers": containers}}}), **PUBLIC)
    found = [{one["name"]: one for one in template["spec"]["containers"]} for template in templates_of(spec)]
    assert [set(one) for one in found] == [{"ray-head", "beside"}, {"ray-worker", "beside"}]
    assert [name for one in found for name in one if "workingDir" in one[name]] == [name]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"gateway_service": "LoadBalancer"}, "clients' keys would travel in clear; allowed: with tls_secret"),
        ({"ingress": {"host": "llm.example.org"}}, "ingress.tls_secret|tls_secret: missing; needed"),
        ({"upgrade": "beside", "head_store": {"kind": "redis", "address": "a:1"}}, "upgrade = 'beside': allowed"),
    ],
)
def test_what_no_cell_could_run_with_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec_of(changed(KUBERNETES, **keys), **PUBLIC)


def test_tls_ends_in_the_gateway_with_a_certificate_from_a_secret() -> None:
    tls = {"cert": "/etc/raylane/tls/chain.pem", "key": "/etc/raylane/tls/key.pem"}
    public = {**PUBLIC, "gateway": {**PUBLIC["gateway"], "tls": tls}}
    region = changed(KUBERNETES, gateway_service="LoadBalancer", tls_secret="certificate")
    spec = spec_of(region, **public)
    assert deploy_problems(spec, spec.regions[0]) == []
    head, worker = (one["spec"] for one in templates_of(spec))
    (volume,) = (one["secret"] for one in worker["volumes"] if one["name"] == "tls")
    assert {one["key"]: one["path"] for one in volume["items"]} == {"tls.crt": "chain.pem", "tls.key": "key.pem"}
    (mount,) = (one for one in worker["containers"][0]["volumeMounts"] if one["name"] == "tls")
    assert mount == {"name": "tls", "mountPath": "/etc/raylane/tls", "readOnly": True}
    assert worker["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert "tls" not in {one["name"] for one in head["volumes"]}
    for one, sections in ((region, PUBLIC), (KUBERNETES, public)):
        spec = spec_of(one, **sections)
        assert "gateway.tls: allowed on Kubernetes: together with" in " ".join(deploy_problems(spec, spec.regions[0]))


def test_the_token_of_a_hub_is_a_file() -> None:
    for template in templates_of(spec_of(changed(KUBERNETES, hub_secret="hub"), **PUBLIC)):
        (container,) = template["spec"]["containers"]
        (path,) = (one["value"] for one in container["env"] if one["name"] == "HF_TOKEN_PATH")
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "hub-token")
        assert path == f"{mount['mountPath']}/token"


def rollout_of(region: dict[str, Any], **sections: Any) -> str:
    annotations = object_of(spec_of(region, **(sections or PUBLIC)), "RayService")["metadata"]["annotations"]
    return str(annotations["raylane.io/rollout"])


@pytest.mark.whole
def test_what_needs_other_pods_is_a_rollout() -> None:
    first = rollout_of(KUBERNETES)
    pods = KUBERNETES["deploy"]["pools"][0]
    assert rollout_of(changed(KUBERNETES, image="registry/raylane:2")) != first
    assert rollout_of(changed(KUBERNETES, environment={"A": "b"})) != first
    assert rollout_of(changed(KUBERNETES, pools=[{**pods, "min": 0}])) != first, "the autoscaler starts beside the head"
    elastic = rollout_of(changed(KUBERNETES, pools=[{**pods, "min": 0, "max": 4}]))
    assert rollout_of(changed(KUBERNETES, pools=[{**pods, "min": 1, "max": 9}])) == elastic
    assert rollout_of(KUBERNETES, **PUBLIC, models=[{**MODEL, "replicas": {"count": 3}}]) == first
