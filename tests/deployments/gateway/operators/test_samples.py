"""What commands publish, as metrics."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from deployments.gateway.operators.samples import drift, simulator_error
from deployments.gateway.operators.status import published_drift
from deployments.telemetry.exposition import Exposition
from deployments.telemetry.published_error import AtLoad, Figure, Published, write_published
from deployments.traffic.published_drift import OffFigure, PublishedDrift, write_drift

OFF = OffFigure(model="demo", traffic_class="batch", region="eu", quantity="prompt_tokens", expected=100, observed=200)
FIGURE = Figure(name="ttft/all/p50", live_s=1.0, simulated_s=1.1, error=0.1, raw_error=0.2, spread=0.02, bound=0.1)
ERROR = Published(
    model="m",
    replicas=1,
    costs="c",
    measured_at="2026-11-20T10:00:00+00:00",
    capacity_live=10.0,
    capacity_simulated=9.0,
    loads=(AtLoad(load=0.9, runs=3, slowness=(1.0, 1.0, 1.0), requests=100, failed=0, figures=(FIGURE,)),),
)


def test_the_simulators_error_is_shown_as_soon_as_it_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "error.json"
    registry = CollectorRegistry()
    registry.register(Exposition(simulator_error(path)))
    assert b"raylane_simulator_error_known 0.0" in generate_latest(registry)
    generate_latest(registry)
    assert len(caplog.records) == 1, "told once"
    write_published(path, ERROR)
    page = generate_latest(registry).decode()
    assert "raylane_simulator_error_known 1.0" in page
    assert 'raylane_simulator_error_ratio{figure="ttft/all/p50",load="0.9",model="m"} 0.1' in page
    assert 'raylane_simulator_live_spread_ratio{figure="ttft/all/p50",load="0.9",model="m"} 0.02' in page
    assert 'raylane_simulator_capacity_error_ratio{model="m"} -0.0999' in page


def test_the_drift_is_shown_as_soon_as_it_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "drift.json"
    registry = CollectorRegistry()
    registry.register(Exposition(drift(path)))
    for _ in range(2):
        assert b"raylane_drift_known 0.0" in generate_latest(registry)
    assert len(caplog.records) == 1
    assert published_drift(str(path)) is published_drift(None) is None
    published = PublishedDrift(worksheet="sheet", compared_unix_s=1_000, figures=(OFF,))
    write_drift(path, published)
    page = generate_latest(registry).decode()
    labels = 'class="batch",model="demo",quantity="prompt_tokens",region="eu"'
    assert f"raylane_drift_ratio{{{labels}}} 2.0" in page
    assert "raylane_drift_compared_seconds 1000.0" in page
    assert published_drift(str(path)) == published
    assert math.isinf(replace(OFF, expected=0.0).ratio)
