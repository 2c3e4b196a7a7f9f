"""vLLM's own tests, from its source distribution, as the package index has it. Nothing of them is kept in this repository."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "0.32.0"
"""The version of vLLM whose tests are run: that of the engine (`pyproject.toml`)."""

_BUILD = ("setuptools-rust", "setuptools-scm")
"""What vLLM's `setup.py` imports when pip asks it for its metadata, beside what is installed here. Nothing is built."""
_TESTS = ("tblib==3.2.2",)
"""What vLLM's tests import and no other package here needs."""


class SourceError(RuntimeError):
    """The source distribution, or a package that the tests need, could not be had."""


def fetch(folder: Path) -> Path:
    """Has pip download the source distribution into `folder` and unpacks its tests. Returns the folder that holds `tests`. Raises SourceError."""
    root = folder / f"vllm-{VERSION}"
    if not (root / "tests").exists():
        _install(folder / "build", _BUILD)
        # vLLM's metadata names the device in its version, and pip takes a version that is not the one it asked for as another distribution.
        environment = {"PYTHONPATH": str(folder / "build"), "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION}
        options = ["--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--dest", str(folder)]
        _pip(["download", *options, f"vllm=={VERSION}"], environment)
        with tarfile.open(folder / f"vllm-{VERSION}.tar.gz") as archive:
            wanted = [member for member in archive.getmembers() if member.name.startswith(f"vllm-{VERSION}/tests/")]
            archive.extractall(folder, wanted, filter="data")
    return root


def install_what_tests_need(folder: Path) -> Path:
    """Installs what only the tests import. Returns the folder for PYTHONPATH. Raises SourceError."""
    target = folder / "packages"
    if not target.exists():
        _install(target, _TESTS, "--no-deps")
    return target


def _install(target: Path, packages: tuple[str, ...], *options: str) -> None:
    _pip(["install", "--target", str(target), *options, *packages], {})


def _pip(arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SourceError(f"`pip {' '.join(arguments)}` failed:\n{done.stderr[-2_000:]}")
