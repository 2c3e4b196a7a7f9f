"""Reading traces: what is wrong is named, files may be packed, and the real traces are read. Formats one by one:
test_formats.py."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from planning.workload.formats import FORMATS
from planning.workload.scaling import fitted
from planning.workload.trace import Trace, TraceError
from planning.workload.traces import read_trace, write_trace
from tests.planning.workload.real import real
from tests.planning.workload.samples import SAMPLES

AZURE, LEDGER, MOONCAKE = (SAMPLES[name] for name in ("Azure CSV", "raylane ledger JSONL", "Mooncake JSONL"))


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_the_limit_takes_the_first_to_arrive(tmp_path: Path) -> None:
    assert list(read_trace(written(tmp_path, "t", LEDGER), limit=1).prompt_tokens) == [5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected a trace: Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT CSV"),
        (b"model,t\na,1\n", "line 1: 'model,t' begins no known format; expected one of: Azure CSV"),
        (b"[" * 100_000, "a JSON array instead of a JSON object a line"),
        (b"x" * 200_000, "x... begins no known format"),
        (b"PAR1\x15\x04\x15", "is a Parquet file; expected text, plain or packed by gzip"),
        (gzip.compress(b"PAR1\x15\x04\x15", mtime=0), "is a Parquet file"),
        (gzip.compress(gzip.compress(b"x", mtime=0), mtime=0), "is packed twice by gzip"),
        (b"\x28\xb5\x2f\xfd....", "is packed by zstd"),
        (AZURE.replace(",", ";").encode(), "that of Azure CSV with semicolons instead of commas"),
        (AZURE.replace(",", "\t").encode(), "that of Azure CSV with tabs instead of commas"),
        (b'[{"timestamp": 1}]', "a JSON array instead of a JSON object a line"),
        (AZURE.splitlines()[0].encode() + b"\n", "holds no request; expected at least one after its first line"),
        (LEDGER.splitlines()[1].encode() + b"\n", "holds no request"),
        (b'{"raylane_trace": 2, "chunk_tokens": 64}\n', "line 1 of a raylane trace JSONL trace: '{"),
        (AZURE.encode() + b"2023-11-16 \xff\xfe,1,2\n", "bytes that are no UTF-8 text"),
        (MOONCAKE.encode() + b'{"timestamp": ' + b"[" * 100_000 + b"\n", "Expected `float`, got `array`"),
    ],
)
def test_a_bad_file_is_named_with_what_was_found_and_expected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        read_trace(path)
    assert "bad.csv" in str(caught.value)


def test_requests_that_are_skipped_are_named_where_no_other_is_left(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds no request; .*; 1 of 1 requests \(100.0 %\): left out: without token"):
        read_trace(written(tmp_path, "t", LEDGER.splitlines()[1] + "\n"))


def test_a_missing_or_broken_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    whole = gzip.compress(AZURE.encode() + 5_000 * b"2023-11-16 18:15:50.9951690,396,7\n")
    cut = tmp_path / "cut.gz"
    for size in (12, len(whole) // 2, len(whole) - 4):
        cut.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=r"cut.gz: .*cut off.*expected a whole file"):
            read_trace(cut)
    cut.write_bytes(whole[:-8] + bytes(8))
    with pytest.raises(TraceError, match="gzip stream is damaged"):
        read_trace(cut)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, "t", "\ufeff" + AZURE))) == 3


@pytest.mark.whole
@pytest.mark.parametrize("name", ["azure2023_conv.csv.gz", "azure2023_code.csv.gz", "mooncake_synthetic.jsonl.gz"])
def test_the_real_traces_are_read_and_written_again(tmp_path: Path, name: str) -> None:
    trace = read_trace(real(name), limit=400)
    assert len(trace) == 400
    assert trace.arrived_s[0] == 0
    assert (np.diff(trace.arrived_s) >= 0).all()
    assert trace.prompt_tokens.max() > 1_000
    write_trace(tmp_path / "again.jsonl.gz", trace)
    again = read_trace(tmp_path / "again.jsonl.gz")
    np.testing.assert_allclose(again.arrived_s, trace.arrived_s, atol=1e-6)
    assert (again.prompt_tokens == trace.prompt_tokens).all()
    if "mooncake" in name:
        assert trace.prefixes is not None
        assert again.prefixes is not None
        assert [again.prefixes[index] for index in range(400)] == [trace.prefixes[index] for index in range(400)]
        assert (trace.prefixes.counts == trace.prompt_tokens // 512).all()


def repeated(trace: Trace) -> float:
    """The share of the prompt tokens that a cache of any size would find."""
    assert trace.prefixes is not None
    seen: set[int] = set()
    found = 0
    for index in range(len(trace)):
        chunks = trace.prefixes[index]
        found += sum(one in seen for one in chunks)
        seen.update(chunks)
    return found * trace.prefixes.chunk_tokens / int(trace.prompt_tokens.sum())


@pytest.mark.whole
def test_a_real_trace_keeps_what_its_prompts_share_when_it_shrinks() -> None:
    whole = read_trace(real("mooncake_synthetic.jsonl.gz"))
    before = repeated(whole)
    assert before > 0.6
    for context in (131_072, 32_768, 8_192):
        small = fitted(whole, context)
        assert small.prefixes is not None
        assert small.prefixes.chunk_tokens % 16 == 0
        assert before - 0.01 < repeated(small) < before + 0.01


def test_a_file_is_never_of_two_formats() -> None:
    for known in FORMATS:
        first = SAMPLES[known.name].splitlines()[0]
        assert [other.name for other in FORMATS if other.recognises(first)] == [known.name]
