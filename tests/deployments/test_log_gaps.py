"""What is lost of a log on a failing disk is a gap in it: what stands around the gap replays, and what runs notices
nothing."""

import errno
import io
import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments import decision_log
from deployments.decision_log import DecisionLog, log_files, read_log
from deployments.decisions import Entry, replay
from deployments.scheduling.recorder import SCHEDULING, RecordingScheduler
from deployments.telemetry import line_log
from deployments.telemetry.journal import Journal
from deployments.telemetry.line_log import LogHealth, Logs, WholeLines
from tests.deployments.log_writers import ended_ledger
from tests.deployments.scheduling.test_replay import drive
from tests.deployments.scheduling.world import POLICY
from tests.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that failed is tried again at once."""
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)


class WornDisk:
    """The `os` of `line_log.py` over a disk that refuses things at random, also in the middle of a line, and also to
    take it back."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.refused = 0
        self.kept = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, *arguments: Any) -> int:
        self._refuse(0.1, errno.EACCES)
        return os.open(*arguments)

    def stat(self, path: Path) -> os.stat_result:
        self._refuse(0.02, errno.EIO)
        return os.stat(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._refuse(0.25, errno.ENOSPC)
        return os.write(
            descriptor, data[: self._dice.randrange(1, len(data) + 1)] if self._dice.random() < 0.5 else data
        )

    def ftruncate(self, descriptor: int, length: int) -> None:
        self.kept += 1
        self._refuse(0.5, errno.EIO)
        self.kept -= 1
        os.ftruncate(descriptor, length)

    def _refuse(self, chance: float, number: int) -> None:
        if self._dice.random() < chance:
            self.refused += 1
            raise OSError(number, os.strerror(number))


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_disk_refuses_the_rest_replays(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worn = WornDisk(seed)
    monkeypatch.setattr(line_log, "os", worn)
    monkeypatch.setattr(decision_log, "_BUFFER_BYTES", 2_000)
    health = LogHealth("decisions")
    log = DecisionLog(tmp_path, "m", health, max_bytes=80_000)
    entries: list[Entry] = []
    scheduler = RecordingScheduler(POLICY, log.write, log.due, log.lost)
    twin = RecordingScheduler(POLICY, entries.append)
    for one in (scheduler, twin):
        drive(one, seed, turns=250)
    log.close()
    assert scheduler.placing.placed == twin.placing.placed > 20
    found = replay(read_log(log_files(tmp_path, "m")), (SCHEDULING,))
    assert found.difference is None
    assert worn.refused > 5
    assert found.gaps > 0
    assert health.lost_lines > 0
    assert len(entries) - health.lost_lines <= found.inputs < len(entries)


def test_what_a_killed_writer_left_is_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"whole\nto")
    file = WholeLines(path)
    file.add(b"next\n")
    file.add(b"more\n")
    file.close()
    assert path.read_bytes() == b"whole\nto\nnext\nmore\n"


def test_what_another_process_added_is_not_cut_away(disk: SmallDisk) -> None:
    path = disk.path / "lines"
    mine, other = WholeLines(path), WholeLines(path)
    mine.add(b"a\n")
    other.add(b"b\n")
    disk.fill()
    with pytest.raises(OSError, match="No space"):
        mine.add(b"x" * 9_000 + b"\n")
    assert path.read_bytes() == b"a\nb\n"
    disk.free()
    mine.add(b"c\n")
    assert path.read_bytes() == b"a\nb\nc\n"
    mine.close()
    other.close()


def test_a_log_that_fails_is_told_once_and_counted(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    logs = Logs()
    (tmp_path / "logs").write_text("no folder")
    journal = Journal(tmp_path / "logs" / "access.jsonl", None, logs)
    with caplog.at_level(logging.INFO, "raylane.logs"):
        for _ in range(5):
            journal.write(ended_ledger())
        (tmp_path / "logs").unlink()
        journal.write(ended_ledger())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    samples = {(metric.shown, *labels): value for metric, labels, value in logs.samples()}
    assert samples == {("raylane_log_lines_lost_total", "access"): 5, ("raylane_log_failing", "access"): 0}
    journal.close()


def test_a_broken_pipe_under_stderr_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Broken())
    handler = logging.StreamHandler(Broken())
    line_log.log.addHandler(handler)
    try:
        health = LogHealth("any")
        health.lost(3, OSError("full"))
        assert (health.lost_lines, health.error) == (3, "OSError: full")
    finally:
        line_log.log.removeHandler(handler)
