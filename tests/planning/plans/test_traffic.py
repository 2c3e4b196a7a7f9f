"""Streams and bands: nothing is lost, nothing is counted twice, and what is drawn is what the worksheet says."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.spec import ClusterSpec
from deployments.traffic.counts import LengthCounts
from deployments.traffic.counts import Stream as Recorded
from planning.drift.recording import stretches_of_trace
from planning.plans.samples import CHUNK_TOKENS, repeated
from planning.plans.traffic import RequestStream, bands_of, streams_of, workload_of_bands
from planning.workload.trace import Labels, Prefixes, Trace, TraceError
from planning.workload.traces import write_trace
from planning.worksheet.demand import DemandStream
from planning.worksheet.sheet import Worksheet
from tests.cell_store import keep_traffic
from tests.planning.plans import small


def sheet_of(**stream: object) -> Worksheet:
    return Worksheet.model_validate(small.SHEET | small.chat(**stream))


SPEC = ClusterSpec.model_validate(small.SPEC)


@given(
    st.floats(50, 3_000),
    st.floats(1, 3.5),
    st.floats(0, 0.9),
    st.lists(st.integers(64, 9_000), min_size=1, max_size=3, unique=True),
)
@settings(max_examples=25)
def test_bands_part_a_stream(mean: float, wide: float, share: float, contexts: list[int]) -> None:
    (stream,) = streams_of(sheet_of(input_tokens={"mean": mean, "p95": mean * wide}, prefix_share=share), SPEC)
    bands, left = bands_of(stream, SPEC, contexts)
    assert sum(band.share for band in bands) + left == pytest.approx(1.0)
    assert len({band.name for band in bands}) == len(bands)
    bounds = {lane.name: lane.up_to_tokens or 1 << 40 for lane in SPEC.lanes}
    for band in bands:
        total = band.lengths.prompts + band.lengths.outputs
        assert total.max() <= band.longest
        assert (total - band.lengths.cached).max() <= bounds[band.lane]
        assert (band.lengths.cached < band.lengths.prompts).all()
        assert (band.lengths.cached % CHUNK_TOKENS == 0).all()
    whole = sum(sum(rates) for band in bands for rates in band.demand().values())
    assert whole == pytest.approx((1 - left) * sum(map(sum, stream.rates.values())))


def test_growth_and_weeks() -> None:
    grown = sheet_of(
        growth={"percent_per_month": 10, "months": 2},
        rates=[
            {"region": "us-east-1", "requests_per_s": 1.0},
            {"region": "eu-central-1", "hourly_requests_per_s": [1.0] * 168},
        ],
    )
    (stream,) = streams_of(grown, SPEC)
    assert {len(rates) for rates in stream.rates.values()} == {168}
    assert stream.rates["us-east-1"][100] == pytest.approx(1.21)


def test_requests_come_at_their_rates_and_share_what_is_cached() -> None:
    (stream,) = streams_of(sheet_of(prefix_share=0.5), SPEC)
    bands, _ = bands_of(stream, SPEC, [8192])
    work, part_of = workload_of_bands([(bands[0], 3.0, 0.0), (bands[1], 1.0, 0.5)], 2_000.0, 3)
    assert (part_of == 0).sum() == pytest.approx(6_000, rel=0.05)
    assert (part_of == 1).sum() == pytest.approx(2_000, rel=0.08)
    assert set(work.ttft_slo_s[part_of == 1].tolist()) == {1.5}
    assert work.chunk_tokens == CHUNK_TOKENS
    first, second = (work.prefix[index] for index in np.flatnonzero(part_of == 1)[:2].tolist())
    assert first == second, "one text begins all prompts of a stream"
    again, _ = workload_of_bands([(bands[0], 3.0, 0.0), (bands[1], 1.0, 0.5)], 2_000.0, 3)
    assert (again.arrived_s == work.arrived_s).all()
    assert again.prefix[0] == work.prefix[0]


def recorded(tmp_path: Path, hours: float, **source: object) -> DemandStream:
    arrived = np.sort(np.random.default_rng(0).uniform(0, 3600 * hours, 4_000))
    tokens = np.full(4_000, 50, dtype=np.int64)
    regions = Labels(("us-east-1", "mars"), (np.arange(4_000) % 2).astype(np.int32))
    write_trace(tmp_path / "day.jsonl", Trace(arrived, tokens, tokens, region=regions))
    stream = {"name": "chat", "model": "demo", "class": "interactive"}
    return DemandStream.model_validate(stream | {"trace": {"file": str(tmp_path / "day.jsonl"), **source}})


def found_of(stream: DemandStream, spec: ClusterSpec = SPEC) -> RequestStream:
    (found,) = streams_of(sheet_of().model_copy(update={"demand": (stream,)}), spec)
    return found


def test_a_trace_gives_rates_by_region_and_hour(tmp_path: Path) -> None:
    found = found_of(recorded(tmp_path, 24, region="eu-central-1", scale=2.0))
    assert set(found.rates) == {"us-east-1", "eu-central-1"}
    for rates in found.rates.values():
        assert len(rates) == 24
        assert sum(rates) * 3600 == pytest.approx(2 * 2_000, rel=0.01)
    assert any("requests from 'mars' count for eu-central-1" in note for note in found.notes)
    assert set(found.lengths.prompts.tolist()) == {50}


def test_a_short_trace_gives_its_mean_rate_to_all_hours(tmp_path: Path) -> None:
    found = found_of(recorded(tmp_path, 2))
    assert found.rates["us-east-1"] == pytest.approx((4_000 / 7_200,) * 24, rel=0.01)
    assert any("all hours have its mean rate" in note for note in found.notes)


@pytest.mark.parametrize("hours", [23.2, 24.45, 30.0, 180.0])
def test_a_trace_that_ends_within_an_hour_has_its_rate_there_too(tmp_path: Path, hours: float) -> None:
    tokens = np.full(round(60 * hours), 50, dtype=np.int64)
    write_trace(tmp_path / "t.jsonl", Trace(60.0 * np.arange(len(tokens)), tokens, tokens))
    stream = {"name": "chat", "model": "demo", "class": "interactive", "trace": {"file": str(tmp_path / "t.jsonl")}}
    found = found_of(DemandStream.model_validate(stream))
    assert found.rates["us-east-1"] == pytest.approx((1 / 60,) * len(found.rates["us-east-1"]), rel=0.01)


def labelled(tmp_path: Path, names: tuple[str, str], column: str) -> DemandStream:
    """A day in which the first name has a request each minute, and the second one only from 8:00 to 9:00."""
    minutes = np.concatenate([np.arange(1_440.0), 480.5 + np.arange(60)])
    order = np.argsort(minutes)
    labels = Labels(names, np.repeat(np.arange(2, dtype=np.int32), [1_440, 60])[order])
    tokens = np.full(1_500, 50, dtype=np.int64)
    trace = Trace(60 * minutes[order], tokens, tokens, **{column: labels})
    write_trace(tmp_path / "t.jsonl", trace)
    stream = {"name": "chat", "model": "demo", "class": "interactive"}
    return DemandStream.model_validate(stream | {"trace": {"file": str(tmp_path / "t.jsonl")}})


@pytest.mark.parametrize(("column", "own"), [("model", "demo"), ("traffic_class", "interactive")])
def test_a_stream_has_its_own_requests_of_a_trace_alone(tmp_path: Path, column: str, own: str) -> None:
    expected = [0.0] * 8 + [1 / 60] + [0.0] * 15
    found = found_of(labelled(tmp_path, ("other", own), column))
    assert found.rates["us-east-1"] == pytest.approx(expected, abs=1e-9)
    both = {"models": [small.SPEC["models"][0] | {"name": "b"}, *small.SPEC["models"]]}
    classes = {"classes": [{"name": "b", "ttft_ms": 9_000}, *small.SPEC["classes"]]}
    with pytest.raises(TraceError, match="0 requests of demo and class interactive"):
        found_of(labelled(tmp_path, ("b", "c"), column), ClusterSpec.model_validate(small.SPEC | both | classes))
    found = found_of(labelled(tmp_path, ("b", "c"), column))
    assert sum(found.rates["us-east-1"]) == pytest.approx(1_500 / 3_600, rel=0.01)
    assert any("of the spec: all requests count for" in note for note in found.notes)


def test_a_traces_prefixes_count_as_cached_unless_the_worksheet_says_otherwise(tmp_path: Path) -> None:
    """Of three prompts the second begins as the first does, and the third is new."""
    tokens, counts = np.full(3, 300, dtype=np.int64), np.array([4, 4, 2], dtype=np.int32)
    hashes = np.array([1, 2, 3, 4, 1, 2, 8, 9, 6, 7], dtype=np.int64)
    prefixes = Prefixes(64, hashes, np.array([0, 4, 8], dtype=np.int64), counts)
    assert repeated(prefixes, tokens).tolist() == [0, 128, 0]
    assert repeated(prefixes, np.array([300, 100, 300])).tolist() == [0, 96, 0], "a token at least is computed"
    write_trace(tmp_path / "t.jsonl", Trace(np.arange(3.0), tokens, tokens, prefixes=prefixes))
    stream = recorded(tmp_path, 1).model_dump(by_alias=True, exclude_unset=True)
    stream["trace"] = {"file": str(tmp_path / "t.jsonl")}

    def cached(**said: float) -> tuple[int, tuple[str, ...]]:
        found = found_of(DemandStream.model_validate(stream | said))
        return int(found.lengths.cached.sum()), found.notes

    assert cached()[0] == 128
    assert any("14% of the prompt tokens came before in the trace" in note for note in cached()[1])
    assert cached(prefix_share=0.0)[0] == 0
    assert cached(prefix_share=0.5)[0] == 3 * 144


def test_a_cells_recording_gives_rates_lengths_and_prefix_hits(tmp_path: Path) -> None:
    monday_s = 1_767_571_200.0  # 2026-01-05, 00:00 UTC
    arrived = np.sort(np.random.default_rng(0).uniform(0, 24 * 3600, 4_000))
    prompts, outputs = (np.full(4_000, tokens, dtype=np.int64) for tokens in (500, 60))
    here = Recorded("demo", "interactive", "us-east-1")
    counted = stretches_of_trace(Trace(arrived, prompts, outputs), here, monday_s)
    store = keep_traffic(tmp_path / "cell.sqlite", counted)
    stream = recorded(tmp_path, 1).model_dump(by_alias=True)
    stream["trace"] = {"file": str(store), "scale": 2.0}
    found = found_of(DemandStream.model_validate(stream))
    assert set(found.rates) == {"us-east-1"}
    assert sum(found.rates["us-east-1"]) * 3600 == pytest.approx(8_000, rel=0.02)
    assert found.lengths.prompts.mean() == pytest.approx(500, rel=0.02)
    assert found.lengths.outputs.mean() == pytest.approx(60, rel=0.02)
    stream["class"] = "batch"
    spec = ClusterSpec.model_validate(small.SPEC | {"classes": [{"name": "batch", "ttft_ms": 9_000}]})
    with pytest.raises(TraceError, match="no request of demo and class batch"):
        found_of(DemandStream.model_validate(stream), spec)


@pytest.mark.parametrize(("said", "share"), [({}, 0.5), ({"prefix_share": 0.0}, 0.0), ({"prefix_share": 0.25}, 0.25)])
def test_a_recording_of_many_requests_and_what_the_worksheet_says_of_its_prefixes(
    tmp_path: Path, said: dict[str, float], share: float
) -> None:
    tokens = np.full(60, 1_600, dtype=np.int64)
    counted = stretches_of_trace(Trace(60.0 * np.arange(60), tokens, tokens), Recorded("demo", "interactive", ""))
    for counts in counted.counts.values():
        for lengths in (counts.prompt, counts.output):
            lengths.merge(LengthCounts(2_000_000 * 1_600, dict.fromkeys(lengths.buckets, 2_000_000)))
        counts.cached_tokens = counts.prompt_tokens // 2
    trace = {"trace": {"file": str(keep_traffic(tmp_path / "cell.sqlite", counted))}}
    stream = {"name": "chat", "model": "demo", "class": "interactive"}
    lengths = found_of(DemandStream.model_validate(stream | trace | said)).lengths
    assert lengths.cached.sum() / lengths.prompts.sum() == pytest.approx(share, abs=0.02)


def test_lengths_are_those_of_the_worksheet() -> None:
    (stream,) = streams_of(sheet_of(input_tokens={"mean": 900, "p95": 2500}, prefix_share=0.4), SPEC)
    prompts = stream.lengths.prompts
    assert prompts.mean() == pytest.approx(900, rel=0.01)
    assert np.quantile(prompts, 0.95) == pytest.approx(2500, rel=0.01)
    assert stream.lengths.cached.sum() / prompts.sum() == pytest.approx(0.4, abs=0.02)
    (stream,) = streams_of(sheet_of(), SPEC)
    assert {int(each) for each in stream.lengths.prompts} == {100, 3000}
    assert (stream.lengths.prompts == 100).mean() == pytest.approx(0.9, abs=0.001)


def test_the_slo_is_the_classs_unless_the_stream_has_its_own() -> None:
    (stream,) = streams_of(sheet_of(), SPEC)
    assert (stream.ttft_s, stream.attainment, stream.itl_s) == (2.0, 0.9, None)
    (stream,) = streams_of(sheet_of(slo={"ttft_ms": 500, "itl_ms": 40}), SPEC)
    assert (stream.ttft_s, stream.attainment, stream.itl_s) == (0.5, 0.9, 0.04)
