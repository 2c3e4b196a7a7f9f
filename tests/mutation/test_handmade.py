"""The tests kill every mutant that was made by hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.handmade import PATCHES
from tests.mutation.patch import Patch
from tests.mutation.tree import TESTS, copy_tree

PLUGINS = (
    "-p",
    "no:cacheprovider",
    "-p",
    "tests.mutation.order",
    "--hypothesis-profile=mutants",
    "--timeout=30",
    "--timeout-method=thread",
)
CHOICE = ("-x", "-q", "-m", "not live and not long", "--tb=line")


def run_tests(tree: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    """Runs tests in a copy of the tree, with the code that lies there."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGINS, *CHOICE, *paths],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.fault)
def test_its_code_is_where_it_was(patch: Patch) -> None:
    patch.applied()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    ran = run_tests(copy_tree(tmp_path), *TESTS)
    assert ran.returncode == 0, ran.stdout[-4_000:]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.fault)
def test_the_tests_kill_it(patch: Patch, tmp_path: Path) -> None:
    patch.apply(copy_tree(tmp_path))
    ran = run_tests(tmp_path, patch.tests)
    assert ran.returncode == 1, (
        f"{patch.fault}: survived, or no test ran (exit status {ran.returncode})\n{ran.stdout[-2_000:]}"
    )
