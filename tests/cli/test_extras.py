"""What serves needs no package of the extra `planning`, and a command that does says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli import extras
from cli.main import NEED_PLANNING
from tests.commands import ran

SERVING = (
    "deployments.app",
    "deployments.engine.deployment",
    "deployments.gateway.deployment",
    "deployments.cell.directory",
    "autoscaling.serve.policy",
    "autoscaling.serve.scaling",
    "cli.up",
)


@pytest.mark.whole
def test_what_serves_imports_no_package_of_an_extra() -> None:
    code = f"""
import importlib, sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("plotly", "optuna", "pandas", "statsmodels", "scipy", "jinja2"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Forbidden())
for name in {SERVING}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", NEED_PLANNING)
def test_a_command_names_the_extra_that_it_lacks(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(extras, "_PLANNING", ("no_such_package",))
    result = ran(command, "--whatever", "x", code=1)
    assert f"raylane {command} needs the extra 'planning': pip install 'raylane[planning]'" in result.stderr


def test_a_report_that_could_not_be_made_ends_the_simulation_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "_PLANNING", ("no_such_package",))
    report = tmp_path / "report.html"
    result = ran("simulate", "no-such.yaml", "--trace", "no-such.csv", "--report", report, code=1)
    assert "raylane simulate --report needs the extra 'planning'" in result.stderr
