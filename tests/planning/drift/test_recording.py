import json
from pathlib import Path

import numpy as np
import pytest

from deployments.traffic.counts import Period, Stream, Stretches
from deployments.wire import to_plain
from planning.drift.recording import RecordingError, is_recording, read_recording, recorded_streams, stretches_of_trace
from planning.workload.trace import Labels, Trace
from tests.cell_store import keep_traffic
from tests.planning.drift.drawn import CHAT, MONDAY_S, Traffic


def totals(found: Stretches, period: Period) -> tuple[int, int, int]:
    chosen = [counts for key, counts in found.counts.items() if key[0] is period]
    return (
        sum(one.requests for one in chosen),
        sum(one.prompt_tokens for one in chosen),
        sum(one.output.tokens for one in chosen),
    )


def test_a_trace_counts_as_a_gateway_would_have_counted_it() -> None:
    rng = np.random.default_rng(1)
    prompt, output = rng.integers(1, 5_000, 500), rng.integers(1, 900, 500)
    classes = Labels(("", "batch"), rng.integers(0, 2, 500).astype(np.int32))
    trace = Trace(np.sort(rng.random(500) * 9_000), prompt, output, traffic_class=classes)
    found = stretches_of_trace(trace, CHAT, MONDAY_S)
    by_hand = Stretches()
    for index in range(500):
        stream = Stream("demo", classes[index] or "interactive", "eu")
        for period in Period:
            counts = by_hand.of(period, MONDAY_S + trace.arrived_s[index], stream)
            counts.requests += 1
            counts.finish(int(prompt[index]), 0, int(output[index]))
    assert found.counts == by_hand.counts
    assert sum(found.seconds[Period.HOUR, MONDAY_S + 3_600 * hour] for hour in range(3)) == pytest.approx(
        trace.arrived_s[-1]
    )


def test_a_recording_is_read_from_the_file_and_from_the_page(tmp_path: Path) -> None:
    whole = Traffic().draw(130, 1)
    store = keep_traffic(tmp_path / "cell.sqlite", whole)
    page = tmp_path / "page.json"
    page.write_text(json.dumps(to_plain(whole.record())))
    for period in Period:
        for path in (store, page):
            assert is_recording(path)
            assert totals(read_recording(path, period), period) == totals(whole, period)
    assert is_recording(store)
    assert is_recording(page)
    assert not is_recording(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "[]", '{"stores": 3}', '{"stores": {"a": {}}}', "no JSON"])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(RecordingError, match=str(tmp_path / "x")):
        read_recording(tmp_path / "x", Period.HOUR)
    with pytest.raises(RecordingError, match="cannot be read"):
        read_recording(tmp_path / "missing", Period.HOUR)


def test_streams_as_a_worksheet_states_them() -> None:
    recorded = Traffic(per_s=3.0).draw(120, 1)
    recorded.merge(Traffic(per_s=1.0).draw(30, 2, 120))
    (stream,) = recorded_streams(recorded)
    assert (stream.stream, len(stream.hourly)) == (CHAT, 24)
    assert stream.hourly[:3] == pytest.approx([3, 3, 1], rel=0.05)
    assert stream.hourly[3] == pytest.approx(3 * 120 / 150 + 30 / 150, rel=0.05), "not watched: the mean"
    assert stream.prefix_share == pytest.approx(0.4, abs=0.05)
    for weighted, mean in ((stream.prompt, 1_000), (stream.output, 250)):
        total = sum(count for _, count in weighted)
        assert sum(tokens * count for tokens, count in weighted) / total == pytest.approx(mean, rel=0.05)
    with pytest.raises(ValueError, match="holds no request"):
        recorded_streams(Stretches())


def test_a_week_gives_rates_by_hour_of_the_week() -> None:
    recorded = Stretches()
    recorded.watch(MONDAY_S, MONDAY_S + 7 * 86_400.0)
    for hour in range(168):
        counts = recorded.of(Period.HOUR, MONDAY_S + 3_600 * hour, CHAT)
        counts.requests = 3_600 * (1 + hour)
        counts.finish(10, 0, 10)
    assert recorded_streams(recorded)[0].hourly == tuple(range(1, 169))
    assert recorded_streams(recorded, time_zone="Asia/Tokyo")[0].hourly[9] == 1
