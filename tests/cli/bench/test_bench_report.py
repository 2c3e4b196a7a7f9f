"""Percentiles, the histogram of gaps, the record's sums, and that the tables render."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.bench.answer import Failure, FailureKind, Sample, TokenUsage
from cli.bench.record import GROWTH, GrowingArray, Histogram, RunRecord
from cli.bench.report import render, spread, summary

durations = st.lists(st.floats(1e-5, 100), min_size=1, max_size=300)


def sample(sent_at: float = 0.0, usage: TokenUsage | None = None, failure: Failure | None = None) -> Sample:
    """A request of 2 s: first token after 0.5 s, then four more, the last after 1.5 s."""
    return Sample(sent_at, sent_at + 2.0, 0.5, 1.0, np.array([0.25, 0.25, 0.25, 0.25]), 5, usage, failure)


@given(durations, st.sampled_from([50, 90, 95, 99, 100]))
def test_the_histogram_is_within_a_bin_of_the_truth(values: list[float], percent: int) -> None:
    histogram = Histogram()
    for part in np.array_split(np.array(values), 3):
        histogram.add(part)
    truth = float(np.percentile(values, percent, method="inverted_cdf"))
    assert histogram.percentile(percent) == pytest.approx(truth, rel=GROWTH - 1 + 1e-9)
    assert histogram.mean == pytest.approx(np.mean(values))
    assert (histogram.count, histogram.max) == (len(values), max(values))


def test_gaps_of_zero_and_of_hours_are_counted() -> None:
    histogram = Histogram()
    histogram.add(np.array([0.0, 0.0, 7_200.0]))
    assert histogram.percentile(50) == 0
    assert histogram.max == 7_200


@given(st.lists(st.floats(-1e9, 1e9), max_size=3_000))
def test_a_column_keeps_every_value(values: list[float]) -> None:
    column = GrowingArray()
    for value in values:
        column.add(value)
    assert list(column.values) == values


@given(durations)
def test_percentiles_grow_from_p50_to_max(values: list[float]) -> None:
    figures = spread(np.array(values))
    line = [figures[name] for name in ("p50", "p90", "p95", "p99", "max")]
    assert line == sorted(value for value in line if value is not None)


def test_the_record_sums_what_the_server_counted() -> None:
    record = RunRecord()
    record.add(sample(sent_at=10.0, usage=TokenUsage(100, 64, 5)))
    record.add(sample(sent_at=11.0, usage=TokenUsage(50, None, 3)))
    figures = summary(record)
    assert figures["elapsed_s"] == 3.0
    assert figures["tokens"] == {"prompt": 150, "cached": 64, "output": 8, "requests_without_usage": 0}
    assert figures["throughput"] == {
        "requests_per_s": 0.667,
        "output_tokens_per_s": 2.667,
        "total_tokens_per_s": 52.667,
    }
    assert figures["latency_ms"]["ttft"]["p50"] == 500
    assert figures["latency_ms"]["tpot"]["max"] == 500
    assert figures["latency_ms"]["tpot"]["mean"] == 375
    assert figures["latency_ms"]["e2e"]["mean"] == 2_000
    assert figures["latency_ms"]["itl"]["count"] == 8


def test_failures_are_counted_by_kind_and_are_no_latencies() -> None:
    record = RunRecord()
    for code in ("queue_full", "queue_full", "draining"):
        record.add(sample(failure=Failure(FailureKind.HTTP, f"503 {code}", f"message of {code}")))
    record.add(sample())
    figures = summary(record)
    assert figures["requests"]["failed"] == 3
    assert figures["requests"]["by_error"]["HTTP 503 queue_full"] == {"count": 2, "example": "message of queue_full"}
    assert figures["latency_ms"]["e2e"]["count"] == 1
    assert figures["tokens"] == {"prompt": 0, "cached": None, "output": 5, "requests_without_usage": 1}


def test_the_tables_render_with_and_without_data() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(render("empty", summary(RunRecord()), []))
    record = RunRecord()
    record.add(sample())
    record.add(sample(failure=Failure(FailureKind.STREAM_ERROR, "x", "[red]markup[/] stays text")))
    record.late_s.add(0.2)
    console.print(render("full", summary(record), ["something"]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]markup[/] stays text" in text
    assert "this client sent requests late" in text
    assert "1 answers reported no usage" in text
