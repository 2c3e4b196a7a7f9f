"""The table of metrics: the documents have it as it is, and no name is there twice."""

import re
from pathlib import Path

from deployments.telemetry.table import METRICS, tables

ROOT = Path(__file__).parents[3]


def test_the_document_has_the_table() -> None:
    found = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert tables() in found, "run python -m deployments.telemetry.table"


def test_each_metric_has_a_name_of_its_own() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) > 80


def test_the_documents_name_metrics_that_exist() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for file in texts for name in re.findall(r"`(raylane_[a-z0-9_]+)", file.read_text(encoding="utf-8"))}
    assert len(named) > 80
    assert named <= {metric.shown for metric in METRICS}
