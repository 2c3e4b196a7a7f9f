"""checkov's rules for Terraform and Dockerfiles, and `tf_check.py`: nothing fails, each skip of checkov's stands beside
what it concerns, with its reason, and none is left over."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.conftest import ROOT, tools_of

TF_CHECK = ROOT.parent / "shared" / "tools" / "tf_check.py"
SKIP = re.compile(r"#checkov:skip=(CKV\w+):(.*)")


@pytest.fixture(scope="module")
def tools() -> Path:
    return tools_of("checkov")


def checked(tools: Path, framework: str, *where: str) -> dict[str, Any]:
    command = [tools / "checkov", *where, "--framework", framework, "-o", "json", "--skip-download"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["results"]["parsing_errors"] == []
    return found


@pytest.mark.long
def test_terraform_passes_and_every_skip_is_used(tools: Path) -> None:
    found = checked(tools, "terraform", "-d", "terraform", "--download-external-modules", "false")
    assert found["summary"]["passed"] > 200
    assert [(one["check_id"], one["resource"]) for one in found["results"]["failed_checks"]] == []
    used = {(one["file_path"].lstrip("/"), one["check_id"]) for one in found["results"]["skipped_checks"]}
    written = {}
    for file in (ROOT / "terraform").rglob("*.tf"):
        for check, reason in SKIP.findall(file.read_text(encoding="utf-8")):
            written[str(file.relative_to(ROOT / "terraform")), check] = reason
    assert used == set(written)
    assert [place for place, reason in written.items() if len(reason.strip()) < 20] == []


ON_PODS = {
    "CKV_K8S_8": "KubeRay adds the probe of liveness, of Ray's own health",
    "CKV_K8S_9": "KubeRay adds the probe of readiness where no gateway has one",
    "CKV_K8S_15": "nodes need not ask the registry for each pod; `overrides` can say so",
    "CKV_K8S_22": "Ray, vLLM and the compilers write below /tmp; nobody has tried which other folders they write to",
    "CKV_K8S_40": "the user of the image (infra/docker), and of the files on volumes, is 1000",
    "CKV_K8S_43": "the image of an example has no digest; `image` takes one",
}
"""What checkov says of the rendered pods, and why it stays so."""


@pytest.mark.long
def test_what_runs_on_kubernetes_passes_but_for_written_reasons(tools: Path, tmp_path: Path) -> None:
    objects = list(yaml.safe_load_all((ROOT / "infra/rendered/eu-central/manifests.yaml").read_text(encoding="utf-8")))
    (service,) = (one["spec"] for one in objects if one["kind"] == "RayService")
    cluster = service["rayClusterConfig"]
    for number, group in enumerate((cluster["headGroupSpec"], *cluster["workerGroupSpecs"])):
        pod = group["template"]
        named = {"metadata": {"name": f"pod-{number}", "namespace": "raylane", **pod["metadata"]}}
        objects.append({"apiVersion": "v1", "kind": "Pod", **pod, **named})
    front = service["serveService"]
    front["metadata"]["namespace"] = "raylane"
    objects.append({"apiVersion": "v1", "kind": "Service", **front})
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(objects))
    found = checked(tools, "kubernetes", "-d", str(tmp_path))
    assert found["summary"]["passed"] > 100
    assert {one["check_id"] for one in found["results"]["failed_checks"]} == ON_PODS.keys()
    assert {one["resource"].split(".")[0] for one in found["results"]["failed_checks"]} == {"Pod"}


@pytest.mark.long
def test_the_dockerfiles_pass_without_a_skip(tools: Path) -> None:
    found = checked(tools, "dockerfile", "-d", "infra/docker")
    assert found["summary"]["passed"] > 100
    assert (found["summary"]["failed"], found["summary"]["skipped"]) == (0, 0)


@pytest.mark.long
@pytest.mark.skipif(not TF_CHECK.is_file(), reason="../shared/tools/tf_check.py is not on this machine")
def test_every_argument_is_known_to_the_provider(tools: Path) -> None:
    done = subprocess.run([tools / "python", TF_CHECK, "terraform"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"[1-9]\d+ aws_\* blocks, 0 problems", done.stdout)
