"""The memo: what was written is known again, as long as the code, Ray and the recordings that it came from are the
same; a torn line spoils nothing."""

import gzip
import math
import resource
import shutil
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import pytest

from autoscaling.policies.registry import POLICIES
from planning.gauntlet import memo
from planning.gauntlet.memo import Memo, key_of
from planning.gauntlet.recorded import trace_files
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.worker import Worker
from planning.scoring import Score
from tests.planning.gauntlet.small import score_like

WRITTEN = asdict(score_like(0.9, 1.0))


def write(path: Path, first: int) -> None:
    memo = Memo(path)
    for number in range(first, first + 50):
        memo.put(str(number), {"scenario": "s"}, {"value": number, "text": "x" * 500})


def test_what_was_put_is_known_again(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.jsonl")
    memo.put("a", {"policy": "b"}, {"x": 1.5})
    assert memo.get("a") == {"x": 1.5}
    assert Memo(tmp_path / "memo.jsonl").get("a") == {"x": 1.5}
    assert memo.get("c") is None


def remembered(result: object) -> Score | None:
    memo = Memo(None)
    memo.put("a", {}, result)
    return memo.get_as(Score, "a")


def test_a_score_of_a_run_that_answered_nobody_is_one() -> None:
    read = remembered({**WRITTEN, "ttft_p99_s": math.nan})
    assert read is not None
    assert math.isnan(read.ttft_p99_s)


def test_a_result_of_another_shape_is_unknown() -> None:
    assert remembered(WRITTEN) == score_like(0.9, 1.0)
    others = ({**WRITTEN, "more": 1}, {**WRITTEN, "flaps": None}, {**WRITTEN, "attainment": math.nan})
    assert [remembered(other) for other in (None, {}, [], "x", *others)] == [None] * 7


def test_without_a_file_it_lasts_as_long_as_the_process() -> None:
    memo = Memo(None)
    memo.put("a", {}, 1)
    assert memo.get("a") == 1


@pytest.mark.whole
def test_several_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    context = get_context("spawn")
    writers = [context.Process(target=write, args=(path, first)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    known = Memo(path)
    assert all(
        known.get(str(first + number))["value"] == first + number for first in (0, 100, 200) for number in range(50)
    )


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    memo = Memo(path)
    memo.put("a", {}, 1)
    with path.open("a") as file:
        file.write("{not json}\n[]\n")
    other = Memo(path)
    assert other.get("a") == 1
    memo.put("b", {}, 2)
    assert other.get("b") is None
    assert Memo(path).get("b") == 2


def test_what_follows_a_torn_line_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    Memo(path).put("a", {}, 1)
    early = Memo(path)
    with path.open("a") as file:
        file.write('{"key":"torn","res')
    Memo(path).put("b", {}, 2)
    early.put("c", {}, 3)
    assert [Memo(path).get(key) for key in ("a", "torn", "b", "c")] == [1, None, 2, 3]
    assert path.read_text().count("\n\n") == 0


def test_a_file_that_takes_no_more_is_let_be_with_a_word(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    memo = Memo(path)
    memo.put("a", {}, 1)
    assert memo.trouble is None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))  # as where a disk is full
    try:
        memo.put("b", {}, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert memo.trouble is not None
    assert str(path) in memo.trouble
    memo.put("c", {}, 3)
    assert [memo.get(key) for key in ("a", "b", "c")] == [1, 2, 3]
    Memo(path).put("d", {}, 4)
    assert [Memo(path).get(key) for key in ("a", "b", "c", "d")] == [1, None, None, 4]


def test_a_line_too_deep_to_be_read_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    path.write_text('{"key":"deep","result":' + "[" * 100_000 + "\n")
    assert Memo(path).get("deep") is None


def test_keys_differ_where_anything_does() -> None:
    assert key_of("a", {"x": 1, "y": 2}) == key_of("a", {"y": 2, "x": 1})
    assert len({key_of("a", {"x": 1}), key_of("a", {"x": 2}), key_of("b", {"x": 1}), key_of("a", {})}) == 4


@pytest.fixture
def other(traces: Path, tmp_path: Path) -> Path:
    """The same recordings, but for the lengths of one request of Azure's chats."""
    folder = tmp_path / "other"
    shutil.copytree(traces, folder)
    file = folder / "azure2023_conv.csv.gz"
    rows = gzip.decompress(file.read_bytes()).decode().splitlines()
    stamp, _, output = rows[1].split(",")
    file.write_bytes(gzip.compress("\n".join([rows[0], f"{stamp},2399,{output}", *rows[2:], ""]).encode()))
    return folder


@pytest.mark.whole
def test_a_result_of_another_recording_is_none(traces: Path, other: Path, tmp_path: Path) -> None:
    memo = tmp_path / "memo.jsonl"
    for folder, lines in ((traces, 1), (traces, 1), (other, 2)):
        Worker(memo, folder).score("azure_chat", "fixed", {"replicas": 4}, 0)
        assert len(memo.read_text().splitlines()) == lines


def test_only_what_a_scenario_reads_counts(traces: Path, other: Path) -> None:
    for name in ("azure_code", "mooncake", "servegen_week", "ramp"):
        first, second = (memo.recordings_hash(trace_files(folder, SCENARIOS[name].reads)) for folder in (traces, other))
        assert first == second
    assert len(trace_files(traces, SCENARIOS["servegen_week"].reads)) == 2


def test_a_policy_of_another_ray_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = memo.policy_hash(POLICIES["ray_default"])
    monkeypatch.setattr(memo, "version", lambda package: "0.0.1")
    assert memo.policy_hash(POLICIES["ray_default"]) != before


@pytest.mark.parametrize(
    "name",
    [
        "autoscaling/policies/policy.py",
        "autoscaling/policies/settings.py",
        "planning/gauntlet/run.py",
        "planning/scoring.py",
    ],
)
def test_what_every_run_goes_through_is_in_the_worlds_hash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(memo, "_hash", lambda files: hashed.extend(files) or "")
    memo.world_hash.__wrapped__()
    assert memo._ROOT / name in hashed


def test_a_new_scenario_spoils_no_results_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(memo, "_hash", lambda files: hashed.extend(files) or "")
    memo.world_hash.__wrapped__()
    assert not [file for file in hashed if file.name == "registry.py" and file.parent.name == "gauntlet"]


def test_a_policy_that_takes_anothers_settings_is_hashed_with_the_file_that_makes_it() -> None:
    borrowed = replace(POLICIES["fixed"], make=POLICIES["backlog"].make)
    assert memo.policy_hash(borrowed) != memo.policy_hash(POLICIES["fixed"])
    bound = replace(POLICIES["fixed"], make=partial(POLICIES["backlog"].make))
    assert memo.policy_hash(bound) == memo.policy_hash(borrowed)


def test_a_policy_in_one_room_has_the_hash_of_that_room() -> None:
    for entry in POLICIES.values():
        room = memo._room(entry.settings.__module__)
        assert memo.policy_hash(entry) == f"{memo._hash(room)}-ray-{version('ray')}"
