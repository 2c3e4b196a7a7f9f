"""The shipped alert rules on drift, by Prometheus' own tool: they are valid, fire when they should and not otherwise,
and use metrics that gateways have."""

import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest

from deployments.gateway.operators.published_metrics import DriftMetrics
from deployments.traffic.published_drift import OffFigure, PublishedDrift, write_drift
from tests.infra.promtool import needs_promtool, promtool

RULES = Path(__file__).resolve().parents[2] / "infra" / "alerts" / "drift.yaml"


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
    return found


@needs_promtool
def test_the_rules_are_valid() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", RULES)


def test_the_rules_use_metrics_and_labels_of_a_gateway(tmp_path: Path) -> None:
    alarm = OffFigure(
        model="m",
        traffic_class="c",
        region="r",
        quantity="requests/s",
        expected=1,
        observed=2,
    )
    file = tmp_path / "drift.json"
    write_drift(file, PublishedDrift(worksheet="w", compared_unix_s=1, figures=(alarm,)))
    registry = CollectorRegistry()
    registry.register(DriftMetrics(file))
    page = generate_latest(registry).decode()
    for rule in rules():
        for name in re.findall(r"raylane_\w+", rule["expr"]):
            assert f"\n{name}" in page, name
        for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]):
            for label in labels.split(", "):
                assert f'{label}="' in page, label


def off(model: str, gateway: str, values: str) -> dict[str, str]:
    labels = f'model="{model}", class="chat", region="eu", quantity="prompt_tokens", instance="{gateway}"'
    return {"series": f"raylane_drift_ratio{{{labels}}}", "values": values}


@needs_promtool
def test_the_alerts_fire_once_a_model_and_hold(tmp_path: Path) -> None:
    """Two gateways show the same figure from minute 5 to 15."""
    seen = "_x5 2x10 _x200"
    summary = "1 figures of big are off the worksheet"
    description = rules()[0]["annotations"]["description"]
    firing = [
        {
            "exp_labels": {"severity": "warning", "model": "big"},
            "exp_annotations": {"summary": summary, "description": description},
        }
    ]
    name = "RaylaneTrafficOffWorksheet"
    case = {
        "interval": "1m",
        "input_series": [
            off("big", "a", seen),
            off("big", "b", seen),
        ],
        "alert_rule_test": [
            {"eval_time": "4m", "alertname": name, "exp_alerts": []},
            {"eval_time": "10m", "alertname": name, "exp_alerts": firing},
            {"eval_time": "45m", "alertname": name, "exp_alerts": firing},
            {"eval_time": "90m", "alertname": name, "exp_alerts": []},
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    promtool("test", "rules", file)
