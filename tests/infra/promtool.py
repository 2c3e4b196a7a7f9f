"""Prometheus' own tool for rules of alerts, and the rules that are shipped."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.source import ROOT

PROMTOOL = shutil.which("promtool")
RULES = sorted((ROOT / "infra" / "alerts").glob("*.yaml"))

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")


def promtool(*arguments: str | Path) -> str:
    """What it prints; an AssertionError with that where it fails."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def fires(
    folder: Path,
    series: Mapping[str, str],
    expected: Mapping[int, Sequence[Mapping[str, str]]],
    *by: str,
    interval: str = "1m",
) -> None:
    """Holds the shipped rules against series: at each minute exactly the alerts fire that are `expected` of it, each
    given by its labels `by` (by default `alertname`)."""
    check(folder, case_of(series, firing(expected, *by), interval))


def firing(
    expected: Mapping[int, Sequence[Mapping[str, str]]], *by: str, cell: str | None = None
) -> list[dict[str, Any]]:
    """Promtool's form of what is `expected` at each minute; `cell`: of the alerts with this label alone."""
    only = "" if cell is None else f', cell="{cell}"'
    alerts = f'group by ({", ".join(by or ("alertname",))}) (ALERTS{{alertstate="firing"{only}}})'
    return [
        {
            "expr": alerts,
            "eval_time": f"{minute}m",
            "exp_samples": [
                {"labels": "{" + ", ".join(f'{key}="{value}"' for key, value in one.items()) + "}", "value": 1}
                for one in found
            ],
        }
        for minute, found in expected.items()
    ]


def case_of(series: Mapping[str, str], checks: list[dict[str, Any]], interval: str = "1m") -> dict[str, Any]:
    """A test case in promtool's form."""
    shown = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": interval, "input_series": shown, "promql_expr_test": checks}


def check(folder: Path, *cases: dict[str, Any]) -> None:
    """Holds the shipped rules against test cases in promtool's form."""
    file = folder / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(one) for one in RULES], "evaluation_interval": "1m", "tests": list(cases)})
    )
    promtool("test", "rules", file)
