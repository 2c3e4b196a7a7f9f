"""Reading traces: what is wrong is named, files may be packed, and the real traces are read. Formats one by one:
test_formats.py."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from planning.workload.formats import FORMATS
from planning.workload.formats.azure import AZURE
from planning.workload.formats.ledger import LEDGER
from planning.workload.formats.mooncake import MOONCAKE
from planning.workload.trace import TraceError
from planning.workload.traces import read_trace, write_trace
from tests.planning.workload.real import real


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_the_limit_takes_the_first_to_arrive(tmp_path: Path) -> None:
    assert list(read_trace(written(tmp_path, "t", LEDGER.sample), limit=1).prompt_tokens) == [5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "no known format; allowed: Azure CSV, BurstGPT CSV, Mooncake JSONL, raylane ledger JSONL, raylane trace "
            "JSONL",
        ),
        ("model,t\na,1\n", "no known format"),
        (AZURE.sample.splitlines()[0] + "\n", "holds no request"),
        (AZURE.sample + "2023-11-16 18:15:51,12\n", "not a whole Azure CSV trace"),
        (MOONCAKE.sample + '{"timestamp": 3}\n', "not a whole Mooncake JSONL trace"),
        (MOONCAKE.sample + "{oops\n", "not a whole Mooncake JSONL trace"),
        (MOONCAKE.sample + "7\n", "not a whole Mooncake JSONL trace: after 3 requests"),
        (MOONCAKE.sample.replace("1100", "-4"), "-4 tokens; allowed: 0 or more"),
        (MOONCAKE.sample.replace("277", "1e999"), "a time that is no number"),
        ('{"raylane_trace": 2, "chunk_tokens": 64}\n', "raylane_trace = 2: allowed: 1"),
        (
            '{"raylane_trace": 1, "chunk_tokens": 8}\n{"arrived_s": 0, "prompt_tokens": 9, "output_tokens": 1, '
            '"prefix": [3]}\n',
            "allowed: pairs",
        ),
    ],
)
def test_a_bad_trace_names_the_file_and_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(written(tmp_path, "bad.csv", text))
    assert "bad.csv" in str(caught.value)


def test_a_missing_or_broken_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(AZURE.sample.encode())[:-12])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "cut.gz")


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


def test_a_file_is_never_of_two_formats() -> None:
    for known in FORMATS:
        first = known.sample.splitlines()[0]
        assert [other.name for other in FORMATS if other.recognises(first)] == [known.name]
