"""Results count only while what they came from is the same: the code, Ray, the recordings."""

import gzip
import shutil
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest

from autoscaling.laws.registry import LAWS
from planning.gauntlet import code
from planning.gauntlet.recorded import trace_files
from planning.gauntlet.registry import SCENARIOS
from planning.gauntlet.worker import Worker


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
        first, second = (code.recordings_hash(trace_files(folder, SCENARIOS[name].reads)) for folder in (traces, other))
        assert first == second
    assert len(trace_files(traces, SCENARIOS["servegen_week"].reads)) == 2


def test_a_law_of_another_ray_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code.law_hash(LAWS["ray_default"])
    monkeypatch.setattr(code, "version", lambda package: "0.0.1")
    assert code.law_hash(LAWS["ray_default"]) != before


@pytest.mark.parametrize("name", ["autoscaling/laws/law.py", "autoscaling/laws/settings.py", "planning/gauntlet/run.py"])
def test_what_every_run_goes_through_is_in_the_worlds_hash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(code, "_hash", lambda files: hashed.extend(files) or "")
    code.world_hash.__wrapped__()
    assert code._ROOT / name in hashed


def test_a_new_scenario_spoils_no_results_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(code, "_hash", lambda files: hashed.extend(files) or "")
    code.world_hash.__wrapped__()
    assert not [file for file in hashed if file.name == "registry.py" and file.parent.name == "gauntlet"]


def test_a_law_that_takes_anothers_settings_is_hashed_with_the_file_that_makes_it() -> None:
    borrowed = replace(LAWS["fixed"], make=LAWS["backlog"].make)
    assert code.law_hash(borrowed) != code.law_hash(LAWS["fixed"])
    bound = replace(LAWS["fixed"], make=partial(LAWS["backlog"].make))
    assert code.law_hash(bound) == code.law_hash(borrowed)


def test_a_law_in_one_room_has_the_hash_of_that_room() -> None:
    for entry in LAWS.values():
        room = code._room(entry.settings.__module__)
        assert code.law_hash(entry) == f"{code._hash(room)}-ray-{version('ray')}"
