"""Metrics, buckets, journal: what is counted and written of a ledger."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from deployments.protocol import Finished, Usage
from deployments.telemetry import line_log
from deployments.telemetry.exposition import Exposition, Source
from deployments.telemetry.journal import Journal
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.line_log import Logs
from deployments.telemetry.metrics import LoopLag, RequestMetrics, prompt_bucket
from deployments.telemetry.table import ITL, PROMPT_BOUNDS


def ledger(**fields: object) -> Ledger:
    one = Ledger("client", "engine", "/v1/completions", 100.0, 1_700_000_000.0, model="demo", **fields)  # type: ignore[arg-type]
    one.submitted(100.1)
    one.left_lane(100.2, placed=True)
    one.first_byte_s, one.last_byte_s, one.ended_s = 100.5, 101.0, 101.0
    return one


def of(one: Ledger) -> CollectorRegistry:
    metrics = RequestMetrics(["/v1/completions"])
    metrics.observe(one)
    return registry_of(metrics.samples)


def registry_of(source: Source) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Exposition(source))
    return registry


@given(st.integers(0, 10**9))
def test_prompt_buckets_hold_what_they_say(tokens: int) -> None:
    kind, _, bound = prompt_bucket(tokens).partition("_")
    if kind == "le":
        below = [0, *PROMPT_BOUNDS][PROMPT_BOUNDS.index(int(bound))]
        assert below < tokens <= int(bound) or (tokens == 0 and int(bound) == PROMPT_BOUNDS[0])
    else:
        assert tokens > PROMPT_BOUNDS[-1]


def test_the_bucket_is_of_one_prompt() -> None:
    one = ledger(stream=True, status=200, outcome=RequestOutcome.OK)
    one.finished = Finished("engine", 200, Usage(4 * 60, 0, 40, 0, 4, 0.1, 0.5, 0.0), 0.2, 0.8)
    registry = of(one)
    labels = {"model": "demo", "prompt_bucket": "le_64"}
    assert registry.get_sample_value("raylane_ttft_seconds_count", labels) == 1
    assert registry.get_sample_value("raylane_ttft_seconds_sum", labels) == pytest.approx(0.5)
    assert registry.get_sample_value("raylane_tokens_total", {"model": "demo", "kind": "in"}) == 240


@pytest.mark.whole
@given(st.lists(st.sampled_from((*ITL.bounds, 0.0)) | st.floats(0, 10), max_size=50))
def test_the_gaps_of_a_stream_are_counted_as_prometheus_counts(gaps: list[float]) -> None:
    ours, theirs = ledger(stream=True, status=200, itl=gaps), CollectorRegistry()
    histogram = Histogram(*ITL.about, buckets=ITL.bounds, registry=theirs).labels("demo", "le_64")
    for gap in gaps:
        histogram.observe(gap)
    lines = generate_latest(of(ours)).decode().splitlines()
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert [line for line in lines if "raylane_itl_seconds" in line] == expected


def test_an_error_has_no_ttft() -> None:
    registry = of(ledger(stream=True, status=400, outcome=RequestOutcome.REFUSED))
    assert b"raylane_ttft_seconds_count{" not in generate_latest(registry)
    assert registry.get_sample_value("raylane_e2e_seconds_count", {"model": "demo", "prompt_bucket": "le_64"}) == 1


def test_statistics_that_never_came_are_counted() -> None:
    assert of(ledger(status=200)).get_sample_value("raylane_requests_without_usage_total", {"model": "demo"}) == 1


@pytest.mark.parametrize(
    ("path", "error", "shown"),
    [
        ("/v1/completions", "model_not_found", 'raylane_requests_total{error="model_not_found",model="unknown"'),
        ("/v1/made-up", "not_found", 'path="other"'),
    ],
)
def test_unknown_models_and_made_up_paths_do_not_multiply_labels(path: str, error: str, shown: str) -> None:
    one = Ledger("client", "engine", path, 100.0, 0.0, status=404, outcome=RequestOutcome.REFUSED, error=error)
    one.ended_s = 100.1
    text = generate_latest(of(one)).decode()
    assert shown in text
    assert "raylane_e2e_seconds_count{" not in text


async def test_a_blocked_loop_shows() -> None:
    import time

    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(0.05)
    time.sleep(0.4)  # noqa: ASYNC251 - the lag that is measured
    await asyncio.sleep(0.15)
    task.cancel()
    late = registry_of(lag.samples).get_sample_value("raylane_event_loop_lag_seconds_sum")
    assert late is not None
    assert late > 0.2


def test_the_journal_writes_a_line_each(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "logs" / "access.jsonl", tmp_path / "trace.jsonl", Logs())
    for _ in range(3):
        journal.write(ledger(status=200))
    journal.close()
    access = [json.loads(line) for line in (tmp_path / "logs" / "access.jsonl").read_text().splitlines()]
    trace = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert len(access) == len(trace) == 3
    assert access[0]["wall_s"] == trace[0]["wall_s"] == 1.0
    assert trace[0]["schema"] == 1
    assert set(access[0]) < set(trace[0])


def test_a_journal_of_nothing_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(None, None, Logs())
    journal.write(ledger())
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_the_files_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_log, "MAX_BYTES", 2_000)
    journal = Journal(tmp_path / "access.jsonl", None, Logs())
    for _ in range(200):
        journal.write(ledger(status=200))
    journal.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 6
    assert all(file.stat().st_size <= 2_000 for file in files)
