"""What a fetch tells of itself: bytes that were there, bytes that came, and the rate."""

from pathlib import Path

import pytest

from cluster.fetch_progress import FetchMeter, FetchProgress, FetchStep
from cluster.spec import Artifacts, EngineSettings, LoraAdapter, Model
from deployments.engine.model_files import fetch_files
from tests.clock import Clock


def test_sources_add_up_and_what_comes_twice_counts_twice() -> None:
    clock = Clock()
    meter = FetchMeter(clock)
    report = meter.of()
    report(FetchStep.LISTING, 0, 100)
    report(FetchStep.FETCHING, 40, 100)
    clock.now += 2.0
    report(FetchStep.FETCHING, 80, 100)
    assert meter.progress() == FetchProgress(80, 100, 40, 20.0)
    report(FetchStep.FETCHING, 70, 100)  # ten were damaged
    report(FetchStep.FETCHING, 100, 100)
    report(FetchStep.READY, 100, 100)
    report = meter.of()
    report(FetchStep.WAITING, 3, 9)
    assert meter.progress().there_bytes == 103
    report(FetchStep.READY, 9, 9)
    assert meter.progress() == FetchProgress(109, 109, 70, 35.0)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    meter = FetchMeter(clock)
    report = meter.of()
    for second in range(60):
        clock.now = 100.0 + second
        report(FetchStep.FETCHING, min(second, 30) * 1_000, 100_000)
    assert meter.progress().bytes_per_s == 0.0
    clock.now += 5.0
    report(FetchStep.FETCHING, 32_500, 100_000)
    assert meter.progress().bytes_per_s == pytest.approx(250.0)


def test_a_second_start_on_a_node_fetches_nothing(tmp_path: Path) -> None:
    for name, mark in (("model", "config.json"), ("adapter", "adapter_config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / mark).write_text("{}")
        (tmp_path / name / "weights").write_bytes(b"x" * 1_000)
    model = Model(
        name="m",
        source=str(tmp_path / "model"),
        settings=EngineSettings(max_model_len=64),
        adapters=(LoraAdapter(name="a", source=str(tmp_path / "adapter")),),
    )
    artifacts = Artifacts(cache=str(tmp_path / "cache"), copy_folders=True)
    for fetched in (2_004, 0):
        meter = FetchMeter()
        fetch_files(model, artifacts, meter)
        found = meter.progress()
        assert (found.total_bytes, found.there_bytes, found.fetched_bytes) == (2_004, 2_004, fetched)
