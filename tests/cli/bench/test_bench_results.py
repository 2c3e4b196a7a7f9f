"""Percentiles, the record's sums, and that the table renders."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cli.bench.answer import Failure, FailureKind, Sample, TokenUsage
from cli.bench.results import RunRecord, figures_of, spread

durations = st.lists(st.floats(1e-5, 100), min_size=1, max_size=300)


def sample(sent_at: float = 0.0, usage: TokenUsage | None = None, failure: Failure | None = None) -> Sample:
    """A request of 2 s: first token after 0.5 s, then four more, the last after 1.5 s."""
    return Sample(sent_at, sent_at + 2.0, 0.5, 1.0, np.array([0.25, 0.25, 0.25, 0.25]), 5, usage, failure)


@given(durations)
def test_percentiles_grow_from_p50_to_max(values: list[float]) -> None:
    figures = spread(np.array(values))
    line = [figures[name] for name in ("p50", "p90", "p95", "p99", "max")]
    assert line == sorted(value for value in line if value is not None)


def test_the_record_sums_what_the_server_counted() -> None:
    record = RunRecord()
    record.add(sample(sent_at=10.0, usage=TokenUsage(100, 64, 5)))
    record.add(sample(sent_at=11.0, usage=TokenUsage(50, None, 3)))
    figures = figures_of(record)
    expected = {
        "duration": 3.0,
        "total_input_tokens": 150,
        "total_cached_tokens": 64,
        "total_output_tokens": 8,
        "request_throughput": 0.667,
        "output_throughput": 2.667,
        "total_token_throughput": 52.667,
        "p50_ttft_ms": 500.0,
        "max_tpot_ms": 500.0,
        "mean_tpot_ms": 375.0,
        "mean_e2el_ms": 2_000.0,
        "p99_itl_ms": 250.0,
    }
    assert {name: figures[name] for name in expected} == expected


def test_failures_are_counted_by_kind_and_are_no_latencies() -> None:
    record = RunRecord()
    for code in ("queue_full", "queue_full", "draining"):
        record.add(sample(failure=Failure(FailureKind.HTTP, f"503 {code}", f"message of {code}")))
    record.add(sample())
    figures = figures_of(record)
    assert figures["errors"] == {"HTTP 503 queue_full": 2, "HTTP 503 draining": 1}
    assert record.example["HTTP 503 queue_full"] == "message of queue_full"
    assert (figures["completed"], figures["failed"], len(record.e2e_s)) == (1, 3, 1)
    assert (figures["total_output_tokens"], record.without_usage) == (5, 1)
