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
from cluster.spec import ClusterSpec, KubernetesDeploy
from deployments.serve_config import serve_config
from tests.cluster.launch.chart import CHART, rendered_chart
from tests.cluster.launch.specs import KUBERNETES, PUBLIC, ZONED_KUBERNETES, changed, spec_of

CRD_CHECK = CHART.parents[2].parent / "shared" / "tools" / "crd_check.py"


def rendered(spec: ClusterSpec) -> dict[str, str]:
    region = spec.regions[0]
    assert isinstance(region.deploy, KubernetesDeploy)
    return kubernetes_files(spec, region, region.deploy, serve_config(spec, region))


def objects_of(spec: ClusterSpec) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(rendered(spec)[MANIFESTS]))


def service_of(spec: ClusterSpec) -> dict[str, Any]:
    return dict(objects_of(spec)[1]["spec"])


REGIONS = {
    "plain": KUBERNETES,
    "zoned": ZONED_KUBERNETES,
    "elastic": changed(
        KUBERNETES,
        pools=[{"pool": "gpu", "memory_gib": 64, "min": 1, "max": 3, "runtime_class": "nvidia"}],
        model_cache={"size_gib": 200, "storage_class": "fast"},
        head_store={"kind": "redis", "address": "redis:6379"},
        service_account="raylane",
        image_pull_secret="registry",
        gateway_annotations={"example.org/internal": "true"},
        head_tolerations=[{"key": "cpu", "operator": "Equal", "value": "only", "effect": "NoSchedule"}],
    ),
}


@pytest.mark.skipif(not CRD_CHECK.is_file(), reason="KubeRay's schemas (../shared) are not on this machine")
@pytest.mark.whole
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_kuberays_schema_accepts_it(region: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of(region, **PUBLIC)
    service, cluster = tmp_path / "service.yaml", tmp_path / "cluster.yaml"
    service.write_text(rendered(spec)[MANIFESTS])
    values = yaml.safe_load(rendered(spec)[VALUES])
    cluster.write_text(yaml.safe_dump_all(rendered_chart({**values, "rayService": False}, "raylane")))
    assert "kind: RayCluster" in cluster.read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(service.read_text().replace("rayClusterConfig:", "rayClusterConfiguration:"))
    results = [
        subprocess.run([sys.executable, str(CRD_CHECK), str(file)], capture_output=True, text=True, check=False)
        for file in (service, cluster, wrong)
    ]
    assert [one.returncode for one in results] == [0, 0, 1], [one.stdout + one.stderr for one in results]


@pytest.mark.whole
@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_kubernetes_own_schema_accepts_it(region: dict[str, Any]) -> None:
    """Strictly: the claim, the Service, and each pod in KubeRay's objects, which KubeRay's schema checks less."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    spec = spec_of(region, **PUBLIC)
    claim, service = objects_of(spec)
    cluster = service["spec"]["rayClusterConfig"]
    pods = [one["template"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    found = [claim, {"apiVersion": "v1", "kind": "Service", **service["spec"]["serveService"]}]
    found += [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **one} for one in pods]
    for one in found:
        validate(one, "1.32", strict=True)
    errors = import_module("kubernetes_validate.utils")
    with pytest.raises(errors.ValidationError):
        validate({**found[-1], "spec": {**found[-1]["spec"], "toleration": []}}, "1.32", strict=True)


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_the_chart_makes_the_same_objects(region: dict[str, Any]) -> None:
    spec = spec_of(region, **PUBLIC)
    assert rendered_chart(yaml.safe_load(rendered(spec)[VALUES]), "raylane") == objects_of(spec)


def test_a_chart_without_values_says_what_is_missing() -> None:
    with pytest.raises(AssertionError, match="render the values from a spec"):
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
