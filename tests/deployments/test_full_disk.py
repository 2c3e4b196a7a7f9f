"""No log takes anything with it: each writer of a log meets a full disk, a removed folder, a read-only disk, and goes
on when it can.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments import decision_log
from deployments.engine.start_clock import announced
from deployments.starts.phases import Phase
from tests.deployments.log_writers import LINES, WRITERS, Arrivals, Store, Writer
from tests.small_disk import SIZE, SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 2 * SIZE) as disk:
        yield disk


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that failed is tried again at once."""
    monkeypatch.setattr(decision_log, "RETRY_S", 0.0)


@pytest.mark.whole
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
    assert writer.raises or name == "arrivals" or not writer.failing()
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
    assert writer.raises or isinstance(writer, Arrivals) or writer.failing()


@pytest.mark.whole
@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_is_removed_is_made_again(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    writer = WRITERS[name](folder)
    for _ in range(3):
        writer.write()
    shutil.rmtree(folder)
    if name == "arrivals":  # in the run directory itself: whoever runs the cluster makes it
        folder.mkdir()
    for _ in range(2 * LINES):
        writer.write()
    if isinstance(writer, Store):
        writer.removed = 3
    writer.close()
    writer.check(gaps=False)  # of what is left the first file is the first that there is


@pytest.mark.whole
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
    assert writer.raises or isinstance(writer, Arrivals) or writer.failing()
    disk.read_only(False)
    for _ in range(2 * LINES):
        writer.write()
    writer.close()
    writer.check(gaps=name not in ("decisions", "scaling"))  # whose first header is the first entry that there is


def test_a_full_or_removed_folder_fails_no_start(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
    disk.fill()
    with announced(Phase.LOAD):
        pass
    monkeypatch.setattr(tempfile, "tempdir", str(disk.path / "gone"))
    with announced(Phase.LOAD):
        pass
