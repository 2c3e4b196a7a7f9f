"""Trace readers on small files of each format, on the real traces where they are at hand, and the fitting of lengths to a context."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.bench.traces import TraceError, read_trace, scale_lengths, scale_to_fit
from deployments.protocol import Finished
from deployments.telemetry.ledger import Ledger

REAL_TRACES = Path(__file__).parents[3].parent / "shared" / "data" / "traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n"
MOONCAKE = '{"timestamp": 0, "input_length": 40, "output_length": 6}\n{"timestamp": 277, "input_length": 30, "output_length": 9, "hash_ids": []}\n'
LEDGER = "\n".join(
    json.dumps({"request_id": "r", "arrived_s": arrived, "prompt_tokens": prompt, "output_tokens": output})
    for arrived, prompt, output in ((1_000.5, 7, 3), (1_000.0, 5, 2), (1_000.2, None, None))
)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("text", "arrived", "prompt", "output"),
    [
        (AZURE, [0, 4.314579], [374, 396], [44, 1]),
        (MOONCAKE, [0, 0.277], [40, 30], [6, 9]),
        (LEDGER, [0, 0.5], [5, 7], [2, 3]),
    ],
    ids=["azure", "mooncake", "ledger"],
)
def test_each_format_is_read(tmp_path: Path, suffix: str, text: str, arrived: list[float], prompt: list[int], output: list[int]) -> None:
    trace = read_trace(written(tmp_path, f"trace{suffix}", text))
    assert list(trace.arrived_s) == pytest.approx(arrived, abs=1e-5)
    assert list(trace.prompt_tokens) == prompt
    assert list(trace.output_tokens) == output


def test_the_gateways_own_ledger_is_such_a_trace(tmp_path: Path) -> None:
    finished = Finished("e", 200, 1, 120, 64, 30, 0, 0.0, 0.1, 0.2, 0.1, 0.3)
    answered = Ledger("r", "e", "/v1/completions", arrived_s=5.0, arrived_unix_s=1_000.0, finished=finished)
    refused = Ledger("s", "f", "/v1/completions", arrived_s=4.0, arrived_unix_s=999.0)
    trace = read_trace(written(tmp_path, "ledger.jsonl", "".join(json.dumps(ledger.record()) + "\n" for ledger in (refused, answered))))
    assert (list(trace.prompt_tokens), list(trace.output_tokens)) == ([120], [30])


def test_the_limit_takes_the_first_to_arrive(tmp_path: Path) -> None:
    assert list(read_trace(written(tmp_path, "t", LEDGER), limit=1).prompt_tokens) == [5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no known format; allowed: Azure CSV, Mooncake JSONL, raylane ledger JSONL"),
        ("model,t\na,1\n", "no known format"),
        (AZURE.splitlines()[0] + "\n", "holds no request"),
        (AZURE + "2023-11-16 18:15:51,12\n", "not a whole Azure CSV trace"),
        (MOONCAKE + '{"timestamp": 3}\n', "not a whole Mooncake JSONL trace"),
        (MOONCAKE + "{oops\n", "not a whole Mooncake JSONL trace"),
    ],
)
def test_a_bad_trace_names_the_file_and_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(written(tmp_path, "bad.csv", text))
    assert "bad.csv" in str(caught.value)


def test_a_missing_or_broken_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(AZURE.encode())[:-12])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "cut.gz")


@pytest.mark.parametrize("name", ["azure2023_conv.csv.gz", "azure2023_code.csv.gz", "mooncake_synthetic.jsonl.gz"])
def test_the_real_traces_are_read(name: str) -> None:
    path = REAL_TRACES / name
    if not path.is_file():
        pytest.skip(f"{path} is not on this machine")
    trace = read_trace(path, limit=200)
    assert len(trace.arrived_s) == 200
    assert trace.arrived_s[0] == 0
    assert (np.diff(trace.arrived_s) >= 0).all()
    assert trace.prompt_tokens.max() > 1_000


@given(
    pairs=st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 50_000)), min_size=1, max_size=50),
    max_model_len=st.integers(16, 300_000),
)
def test_scaled_lengths_fit_the_context_and_keep_their_order(pairs: list[tuple[int, int]], max_model_len: int) -> None:
    prompt, output = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    scale = scale_to_fit(prompt, output, max_model_len)
    scaled_prompt, scaled_output = scale_lengths(prompt, scale), scale_lengths(output, scale)
    assert (scaled_prompt + scaled_output).max() <= max_model_len
    assert min(scaled_prompt.min(), scaled_output.min()) >= 1
    order = np.argsort(prompt, kind="stable")
    assert (np.diff(scaled_prompt[order]) >= 0).all()
