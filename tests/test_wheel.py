"""A built wheel installs the four packages and nothing else at the top level, and carries what a running raylane needs
(decision 1)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.whole
def test_the_wheel_holds_the_packages_and_the_shipped_files(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "cluster",
        "deployments",
        "autoscaling",
        "planning",
        "cli",
    }
    for shipped in (
        "specs/local.yaml",
        "plans/three-regions.yaml",
        "plans/llama-3.1-8b/config.json",
        "traffic/day.yaml",
        "demo/target/config.json",
        "demo/target/tokenizer.json",
        "demo/draft/config.json",
    ):
        assert f"cluster/_infra/{shipped}" in names
    assert "deployments/gateway/operators/page/uplot/uPlot.iife.min.js" in names
    assert any(name.endswith(".safetensors") and "/demo/target/" in name for name in names)
