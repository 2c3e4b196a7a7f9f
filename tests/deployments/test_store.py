"""The cell's store: what one directory keeps the next one reads, whatever happens to the file, the disk or the process
meanwhile."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deployments import store as stores
from deployments.cell.act import Act, ActKind, Audit
from deployments.store import CellStore, CellStoreError, KeptValue, kept_in, reader
from deployments.wire import Natural
from tests.small_disk import small_disk

Epochs = dict[str, Natural]


def epochs_in(store: CellStore) -> KeptValue[Epochs]:
    return KeptValue(store, "epochs", Epochs)


def read_again(path: Path) -> Epochs:
    """As the next directory does."""
    after = CellStore(path)
    try:
        return epochs_in(after).read()
    finally:
        after.close()


def test_what_one_directory_wrote_the_next_one_reads(tmp_path: Path) -> None:
    path = tmp_path / "home" / "run" / "cell.sqlite"
    assert kept_in(path, "epochs", Epochs) == {}
    first = CellStore(path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert epochs_in(first).read() == {}
    assert epochs_in(first).write({"demo": 3, "org/mödel": 0})
    assert epochs_in(first).write({"demo": 4})
    assert path.stat().st_mode & 0o777 == 0o600
    with reader(path) as file:
        assert file.execute("select count(*) from kept").fetchone() == (1,)
    first.close()
    assert read_again(path) == {"demo": 4}
    assert (kept_in(path, "epochs", Epochs), kept_in(path, "others", Epochs)) == ({"demo": 4}, {})
    with reader(path) as file:  # its cell is down
        assert file.execute("select name from kept").fetchone() == ("epochs",)


def test_the_same_again_is_not_written(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cell.sqlite")
    kept = epochs_in(store)
    kept.write({"demo": 3})
    before = store.rows("select total_changes()")
    kept.write({"demo": 3})
    assert store.rows("select total_changes()") == before
    store.close()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_file_that_is_begun_anew_gets_all_that_is_in_force(tmp_path: Path, is_damaged: bool) -> None:
    path = tmp_path / "cell.sqlite"
    store = CellStore(path)
    assert epochs_in(store).write({"demo": 3})
    kept = epochs_in(store)
    assert kept.read() == {"demo": 3}
    for one in tmp_path.glob("cell.sqlite*"):
        one.write_bytes(b"x" * 9_999) if is_damaged else one.unlink()
    for _ in range(2):  # damage is noticed by the first
        kept.write({"demo": 3})
    store.close()
    assert read_again(path) == {"demo": 3}


def test_without_a_path_it_lasts_as_long_as_its_directory() -> None:
    store = CellStore(None)
    epochs_in(store).write({"demo": 3})
    assert epochs_in(store).read() == {"demo": 3}
    assert epochs_in(CellStore(None)).read() == {}


def test_one_directory_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_LOCKED_S", 0.3)
    first = CellStore(tmp_path / "cell.sqlite")
    with pytest.raises(CellStoreError, match=r"cell\.sqlite: another directory writes it"):
        CellStore(tmp_path / "cell.sqlite")
    first.close()
    CellStore(tmp_path / "cell.sqlite").close()


def test_another_version_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "cell.sqlite"
    CellStore(path).close()
    with sqlite3.connect(path) as file:
        file.execute("pragma user_version = 7")
    file.close()
    with pytest.raises(CellStoreError, match="version 7; allowed: 3"):
        CellStore(path)
    with pytest.raises(CellStoreError, match="version 7; allowed: 3"), reader(path):
        pass


def test_a_disk_of_other_machines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = psutil.disk_partitions(all=True)[0]
    mounts = [
        here._replace(mountpoint="/", fstype="ext4"),
        here._replace(mountpoint=str(tmp_path), fstype="nfs4"),
        here._replace(mountpoint=str(tmp_path) + "/other", fstype="ext4"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    with pytest.raises(CellStoreError, match=r"is on nfs4; allowed: a local disk"):
        CellStore(tmp_path / "run" / "cell.sqlite")


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\x00" + b"\xff" * 5_000])
def test_a_file_that_is_none_is_set_aside(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cell.sqlite"
    path.write_bytes(content)
    with pytest.raises(CellStoreError, match=r"allowed: the cell\.sqlite of a cell"), reader(path) as file:
        file.execute("select * from kept").fetchall()
    store = CellStore(path)
    epochs_in(store).write({"demo": 3})
    store.close()
    assert read_again(path) == {"demo": 3}
    assert (tmp_path / "cell.sqlite.broken").read_bytes() == content
    assert "is set aside" in caplog.text


async def test_a_damaged_page_is_an_error_of_the_disk_for_who_asks(tmp_path: Path) -> None:
    path = tmp_path / "cell.sqlite"
    CellStore(path).close()
    with reader(path) as file:
        ((page,),) = file.execute("select rootpage from sqlite_master where name = 'kept'")
    with path.open("r+b") as raw:
        raw.seek((page - 1) * 4_096)
        raw.write(b"x" * 4_096)
    store = CellStore(path)
    with pytest.raises(OSError, match=r"cell\.sqlite: .*malformed"):
        await store.ask(lambda file: file.execute("select * from kept").fetchall())
    store.close()


def test_a_row_that_is_none_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CellStore(tmp_path / "cell.sqlite")
    store.write(lambda file: file.execute("insert into kept values ('epochs', ?)", (b"\x81\xa4demo\xff",)))
    assert epochs_in(store).read() == {}
    assert "epochs: left out" in caplog.text
    store.close()


def test_there_is_nothing_to_read_where_no_cell_was(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cell\.sqlite"), reader(tmp_path / "cell.sqlite"):
        pass


@pytest.mark.parametrize("pages", range(0, 12, 2))
def test_a_full_disk_costs_what_is_not_written_and_nothing_else(tmp_path: Path, pages: int) -> None:
    """There is room for so many pages more."""
    with small_disk(tmp_path / "disk") as disk:
        path = disk.path / "cell.sqlite"
        store = CellStore(path)
        kept = epochs_in(store)
        assert kept.write({"demo": 1})
        disk.fill(pages)
        last = 1
        for epoch in range(2, 40):
            if kept.write({"demo": epoch, "much": 1 << 60, "x" * 3_000: epoch}):
                last = epoch
            assert epochs_in(store).read()["demo"] == last
        assert last < 39
        assert store.health.error is not None
        store.close()
        assert read_again(path)["demo"] == last, "another directory can begin, too"
        disk.free()
        store = CellStore(path)
        assert epochs_in(store).write({"demo": 99})
        store.close()
        assert read_again(path) == {"demo": 99}


@pytest.mark.parametrize("pages", [0, 1, 4])
@pytest.mark.parametrize("before", [{}, {"demo": 3}])
def test_a_directory_that_begins_without_room_knows_what_is_there(tmp_path: Path, before: Epochs, pages: int) -> None:
    """The one before it had ended in order, so that nothing lies beside the file; or there was none."""
    with small_disk(tmp_path / "disk") as disk:
        path = disk.path / "cell.sqlite"
        if before:
            store = CellStore(path)
            assert epochs_in(store).write(before)
            store.close()
            disk.read_only(True)
            assert read_again(path) == before
            disk.read_only(False)
        disk.fill(pages)
        store = CellStore(path)
        kept = epochs_in(store)
        assert kept.read() == before
        assert not kept.write({"demo": 4})
        disk.free()
        assert kept.read() == before
        assert kept.write({"demo": 4})
        assert store.health.error is None
        store.close()
        assert read_again(path) == {"demo": 4}


WRITER = """
import sys
from pathlib import Path
from deployments.store import CellStore, KeptValue
store = CellStore(Path(sys.argv[1]))
kept = KeptValue(store, "epochs", dict[str, int])
epoch = kept.read().get("demo", 0)
while True:
    epoch += 1
    assert kept.write({"demo": epoch})
    print(epoch, flush=True)
"""


def kill_a_writer(path: Path, after_lines: int) -> int:
    """The last epoch that a process told of before it was killed."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(after_lines):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    told = [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    writer.wait()
    writer.stdout.close()
    return max(told, default=0)


@pytest.mark.whole
@pytest.mark.parametrize("kills", [pytest.param(3), pytest.param(1_000, marks=pytest.mark.long)])
def test_what_was_told_survives_a_kill(tmp_path: Path, kills: int) -> None:
    path, highest = tmp_path / "cell.sqlite", 0
    for number in range(kills):
        highest = max(highest, kill_a_writer(path, 2 + number % 7))
        found = read_again(path)["demo"]
        assert found >= highest, "an epoch that somebody has heard of is never issued again"
        highest = found


def test_an_order_that_is_not_on_the_disk_is_not_in_force(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = CellStore(disk.path / "cell.sqlite")
        audit = Audit(store)
        audit.write(Act(1.0, ActKind.CORDON, "m", "me", replica_id="r1"))
        disk.fill()
        refused = Act(2.0, ActKind.CORDON, "m", "me", why="x" * 90_000, replica_id="r2")
        with pytest.raises(OSError, match="full"):
            audit.write(refused)
        assert [act.replica_id for act in audit.read()] == ["r1"]
        store.close()
        after = CellStore(disk.path / "cell.sqlite")
        assert [act.replica_id for act in Audit(after).read()] == ["r1"]
        after.close()
