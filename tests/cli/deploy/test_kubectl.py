"""A cell on Kubernetes: `deploy` waits for what it applied, not for what was there before, and has other pods made
where the change needs them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.deploy import kubectl
from cli.deploy.changes import plan_of
from cli.deploy.rendering import rendering_of
from cli.deploy.serve_api import DeployError
from cli.deploy.state import DeployState
from cluster.spec import ClusterSpec, KubernetesDeploy
from tests.cli.deploy.test_outlook import running_cell
from tests.cluster.launch.specs import KUBERNETES, MODEL, PUBLIC, changed, spec_of

pytestmark = pytest.mark.whole


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "kubectl.py"} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CLUSTER", str(tmp_path))
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kubectl, "_POLL_S", 0.0)
    return tmp_path


def target_of(spec: ClusterSpec) -> kubectl.Kubernetes:
    region = spec.regions[0]
    assert isinstance(region.deploy, KubernetesDeploy)
    return kubectl.Kubernetes(spec, region, region.deploy, DeployState("team-eu"))


def deploy(spec: ClusterSpec) -> list[str]:
    """Returns what was said of the change."""
    target = target_of(spec)
    with DeployState("team-eu").lock():
        plan = plan_of(rendering_of(spec, spec, spec.regions[0]), "keys", target.record.read())
        with target.record.lock():
            target.apply(plan)
        assert target.is_up()
    return list(plan.touched)


def now(cluster: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cluster / "state.json").read_text())
    return found


def test_an_application_alone_changes_in_the_cluster_that_runs(cluster: Path) -> None:
    deploy(spec_of(KUBERNETES, **PUBLIC))
    first = now(cluster)
    assert list(first["clusters"]) == ["team-eu-1"]
    touched = deploy(spec_of(KUBERNETES, **PUBLIC, models=[{**MODEL, "settings": {"max_model_len": 512}}]))
    after = now(cluster)
    assert after["clusters"] == first["clusters"]
    assert after["log"] == []
    assert after["service"]["status"]["observedGeneration"] == 2
    assert not any("Ray cluster" in line for line in touched)


@pytest.mark.parametrize(
    ("upgrade", "deleted", "words"),
    [("replace", ["raycluster/team-eu-1"], "running requests break"), ("beside", [], "starts beside it")],
)
def test_another_image_reaches_the_pods(cluster: Path, upgrade: str, deleted: list[str], words: str) -> None:
    deploy(spec_of(changed(KUBERNETES, upgrade=upgrade), **PUBLIC))
    touched = deploy(spec_of(changed(KUBERNETES, upgrade=upgrade, image="registry/raylane:2"), **PUBLIC))
    after = now(cluster)
    assert list(after["clusters"]) == ["team-eu-2"]
    assert after["log"] == deleted
    assert any(line.startswith("region eu: the pods of the Ray cluster change") and words in line for line in touched)


INGRESS = {"host": "llm.example.org", "tls_secret": "a"}
WITHOUT_POLICY = {"overrides": {"NetworkPolicy": None}}


def test_what_leaves_the_spec_leaves_the_cluster(cluster: Path) -> None:
    kept = ["persistentvolumeclaim/team-eu-head", "poddisruptionbudget/team-eu"]
    removed = ["ingress/team-eu", "networkpolicy/team-eu"]
    deploy(spec_of(changed(KUBERNETES, ingress=INGRESS), **PUBLIC))
    assert sorted(now(cluster)["others"]) == sorted([*kept, *removed])
    touched = deploy(spec_of(changed(KUBERNETES, **WITHOUT_POLICY), **PUBLIC))
    assert sorted(now(cluster)["others"]) == kept
    assert {f"region eu: {one} is removed" for one in removed} <= set(touched)


def test_a_cell_that_ends_leaves_its_secret_and_its_volume_claims_alone(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_of(changed(KUBERNETES, ingress=INGRESS), **PUBLIC)
    deploy(spec)
    target = target_of(spec)
    target.down(target.record.read())
    assert now(cluster)["others"] == ["persistentvolumeclaim/team-eu-head"]
    assert "left: the Secret 'team-eu' and the volume claims of namespace 'raylane'" in capsys.readouterr().out


def test_an_application_that_cannot_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STATUS", "DEPLOY_FAILED")
    with pytest.raises(DeployError, match="application 'gateway' cannot run: no such model"):
        deploy(spec_of(KUBERNETES, **PUBLIC))


def test_what_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STATUS", "DEPLOYING")
    monkeypatch.setattr(kubectl, "_PODS_S", -3_600.0)
    with pytest.raises(DeployError, match="not ready in time: "):
        deploy(spec_of(KUBERNETES, **PUBLIC))


def test_what_was_deployed_is_known_elsewhere_and_one_deployment_runs(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(KUBERNETES, **PUBLIC)
    deploy(spec)
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "other"))
    record = target_of(spec).record
    assert plan_of(rendering_of(spec, spec, spec.regions[0]), "keys", record.read()).is_nothing
    with record.lock(), pytest.raises(DeployError, match="another deployment of the cell runs, by process"):
        record.lock().__enter__()
    assert list(now(cluster)["maps"]) == ["team-eu-deployed"]


def test_a_cell_that_nobody_recorded_is_left_as_it_is(cluster: Path) -> None:
    deploy(spec_of(KUBERNETES, **PUBLIC))
    before = now(cluster)
    (cluster / "state.json").write_text(json.dumps(before | {"maps": {}}))
    with pytest.raises(DeployError, match="rayservice/team-eu exists, and nothing says what was deployed"):
        deploy(spec_of(KUBERNETES, **PUBLIC))
    assert now(cluster)["service"] == before["service"]


def test_what_becomes_of_the_replicas_is_asked_of_the_head(cluster: Path) -> None:
    old = spec_of(KUBERNETES, **PUBLIC)
    deploy(old)
    new = spec_of(KUBERNETES, **PUBLIC, models=[{**MODEL, "settings": {"max_model_len": 512}}])
    target = target_of(new)
    plan = plan_of(rendering_of(new, new, new.regions[0]), "keys", target.record.read())
    (line,) = target.outlook(plan)
    assert "is not known: kubectl port-forward: Error from server (NotFound)" in line
    (cluster / "applications.json").write_text(json.dumps({"applications": running_cell(old)}))
    found = {"data": {"result": {"result": []}}}
    (cluster / "nodes.json").write_text(json.dumps(found))
    (line,) = target.outlook(plan)
    assert "The 2 old ones keep serving until there is room" in line
