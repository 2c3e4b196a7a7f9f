"""Terraform on a copy of the tree, with a provider that knows the schema of AWS's and creates nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT.parent / "shared" / "data" / "schemas" / "terraform_aws_6.25.0_schema.json.gz"


class Terraform:
    """The command, in a copy of `terraform/`."""

    def __init__(self, tree: Path, environment: dict[str, str]) -> None:
        self.tree = tree
        self._environment = environment

    def run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs it in a folder of the copy, with its modules installed."""
        if not (folder / ".terraform").is_dir():
            done = self._run(folder, "init", "-backend=false", "-no-color")
            assert done.returncode == 0, done.stdout + done.stderr
        return self._run(folder, *arguments)

    def _run(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["terraform", *arguments]
        return subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True, timeout=300)

    def problems(self, folder: Path) -> list[str]:
        """What `terraform validate` says against the schema."""
        found = json.loads(self.run(folder, "validate", "-json").stdout)
        return [f"{one['summary']}: {one['detail']}" for one in found["diagnostics"]]

    def tested(self, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs the folder's tests, with its example values where it has some."""
        values = ("-var-file=terraform.tfvars.example",) if (folder / "terraform.tfvars.example").is_file() else ()
        return self.run(folder, "test", *values, *options)

    def state(self, folder: Path) -> dict[str, Any]:
        """The state after the first run of the folder's tests: `root_module` and `outputs`."""
        done = self.tested(folder, "-verbose", "-json")
        messages = [json.loads(line) for line in done.stdout.splitlines()]
        states = [one["test_state"] for one in messages if one["type"] == "test_state"]
        assert states, done.stdout + done.stderr
        found: dict[str, Any] = states[0]
        return found


@pytest.fixture(scope="session")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terraform]:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not on this machine")
    if not SCHEMA.is_file():
        pytest.skip("the schema of AWS's provider (../shared/data/schemas) is not on this machine")
    folder = tmp_path_factory.mktemp("terraform")
    tree = shutil.copytree(
        ROOT / "terraform", folder / "tree", ignore=shutil.ignore_patterns(".terraform", "*.tfstate*", "*.tfvars")
    )
    types = set(re.findall(r'^(?:resource|data) "(aws_\w+)"', _text(tree), re.MULTILINE))
    command = [sys.executable, "-m", "tests.infra.schema_provider", str(SCHEMA), str(folder / "socket"), *sorted(types)]
    provider = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert provider.stdout is not None
        reattach = provider.stdout.readline()
        assert reattach, "the provider ended"
        (folder / "rc").touch()
        facts = {
            "TF_REATTACH_PROVIDERS": reattach.strip(),
            "TF_CLI_CONFIG_FILE": str(folder / "rc"),
            "CHECKPOINT_DISABLE": "1",
        }
        yield Terraform(tree, {**os.environ, **facts})
    finally:
        provider.send_signal(signal.SIGTERM)
        provider.communicate(timeout=30)


def _text(tree: Path) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(tree.rglob("*.tf")))


def tools_of(kind: str) -> Path:
    """The folder of the commands of a kind (`infra/tools.sh`)."""
    done = subprocess.run([ROOT / "infra" / "tools.sh", kind], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
