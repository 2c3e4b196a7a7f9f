import math
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from deployments.gateway.operators.drift_metrics import DriftMetrics, shown_drift
from deployments.traffic.published_drift import DriftAlarm, PublishedDrift, write_drift

OFF = DriftAlarm(
    model="demo",
    traffic_class="batch",
    region="eu",
    quantity="prompt_tokens",
    direction="above",
    expected=100,
    observed=200,
    since_unix_s=500,
)


def test_the_file_is_shown_as_soon_as_it_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "drift.json"
    registry = CollectorRegistry()
    registry.register(DriftMetrics(path))
    for _ in range(2):
        assert b"raylane_drift_known 0.0" in generate_latest(registry)
    assert len(caplog.records) == 1
    assert shown_drift(str(path)) == shown_drift(None) == {}
    published = PublishedDrift(worksheet="sheet", compared_unix_s=1_000, alarms=(OFF,))
    write_drift(path, published)
    page = generate_latest(registry).decode()
    labels = 'class="batch",direction="above",model="demo",quantity="prompt_tokens",region="eu"'
    assert f"raylane_drift_ratio{{{labels}}} 2.0" in page
    assert "raylane_drift_compared_seconds 1000.0" in page
    assert shown_drift(str(path)) == {"drift": published.record()}
    assert math.isnan(OFF.model_copy(update={"expected": 0.0}).ratio)
