"""The files of a decision log: one after the other, over full disks, removed folders and killed writers."""

import resource
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from deployments import decision_log
from deployments.decision_log import DecisionLog, in_file_name, log_files, model_in, path_parts, read_log
from deployments.decisions import Entry, Header, Input
from deployments.telemetry.line_log import LogHealth
from deployments.wire import encode


def header(state: bytes = b"state", inputs: int = 0) -> Header:
    return Header("scheduling", "code", 1.0, state, inputs)


def entry(number: int) -> Input:
    return Input(float(number), "step", b"\x90", b"\xc0")


def contents(folder: Path) -> list[Entry]:
    return list(read_log(log_files(folder, "m")))


def test_a_full_file_is_followed_by_another_and_the_oldest_goes(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, "m", LogHealth("m"), max_bytes=10)
    for number in range(decision_log.KEPT + 3):
        assert log.due()
        log.write(header(inputs=number))
        log.write(entry(number))
    log.close()
    assert not log.due()
    log.write(entry(99))
    kept = range(2, decision_log.KEPT + 3)
    assert [path_parts(path) for path in log_files(tmp_path, "m")] == [("m", 1 + number) for number in kept]
    assert contents(tmp_path) == [one for number in kept for one in (header(inputs=number), entry(number))]
    assert len(list(tmp_path.iterdir())) == decision_log.KEPT + 1


def test_what_repeats_takes_little_room_and_is_read_from_the_last_header_alone(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, "m", LogHealth("m"), at_once=True)
    for number in range(1_000):
        if number % 400 == 0:
            log.due()
            log.write(header(bytes(1_000), number))
        log.write(entry(number))
        assert number % 250 or contents(tmp_path)[-1] == entry(number), "it is read while it is written"
    (path,) = log_files(tmp_path, "m")
    assert path.stat().st_size < 0.5 * sum(len(encode(one)) for one in contents(tmp_path))
    last = list(read_log([path], last_header=True))
    assert last == [header(bytes(1_000), 800), *(entry(number) for number in range(800, 1_000))]
    log.close()


def test_the_command_says_what_is_no_log(tmp_path: Path) -> None:
    other = b"raylane decisions 0\n"
    for name, content in {"x": b"nonsense\n", "binary": b"\xff\xfe\x00", "empty": b"", "another": other}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "no-entry").write_bytes(decision_log.VERSION)
    (tmp_path / "damaged").write_bytes(decision_log.VERSION + b"H" + bytes(8))
    for file in ("x", "nowhere", "binary", "empty", "another", "no-entry", "damaged"):
        result = CliRunner().invoke(app, ["replay", str(tmp_path / file)])
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
    refusal = "".join(CliRunner().invoke(app, ["replay", str(tmp_path / "another")]).output.split())
    assert "b'raylanedecisions0\\n';allowed:b'raylanedecisions1\\n'" in refusal


def test_a_log_that_lost_entries_goes_on_in_its_file_with_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    log = DecisionLog(tmp_path, "m", LogHealth("m"), at_once=True)
    assert log.due()
    log.write(header())
    log.lost(ValueError("no entry"))
    assert log.due()
    log.write(header(inputs=1))
    log.close()
    assert contents(tmp_path) == [header(), header(inputs=1)]
    assert len(log_files(tmp_path, "m")) == 1


@pytest.mark.parametrize("full", [False, True])
def test_where_no_file_can_be_opened_none_is_lost(full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    for number in range(decision_log.KEPT + 1):
        (tmp_path / f"m.{number:06}.log").write_text(f"file {number}\n")
    health = LogHealth("m")
    log = DecisionLog(tmp_path, "m", health, max_bytes=10, at_once=True)
    if full:
        assert log.due()
        log.write(header())
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    obstacle = tmp_path / "m.new"
    obstacle.mkdir()
    assert log.due()
    log.write(header(inputs=1))
    for number in range(decision_log.KEPT + 2):
        assert not log.due()
        log.write(entry(number))
    assert (log.broken, health.lost_lines) == (True, decision_log.KEPT + 3)
    assert "Is a directory" in (health.error or "")
    obstacle.rmdir()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert log.due()
    log.write(header(inputs=2))
    assert not log.broken
    files = log_files(tmp_path, "m")
    assert list(read_log(files[-1:])) == [header(inputs=2)]
    assert (len(files), files[-2].read_bytes()) == (decision_log.KEPT + 1, before[files[-2].name])
    log.close()


def test_every_model_has_a_name_of_its_own() -> None:
    models = ("m", "org/m", "org-m", "org.m", "org_m", "org/m/", "org//m")
    assert len({in_file_name(model) for model in models}) == len(models)
    assert in_file_name("org-m_1.5") == "org-m_1.5"
    for model in models:
        assert model_in(in_file_name(model)) == model
        assert "/" not in in_file_name(model)


def test_what_a_writer_that_was_killed_left_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be no larger than what is tried for: it is written from the beginning, not behind what is there."""
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)
    log = DecisionLog(tmp_path, "m", LogHealth("m"), at_once=True)
    assert log.due()
    log.write(header())
    log.lost(ValueError("no entry"))
    (tmp_path / "m.new").write_bytes(bytes(64 << 10))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (decision_log._ROOM_BYTES, limits[1]))
    try:
        due = log.due()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert due
    log.close()
    assert [file.name for file in tmp_path.iterdir()] == ["m.000001.log"]
