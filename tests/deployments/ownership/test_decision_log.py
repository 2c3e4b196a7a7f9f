"""The decision log of a running gateway: what its scheduler decided replays, over rotations and a change of owner."""

import asyncio
import resource
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from deployments.ownership import decision_log
from deployments.ownership.decision_log import DecisionLog, in_file_name, model_in
from deployments.telemetry.line_log import LogHealth
from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import ASK
from tests.deployments.ownership.conftest import Cell

MakeCell = Callable[..., Awaitable[Cell]]


@pytest.mark.whole
async def test_what_gateways_decided_replays(make_cell: MakeCell, tmp_path: Path) -> None:
    folder = tmp_path / "decisions"
    cell = await make_cell(engines=2, decision_log=str(folder))
    for engine in cell.engines:
        engine.behave = pieces(event(), 0.01, DONE)

    async def load() -> None:
        answers = await asyncio.gather(*(rig.ask({**ASK, "stream": True}) for rig in cell.rigs for _ in range(30)))
        assert {status for status, _ in answers} == {200}

    await load()
    stopping = cell.owner
    cell.rigs.remove(stopping)
    await stopping.gateway.stop()
    await load()
    await cell.settled()
    for rig in cell.rigs:
        for owner_tracker in rig.gateway._owner_trackers.values():
            owner_tracker.close()
    logs = sorted(folder.glob("*.jsonl"))
    assert [log.name.split("-gateway")[0][:12] for log in logs] == ["demo-epoch-1", "demo-epoch-2"]
    placed = 0
    for log in logs:
        result = CliRunner().invoke(app, ["replay", str(log)])
        assert result.exit_code == 0, result.output
        assert "every decision is the same as recorded" in result.output
        placed += int(result.output.split(" inputs, ")[1].split()[0])
    assert placed >= 90
    both = CliRunner().invoke(app, ["replay", *(str(log) for log in reversed(logs))])
    assert (both.exit_code, both.output.count(" inputs, ")) == (0, 2), both.output
    begun = folder / "demo.jsonl.new"  # what a writer that is killed while it opens a file leaves
    begun.touch()
    all_of_it = CliRunner().invoke(app, ["replay", str(begun), *map(str, logs)])
    assert (all_of_it.exit_code, all_of_it.output.count(" inputs, ")) == (0, 2), all_of_it.output
    alone = CliRunner().invoke(app, ["replay", str(begun)])
    assert (alone.exit_code, "nothing to replay" in alone.output) == (2, True), alone.output


def test_a_full_file_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, "m", LogHealth("m"), max_bytes=10)
    for number in range(decision_log.KEPT + 3):
        assert log.due()
        log.write(f"file {number:02}")
        assert not log.due()
        log.write("and more")
    log.close()
    assert not log.due()
    log.write("late")
    assert (tmp_path / "m.jsonl").read_text() == f"file {decision_log.KEPT + 2:02}\nand more\n"
    assert len(list(tmp_path.iterdir())) == decision_log.KEPT + 1


def test_the_command_says_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nonsense\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("")
    (tmp_path / "deep").write_text("[" * 100_000 + "\n")
    (tmp_path / "deep-scaling").write_text('{"log":"scaling"' + "[" * 100_000 + "\n")
    for file in ("x", "nowhere", "binary", "empty", "deep", "deep-scaling"):
        result = CliRunner().invoke(app, ["replay", str(tmp_path / file)])
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
    assert "it is empty" in CliRunner().invoke(app, ["replay", str(tmp_path / "empty")]).output


def test_a_log_that_lost_lines_goes_on_in_its_file_with_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    log = DecisionLog(tmp_path, "m", LogHealth("m"), each_line=True)
    assert log.due()
    log.write("header")
    log.lost(ValueError("no JSON"))
    assert log.due()
    log.write("second header")
    log.close()
    assert (tmp_path / "m.jsonl").read_text() == "header\nsecond header\n"


@pytest.mark.parametrize("full", [False, True])
def test_where_no_file_can_be_opened_none_is_lost(full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    path = tmp_path / "m.jsonl"
    for number in range(decision_log.KEPT + 1):
        path.with_name(f"m.jsonl.{number}" if number else "m.jsonl").write_text(f"file {number}\n")
    health = LogHealth("m")
    log = DecisionLog(tmp_path, "m", health, max_bytes=10, each_line=True)
    if full:
        assert log.due()
        log.write("a full file")
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    obstacle = tmp_path / "m.jsonl.new"
    obstacle.mkdir()
    assert log.due()
    log.write("a header that has no place")
    for _ in range(decision_log.KEPT + 2):
        assert not log.due()
        log.write("a line that has none")
    assert (log.broken, health.lost_lines) == (True, decision_log.KEPT + 3)
    assert "Is a directory" in (health.error or "")
    obstacle.rmdir()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == before
    assert log.due()
    log.write("another")
    assert not log.broken
    assert path.read_text() == "another\n"
    assert (tmp_path / "m.jsonl.1").read_text() == before["m.jsonl"]
    log.close()


def test_every_model_has_a_name_of_its_own() -> None:
    models = ("m", "org/m", "org-m", "org.m", "org_m", "org/m/", "org//m")
    assert len({in_file_name(model) for model in models}) == len(models)
    assert in_file_name("org-m_1.5") == "org-m_1.5"
    for model in models:
        assert model_in(in_file_name(model)) == model
        assert "/" not in in_file_name(model)


def test_each_line_that_is_lost_is_counted_once(tmp_path: Path) -> None:
    health = LogHealth("m")
    log = DecisionLog(tmp_path, "m", health)
    assert log.due()
    log.write("header")
    for number in range(3):
        assert not log.due()
        log.write(f"line {number}")
    (tmp_path / "m.jsonl").unlink()
    log.lost(ValueError("no JSON"))
    assert (health.lost_lines, log.broken) == (3 + 1, True), (
        "those that waited for the file, and the one that could not be made"
    )
    assert health.error == "ValueError: no JSON"
    log.write("while it is broken")
    assert health.lost_lines == 5
    log.close()


def test_a_line_of_any_text_is_written(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, "m", LogHealth("m"), each_line=True)
    assert log.due()
    log.write("header")
    log.write("half a pair: \ud800")
    log.close()
    assert (tmp_path / "m.jsonl").read_text() == "header\nhalf a pair: \\ud800\n"


def test_a_log_whose_folder_was_removed_goes_on_in_a_new_one_and_says_why_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    folder = tmp_path / "run" / "decisions"
    health = LogHealth("m")
    log = DecisionLog(folder, "m", health, each_line=True)
    assert log.due()
    log.write("header")
    shutil.rmtree(tmp_path / "run")
    log.write("a line that has no place")
    assert health.error == f"FileNotFoundError: {folder / 'm.jsonl'} was removed, or replaced by another"
    (tmp_path / "run").touch()
    assert not log.due()
    assert health.error is not None
    assert "Not a directory" in health.error, "the last reason is told"
    (tmp_path / "run").unlink()
    assert log.due()
    log.write("another header")
    log.close()
    assert (folder / "m.jsonl").read_text() == "another header\n"
    assert (health.lost_lines, health.error) == (1, None)


def test_what_a_writer_that_was_killed_left_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be no larger than what is tried for: it is written from the beginning, not behind what is there."""
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    log = DecisionLog(tmp_path, "m", LogHealth("m"), each_line=True)
    assert log.due()
    log.write("header")
    log.lost(ValueError("no JSON"))
    (tmp_path / "m.jsonl.new").write_bytes(bytes(64 << 10))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (decision_log._ROOM_BYTES, limits[1]))
    try:
        due = log.due()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert due
    log.close()
    assert [file.name for file in tmp_path.iterdir()] == ["m.jsonl"]
