"""No log takes anything with it: each writer of a log meets a full disk, a removed folder, a read-only disk, and goes
on when it can.

The writers are found in the source, so that a new one is not forgotten here.
"""

import ast
import errno
import io
import json
import logging
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from autoscaling.forecast.history import read_history
from autoscaling.log.reader import log_files
from autoscaling.log.reader import replay as replay_scaling
from autoscaling.serve.live_forecaster import LiveForecaster
from deployments.cell.act import Act, ActKind, Audit
from deployments.cell.departure import MemberKind, Ready
from deployments.cell.lifecycle_log import FILE_NAME as LIFECYCLE_FILE
from deployments.cell.lifecycle_log import LifecycleLog
from deployments.engine.step_log import StepLog
from deployments.ownership import decision_log
from deployments.ownership.decision_log import DecisionLog
from deployments.ownership.epoch_file import EpochFile
from deployments.scheduling.recorder import RecordingScheduler
from deployments.scheduling.replay import replay
from deployments.telemetry import line_log
from deployments.telemetry.journal import Journal
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LogHealth, Logs, WholeLines
from tests.autoscaling.serve.scaling_harness import ScalingHarness
from tests.deployments.scheduling.test_replay import drive
from tests.deployments.scheduling.world import POLICY, make_request
from tests.small_disk import SmallDisk, small_disk

ROOT = Path(__file__).resolve().parents[2]
LINES = 12


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that failed is tried again at once."""
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)


class Writer(Protocol):
    """One log. `raises`: whoever writes to it has to know of a failure."""

    raises: bool

    def write(self) -> None:
        """Does what makes it write."""

    def failing(self) -> bool:
        """Whether it says that it cannot be written."""

    def check(self, gaps: bool) -> None:
        """Reads it: nothing in it is torn, and what follows a gap is there."""

    def close(self) -> None:
        """Ends it."""


class Decisions:
    raises = False

    def __init__(self, folder: Path) -> None:
        self.health = LogHealth("decisions")
        self.log = DecisionLog(folder / "decisions", "m", self.health)
        self.scheduler = RecordingScheduler(POLICY, self.log.write, self.log.due, self.log.lost)
        self.twin = RecordingScheduler(POLICY, lambda line: None)
        self.number = 0
        self.path = folder / "decisions" / "m.jsonl"

    def write(self) -> None:
        self.number += 1
        for scheduler in (self.scheduler, self.twin):  # as much as fills a buffer
            for part in range(15):
                scheduler.submit(make_request(f"q{self.number}-{part}", 100), self.number)
        assert self.scheduler.step(self.number) == self.twin.step(self.number)
        assert self.scheduler.snapshot(self.number) == self.twin.snapshot(self.number)

    def failing(self) -> bool:
        return self.log.broken

    def check(self, gaps: bool) -> None:
        self.log.close()
        found = replay(self.path.read_text().splitlines(keepends=True))
        assert (found.difference, found.gaps > 0) == (None, gaps)
        last = json.loads(self.path.read_text().splitlines()[-1])
        assert last[:2] == [self.number * 10**9, "step"]

    def close(self) -> None:
        self.log.close()


class Scaling:
    raises = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        self.outcome = ScalingHarness(self.folder, 1)
        self.count = 1

    def write(self) -> None:
        self.count = 3 - self.count  # a changed spec is followed, and so written down, at once
        self.outcome.apply(policy="fixed", count=self.count)
        self.outcome.scaling.turn()
        assert self.outcome.cell.states[-1].requested == self.count

    def failing(self) -> bool:
        return "no_log" in self.outcome.cell.states[-1].alarms

    def check(self, gaps: bool) -> None:
        lines = [line for file in log_files(self.folder, "m") for line in file.read_text().splitlines(keepends=True)]
        assert replay_scaling(lines).difference is None
        assert any('"resumed"' in line[:60] for line in lines) == gaps

    def close(self) -> None:
        self.outcome.scaling.close()


class Lines:
    """A log of lines that stand alone."""

    raises = False

    def __init__(self, path: Path, health: LogHealth, write: Callable[[], None], close: Callable[[], None]) -> None:
        self.path, self.health, self._write, self.close = path, health, write, close

    def write(self) -> None:
        self._write()

    def failing(self) -> bool:
        return self.health.error is not None

    def check(self, gaps: bool) -> None:
        lines = self.path.read_text().splitlines()
        assert len([json.loads(line) for line in lines]) >= LINES
        assert (self.health.lost_lines > 0) == gaps


def access(folder: Path) -> Lines:
    logs = Logs()
    journal = Journal(folder / "logs" / "access.jsonl", None, logs)
    return Lines(
        folder / "logs" / "access.jsonl", logs.named("access"), lambda: journal.write(_ledger()), journal.close
    )


def trace(folder: Path) -> Lines:
    logs = Logs()
    journal = Journal(None, folder / "trace.jsonl", logs)
    return Lines(folder / "trace.jsonl", logs.named("trace"), lambda: journal.write(_ledger()), journal.close)


def steps(folder: Path) -> Lines:
    health = LogHealth("steps")
    log = StepLog(folder / "steps" / "s.jsonl", health)
    log.begin(64, 2_048, 65_536, 128)
    details = SimpleNamespace(num_ctx_requests=1, num_ctx_tokens=7, num_generation_requests=2)
    return Lines(folder / "steps" / "s.jsonl", health, lambda: log.write(details, 3, 4, 0.25, 12.5), log.close)


def _ledger() -> Ledger:
    ledger = Ledger(request_id="q", attempt_id="e", path="/v1/completions", arrived_s=1.0, arrived_unix_s=2.0)
    ledger.ended_s = 2.0
    return ledger


class Controls:
    """An order that cannot be written down is not put in force, and whoever gave it is told."""

    raises = True

    def __init__(self, folder: Path) -> None:
        self.audit = Audit(folder / "controls.jsonl")
        self.written = 0

    def write(self) -> None:
        self.audit.write(Act(time.time(), ActKind.HOLD, "m", "me", why="x" * 3_000, replicas=2, until_unix_s=1e10))
        self.written += 1

    def check(self, gaps: bool) -> None:
        assert len(self.audit.read()) == self.written

    def close(self) -> None:
        pass


class Arrivals:
    """Written by a thread of its own; the next one tries again."""

    raises = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "arrivals.json"
        self.live_forecaster = LiveForecaster(
            SimpleNamespace(facts=None, model=SimpleNamespace(name="m"), setup=SimpleNamespace(forecast="none")),
            self.path,
        )  # type: ignore[arg-type]
        self.unix_s = 1e9

    def write(self) -> None:
        self.unix_s += 600.0
        self.live_forecaster.look(SimpleNamespace(unix_s=self.unix_s, epoch=1, arrived_work=self.unix_s - 1e9))  # type: ignore[arg-type]
        for thread in threading.enumerate():
            if thread.name == "raylane-arrivals":
                thread.join(20)

    def check(self, gaps: bool) -> None:
        assert len(read_history(self.path)) >= LINES

    def close(self) -> None:
        pass


class Epochs:
    """Written whole each time; what it could not write it writes with the next."""

    raises = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "epochs.json"
        self.file = EpochFile(self.path)
        self.epoch = 0

    def write(self) -> None:
        self.epoch += 1
        self.file.write({f"model-{number}": self.epoch for number in range(500)})

    def check(self, gaps: bool) -> None:
        assert EpochFile(self.path).read() == {f"model-{number}": self.epoch for number in range(500)}

    def close(self) -> None:
        pass


class DeparturesOnDisk:
    """Written with the next what could not be written: nothing is missing, unless very much was."""

    raises = False

    def __init__(self, folder: Path) -> None:
        self.log = LifecycleLog(folder / LIFECYCLE_FILE)
        self.written = 0

    def write(self) -> None:
        self.log.write(Ready(MemberKind.REPLICA, "r" * 500, float(self.written), "m"))
        self.written += 1

    def failing(self) -> bool:
        return self.log.health.error is not None

    def check(self, gaps: bool) -> None:
        numbers = [round(event.at_unix_s) for event in self.log.read()]
        assert numbers == list(range(numbers[0], self.written))

    def close(self) -> None:
        pass


WRITERS: dict[str, Callable[[Path], Writer]] = {
    "decisions": Decisions,
    "scaling": Scaling,
    "access": access,  # type: ignore[dict-item]
    "trace": trace,  # type: ignore[dict-item]
    "steps": steps,  # type: ignore[dict-item]
    "controls": Controls,  # type: ignore[dict-item]
    "arrivals": Arrivals,  # type: ignore[dict-item]
    "epochs": Epochs,  # type: ignore[dict-item]
    "departure_tracker": DeparturesOnDisk,
}
"""Every file that a gateway, a replica, the directory or the controller goes on writing to."""

USERS = {
    "deployments/ownership/owner_tracker.py": ("decisions",),
    "autoscaling/log/writer.py": ("scaling",),
    "deployments/telemetry/journal.py": ("access", "trace"),
    "deployments/engine/step_log.py": ("steps",),
    "deployments/cell/act.py": ("controls",),
    "autoscaling/forecast/history.py": ("arrivals",),
    "deployments/ownership/epoch_file.py": ("epochs",),
    "deployments/cell/lifecycle_log.py": ("departure_tracker",),
}
"""Where they are written."""
BY_COMMANDS = {"deployments/telemetry/published_error.py", "deployments/engine_model/cost_file.py"}
"""These are written by commands, which end with what is wrong; what serves reads them."""


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_costs_lines_and_nothing_else(name: str, disk: SmallDisk) -> None:
    writer = WRITERS[name](disk.path)
    for _ in range(LINES):
        writer.write()
    disk.fill()
    fails(writer)
    disk.free()
    for _ in range(LINES):
        writer.write()
    assert writer.raises or name in ("arrivals", "epochs") or not writer.failing()
    writer.close()
    writer.check(gaps=True)


def write_often(writer: Writer) -> None:
    for _ in range(3):
        writer.write()


def fails(writer: Writer) -> None:
    """Writes as long as there may be room in what the file has of its last page."""
    for _ in range(10 * LINES):
        if not writer.raises:
            writer.write()
    if writer.raises:
        with pytest.raises(OSError, match="No space"):
            write_often(writer)
        with pytest.raises(OSError, match="No space"):
            writer.write()
    assert writer.raises or isinstance(writer, Arrivals | Epochs) or writer.failing()


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_is_removed_is_made_again(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    writer = WRITERS[name](folder)
    for _ in range(3):
        writer.write()
    shutil.rmtree(folder)
    if name in (
        "controls",
        "arrivals",
        "epochs",
    ):  # in the run directory itself, or beside what is there: whoever runs the cluster makes it
        folder.mkdir()
        if isinstance(writer, Controls):
            writer.written = 0
    for _ in range(2 * LINES):
        writer.write()
    writer.close()
    writer.check(gaps=name == "scaling")  # of the others' files it is the first that there is


@pytest.mark.parametrize("name", WRITERS)
def test_a_read_only_disk_from_the_start(name: str, disk: SmallDisk) -> None:
    disk.read_only(True)
    writer = WRITERS[name](disk.path)
    for _ in range(3):
        if writer.raises:
            with pytest.raises(OSError, match="Read-only"):
                writer.write()
        else:
            writer.write()
    assert writer.raises or isinstance(writer, Arrivals | Epochs) or writer.failing()
    disk.read_only(False)
    for _ in range(2 * LINES):
        writer.write()
    writer.close()
    writer.check(gaps=name != "decisions")  # whose first header is the first line that there is


ROOMS = (
    "deployments",
    "autoscaling/log",
    "autoscaling/serve",
    "autoscaling/forecast",
    "autoscaling/scaler",
    "autoscaling/policies",
)
"""What runs in a gateway, a replica, the directory or the controller."""
SHARED = {"deployments/telemetry/line_log.py", "deployments/ownership/decision_log.py"}


def test_no_other_module_writes_files() -> None:
    calls: dict[str, set[str]] = {}
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func).rpartition(".")[2]):
                modes = {
                    value.value
                    for value in (*node.args, *(keyword.value for keyword in node.keywords))
                    if isinstance(value, ast.Constant)
                }
                opens = name == "open" and (
                    ast.unparse(node.func) == "os.open"
                    or modes & {"w", "a", "x", "wb", "ab", "xb", "r+", "rb+", "a+", "ab+"}
                )
                writes = (
                    opens or name in ("write_text", "write_bytes", "NamedTemporaryFile") or name.endswith("FileHandler")
                )
                calls.setdefault("opens" if writes else name, set()).add(str(path.relative_to(ROOT)))
    users = calls["opens"].union(
        *(calls.get(name, set()) for name in ("WholeLines", "LineLog", "DecisionLog", "write_json", "write_whole"))
    )
    assert users - SHARED - BY_COMMANDS == set(USERS)
    assert sorted(name for names in USERS.values() for name in names) == sorted(WRITERS)


def test_what_was_decided_is_the_same_over_a_full_disk(disk: SmallDisk) -> None:
    """Everything that a gateway does to a scheduler, at random, while the disk is filled and emptied."""
    health = LogHealth("decisions")
    log = DecisionLog(disk.path, "m", health, max_bytes=150_000)
    asked = 0

    def due() -> bool:
        nonlocal asked
        asked += 1
        if asked % 120 == 60:
            disk.fill()
        elif asked % 120 == 0:
            disk.free()
        return log.due()

    lines: list[str] = []
    scheduler, twin = RecordingScheduler(POLICY, log.write, due, log.lost), RecordingScheduler(POLICY, lines.append)
    for one in (scheduler, twin):
        drive(one, seed=3, turns=300)
    log.close()
    assert asked == len(lines) > 400
    assert scheduler.placing.placed == twin.placing.placed > 20
    files = sorted(disk.path.glob("m.jsonl*"), reverse=True)
    found = replay(line for file in files for line in file.read_text().splitlines(keepends=True))
    assert found.difference is None
    assert found.gaps >= 3
    assert found.inputs + health.lost_lines >= len(lines)
    assert 0.2 * len(lines) < found.inputs < 0.8 * len(lines)
    for file in files:
        assert replay(file.read_text().splitlines(keepends=True)).difference is None, "each file replays alone"


class WornDisk:
    """The `os` of `whole_lines.py` over a disk that refuses things at random, also in the middle of a line, and also to
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


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_disk_refuses_the_rest_replays(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worn = WornDisk(seed)
    monkeypatch.setattr(line_log, "os", worn)
    monkeypatch.setattr(decision_log, "_BUFFER_BYTES", 2_000)
    health = LogHealth("decisions")
    log = DecisionLog(tmp_path, "m", health, max_bytes=400_000)
    lines: list[str] = []
    scheduler, twin = RecordingScheduler(POLICY, log.write, log.due, log.lost), RecordingScheduler(POLICY, lines.append)
    for one in (scheduler, twin):
        drive(one, seed, turns=250)
    log.close()
    assert scheduler.placing.placed == twin.placing.placed > 20
    files = sorted(
        tmp_path.glob("m.jsonl*"), key=lambda file: -int(file.suffix[1:]) if file.suffix[1:].isdigit() else 0
    )
    found = replay(line for file in files for line in file.read_text().splitlines(keepends=True))
    assert found.difference is None
    assert worn.refused > 5
    assert found.gaps > 0
    assert health.lost_lines > 0
    assert len(lines) - health.lost_lines <= found.inputs < len(lines)


def test_an_order_that_is_not_on_the_disk_is_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be in force after a restart, though its operator was told that it is not."""
    audit = Audit(tmp_path / "controls.jsonl")
    audit.write(Act(1.0, ActKind.CORDON, "m", "me", replica_id="r1"))

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        audit.write(Act(2.0, ActKind.CORDON, "m", "me", replica_id="r2"))
    assert [act.replica_id for act in audit.read()] == ["r1"]


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


def test_a_torn_line_before_a_header_is_passed_over() -> None:
    lines: list[str] = []
    scheduler = RecordingScheduler(POLICY, lines.append)
    scheduler.begin(5.0)
    scheduler.submit(make_request("a", 100), 5.1)
    scheduler.submit(make_request("b", 100), 5.2)
    scheduler.begin(5.3)
    scheduler.step(5.4)
    whole = replay(lines)
    assert (whole.inputs, whole.gaps) == (3, 0)
    torn = replay([lines[0], lines[1], lines[2][:40], *lines[3:]])
    assert (torn.inputs, torn.gaps, torn.difference) == (2, 1, None)
    assert replay([*lines[:2], lines[2][:40]]).inputs == 1


def test_a_log_that_fails_is_told_once_and_counted(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    logs = Logs()
    (tmp_path / "logs").write_text("no folder")
    journal = Journal(tmp_path / "logs" / "access.jsonl", None, logs)
    with caplog.at_level(logging.INFO, "raylane.logs"):
        for _ in range(5):
            journal.write(_ledger())
        (tmp_path / "logs").unlink()
        journal.write(_ledger())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    samples = {
        (sample.name, sample.labels["log"]): sample.value for family in logs.collect() for sample in family.samples
    }
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
