"""The shipped Grafana dashboards are what their builder writes, Prometheus can read each expression, and all that
dashboards and rules name is in the table of metrics. That a cell fills them: `tests/live/test_live_watching.py`."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from deployments.telemetry.table import METRICS, Exporter, MetricKind
from tests.infra.promtool import case_of, check, needs_promtool, promtool, rules
from tests.source import ROOT

FOLDER = ROOT / "infra" / "grafana"


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboards", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shipped() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FOLDER.glob("*.json")}


def expressions(window: str) -> dict[str, str]:
    """Every query of every panel for all cells and models, by its panel's title and place."""
    chosen = {"$__rate_interval": window, "$cell": ".*", "$model": ".*", "[1h]": f"[{window}]"}
    found = {}
    for board in shipped().values():
        for panel in board["panels"]:
            for target in panel["targets"]:
                expr = target["expr"]
                for name, value in chosen.items():
                    expr = expr.replace(name, value)
                found[f"{panel['title']} {target['refId']}"] = expr
    return found


@pytest.mark.parametrize("name", builder().DASHBOARDS)
def test_the_shipped_file_is_what_the_builder_writes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == builder().text(name)


def test_no_two_dashboards_and_no_two_panels_are_taken_for_one() -> None:
    boards = shipped()
    assert boards.keys() == builder().DASHBOARDS.keys()
    assert len({board["uid"] for board in boards.values()}) == len(boards)
    assert len(expressions("1m")) == sum(
        len(panel["targets"]) for board in boards.values() for panel in board["panels"]
    )


@needs_promtool
def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    rules = [{"record": "x", "expr": expr, "labels": {"at": at}} for at, expr in expressions("1m").items()]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


GATEWAY, OTHER = (f'cell="c", model="m", gateway="{one}"' for one in "ab")
REJECTED, FAILED = "raylane_rejections_total{cause='lane_full', %s}", "raylane_failed_starts_total{phase='load', %s}"
REJECTED_A, FAILED_A = "Rejections, last hour A", "Failed starts and losses, last hour A"
TOKENS = "raylane_tenant_tokens_total{tenant='t', kind='%s', %s}"


@needs_promtool
@pytest.mark.parametrize(
    ("panel", "series", "value"),
    [
        (REJECTED_A, {REJECTED % GATEWAY: "_x100 2x50", REJECTED % OTHER: "7x150"}, 2),
        (REJECTED_A, {REJECTED % GATEWAY: "0x100 2x50"}, 2),
        (REJECTED_A, {REJECTED % GATEWAY: "5x100 2x50"}, 2),
        (FAILED_A, {FAILED % GATEWAY: "_x100 2x50"}, 2),
        (FAILED_A, {FAILED % GATEWAY: "2x100 stale", FAILED % OTHER: "_x99 2x50"}, 0),
        (FAILED_A, {FAILED % GATEWAY: "5x100 stale", FAILED % OTHER: "_x105 2x50"}, 2),
        (FAILED_A, {FAILED % f'cell="{cell}", model="m"': "0x100 2x50" for cell in "cd"}, 4),
        ("Tenants' tokens/s A", {TOKENS % (kind, GATEWAY): "0+60x150" for kind in ("in", "out", "cached")}, 2),
    ],
)
def test_a_panel_counts_each_once(tmp_path: Path, panel: str, series: dict[str, str], value: float) -> None:
    """After two hours; the first event, and the same count at another gateway."""
    sample = {"expr": f"round(max({expressions('1h')[panel]}), 0.1)", "eval_time": "2h"}
    check(tmp_path, case_of(series, [{**sample, "exp_samples": [{"labels": "{}", "value": value}]}]))


ADDED = {"cell", "instance", "job"}, {"gateway", "raylane_role"}, {"model", "replica", "raylane_role"}
"""The labels that the list of targets adds: to all, to a gateway's metrics, to an engine's."""


def test_what_rules_and_panels_name_is_in_the_table_of_metrics() -> None:
    """Each metric, and the labels by which it is chosen or summed up right there."""
    known: dict[str, set[str]] = {}
    for metric in METRICS:
        of_engine = metric.exporter is Exporter.ENGINE
        labels = {*metric.labels, *ADDED[0], *ADDED[2 if of_engine else 1]}
        histogram = metric.kind is MetricKind.HISTOGRAM
        for suffix in ("_bucket", "_sum", "_count") if histogram else ("",):
            known[metric.shown + suffix] = labels | ({"le"} if histogram else set())
    texts = [rule["expr"] for rule in rules()] + list(expressions("1m").values())
    by_and_chosen = r"(?:by \(([^)]*)\) \([a-z_]*\(?)?(?<![:\w])(raylane_(?!role)\w+)(?:{([^}]*)})?"
    for text in texts:
        for by, name, chosen in re.findall(by_and_chosen, text):
            assert name in known, (name, text)
            labels = {one.strip() for one in by.split(",") if one.strip()} | set(re.findall(r"(\w+)=", chosen))
            assert labels <= known[name], (name, labels - known[name])
