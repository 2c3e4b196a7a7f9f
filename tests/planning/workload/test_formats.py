"""Conformance: what each format of the registry owes, on its sample; and what each one holds."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.protocol import Finished, Usage
from deployments.telemetry.ledger import Ledger
from planning.workload.changes import ChangeKind
from planning.workload.formats import FORMATS, Format
from planning.workload.formats.own import hashes_of, runs_of
from planning.workload.trace import Trace, TraceError
from planning.workload.traces import read_trace, write_trace
from tests.planning.workload.samples import SAMPLES


def read(folder: Path, text: str, suffix: str = "") -> Trace:
    path = folder / f"trace{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == ".gz" else text.encode())
    return read_trace(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("known", FORMATS, ids=[known.name for known in FORMATS])
def test_each_format_keeps_the_contract(tmp_path: Path, known: Format, suffix: str) -> None:
    trace = read(tmp_path, SAMPLES[known.name], suffix)
    assert len(trace) >= 2
    assert trace.arrived_s[0] == 0
    assert (np.diff(trace.arrived_s) >= 0).all()
    assert min(trace.prompt_tokens.min(), trace.output_tokens.min()) >= 1
    for name in Trace.__slots__:
        column = getattr(trace, name)
        assert name == "changes" or column is None or len(column) == len(trace), name
    if trace.prefixes is not None:
        assert (trace.prefixes.counts * trace.prefixes.chunk_tokens <= trace.prompt_tokens).all()
    assert str(read(tmp_path, SAMPLES[known.name].rstrip("\n").replace("\n", "\r\n"))) == str(trace)


@pytest.mark.parametrize("known", FORMATS, ids=[known.name for known in FORMATS])
def test_what_is_read_can_be_written_in_our_own_form(tmp_path: Path, known: Format) -> None:
    trace = read(tmp_path, SAMPLES[known.name])
    write_trace(tmp_path / "own.jsonl", trace)
    again = read_trace(tmp_path / "own.jsonl")
    np.testing.assert_allclose(again.arrived_s, trace.arrived_s, atol=1e-6)
    for name in set(Trace.__slots__) - {"arrived_s", "changes"}:
        before, after = getattr(trace, name), getattr(again, name)
        assert (before is None) == (after is None), name
        if before is not None:
            assert [before[index] for index in range(len(trace))] == [after[index] for index in range(len(trace))], name


def test_what_a_reader_leaves_out_is_counted(tmp_path: Path) -> None:
    noted = {
        known.name: {one.kind: (one.count, one.of) for one in read(tmp_path, SAMPLES[known.name]).changes}
        for known in FORMATS
    }
    assert noted == {
        "Azure CSV": {ChangeKind.LENGTH_RAISED: (1, 3)},
        "BurstGPT CSV": {ChangeKind.LOG_TYPE_DROPPED: (3, 3)},
        "Mooncake JSONL": {ChangeKind.PARTIAL_BLOCK_DROPPED: (1, 3)},
        "raylane ledger JSONL": {ChangeKind.UNCOUNTED_SKIPPED: (1, 4), ChangeKind.SORTED: (1, 3)},
        "raylane trace JSONL": {},
    }
    failed = SAMPLES["BurstGPT CSV"] + "200,,0,GPT-4,7,0,7,API log\n"
    assert {one.kind: (one.count, one.of) for one in read(tmp_path, failed).changes} == {
        ChangeKind.FAILED_SKIPPED: (1, 4),
        ChangeKind.LOG_TYPE_DROPPED: (3, 3),
    }


BAD = {
    "Azure CSV": (
        ("2023-11-16 18:15:51,12", "2 columns; expected 3"),
        ("yesterday,12,3", "'yesterday,12,3': Invalid RFC3339 encoded datetime - at `$.TIMESTAMP`"),
        ("2023-11-16 18:15:51,nan,3", "Expected `int`, got `str` - at `$.ContextTokens`"),
        ("2023-11-16 18:15:51,12,-3", "Expected `int` >= 0 - at `$.GeneratedTokens`"),
    ),
    "BurstGPT CSV": (
        ("nan,1,2.5,ChatGPT,472,18,490,API log", "Expected `float` >= 0.0 - at `$.Timestamp`"),
        ("5,1,2.5,ChatGPT,4.72,18,490,API log", "Expected `int`, got `str` - at `$.Request tokens`"),
        ("5,1,2.5,ChatGPT,472", "5 columns; expected 8"),
    ),
    "Mooncake JSONL": (
        ('{"timestamp": 3}', "Object missing required field `input_length`"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 6}', "malformed"),
        ('{"timestamp": 1e999, "input_length": 5, "output_length": 6}', "out of range - at `$.timestamp`"),
        (
            '{"timestamp": 3, "input_length": 4.5, "output_length": 6}',
            "Expected `int`, got `float` - at `$.input_length`",
        ),
        (
            '{"timestamp": 3, "input_length": 5, "output_length": 6, "hash_ids": 7}',
            "`array`, got `int` - at `$.hash_ids`",
        ),
        ("{oops", "'{oops': JSON is malformed"),
        ("7", "'7': Expected `object`, got `int`"),
    ),
    "raylane ledger JSONL": (
        ('{"arrived_s": 1, "prompt_tokens": -7, "output_tokens": 3}', "Expected `int` >= 0 - at `$.prompt_tokens`"),
        ('{"arrived_s": 1, "prompt_tokens": 7, "output_tokens": 3, "tenant": 5}', "got `int` - at `$.tenant`"),
        ('{"prompt_tokens": 7, "output_tokens": 3}', "missing required field `arrived_s`"),
    ),
    "raylane trace JSONL": (
        ('{"arrived_s": 0, "prompt_tokens": 9, "output_tokens": 1, "prefix": [3]}', "expected pairs of a first hash"),
        ('{"arrived_s": 0, "prompt_tokens": 9, "output_tokens": 1, "prefix": "x"}', "at `$.prefix`"),
    ),
}


@pytest.mark.parametrize(
    ("name", "line", "message"), [(name, line, message) for name, cases in BAD.items() for line, message in cases]
)
def test_a_bad_line_is_named_with_what_was_found_and_expected(
    tmp_path: Path, name: str, line: str, message: str
) -> None:
    sample = SAMPLES[name]
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        read(tmp_path, sample + line + "\n")
    place = f"trace: line {len(sample.splitlines()) + 1} of a {name} trace: "
    assert place in str(caught.value)


def test_burstgpt_of_the_first_release_has_no_sessions_and_failures_are_left_out(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API "
        "log\n9,GPT-4,30,0,30,API log\n"
    )
    trace = read(tmp_path, text)
    assert (list(trace.prompt_tokens), trace.session) == ([472], None)
    assert trace.model is not None
    assert trace.model.used() == ("ChatGPT",)


def test_mooncake_shares_whole_blocks_only(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["Mooncake JSONL"])
    assert trace.prefixes is not None
    assert [trace.prefixes[index] for index in range(3)] == [(0, 1), (0, 3), ()]
    assert trace.prefixes.chunk_tokens == 512


def test_the_gateways_own_ledger_is_such_a_trace(tmp_path: Path) -> None:
    finished = Finished("e", 200, Usage(120, 64, 30, 0, 1, 0.1, 0.2, 0.0), 0.1, 0.3)
    answered = Ledger("r", "e", "/v1/completions", arrived_s=5.0, arrived_unix_s=1_000.0, finished=finished)
    answered.tenant, answered.traffic_class, answered.model, answered.max_tokens = "acme", "batch", "m", 99
    refused = Ledger("s", "f", "/v1/completions", arrived_s=4.0, arrived_unix_s=999.0)
    trace = read(tmp_path, "".join(json.dumps(ledger.record()) + "\n" for ledger in (refused, answered)))
    assert (list(trace.prompt_tokens), list(trace.output_tokens)) == ([120], [30])
    assert trace.max_tokens is not None
    assert trace.max_tokens.tolist() == [99]
    named = [labels[0] if labels else None for labels in (trace.tenant, trace.traffic_class, trace.model)]
    assert named == ["acme", "batch", "m"]


@given(st.lists(st.integers(0, 12), max_size=30))
def test_runs_and_hashes_are_the_same_thing(hashes: list[int]) -> None:
    assert hashes_of(runs_of(hashes)) == hashes


def test_azure_of_both_years(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["Azure CSV"])
    assert list(trace.arrived_s[:2]) == pytest.approx([0, 4.314579], abs=1e-5)
    assert list(trace.prompt_tokens) == [374, 396, 2162]
    assert list(trace.output_tokens) == [44, 1, 5]


def test_burstgpt_of_the_later_release_has_sessions(tmp_path: Path) -> None:
    trace = read(tmp_path, SAMPLES["BurstGPT CSV"])
    assert trace.session is not None
    assert trace.session.tolist() == [0, -1, 0]
