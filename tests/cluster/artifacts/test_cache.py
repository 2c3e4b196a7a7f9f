"""The cache: whole or not there, leases by live processes, the limit, and what goes first."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.artifacts import ArtifactError, Held, ModelCache
from cluster.artifacts.manifest import CachedFile, Manifest

KIB = 1 << 10
HOLD = """
import sys, time
from pathlib import Path
from cluster.artifacts import ModelCache
held = ModelCache(Path(sys.argv[1])).hold(sys.argv[2])
print(held is not None, flush=True)
time.sleep(60)
"""


def put(
    cache: ModelCache, name: str, size: int = 100 * KIB, used_at: float | None = None, source: str | None = None
) -> Held:
    """Publishes an entry of one file."""
    source = source or f"s3://b/{name}"
    with cache.downloading(name) as partial:
        cache.make_room(name, source, size)
        (partial / "files" / "weights").write_bytes(b"x" * size)
        file = CachedFile(name="weights", size=size, tag="t", crc64nvme=0, checked_by="nothing")
        held = cache.publish(name, Manifest(source=source, version="1", files=(file,), boot_id=None))
    if used_at is not None:
        os.utime(held.entry / "lease", (used_at, used_at))
    return held


@contextmanager
def another_process_holds(folder: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", HOLD, folder, name], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        try:
            yield process
        finally:
            process.kill()


def names(cache: ModelCache) -> set[str]:
    return {entry.name for entry in cache.list()}


def test_an_entry_appears_whole_and_is_in_use_at_once(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    assert cache.hold("a") is None
    held = put(cache, "a")
    (entry,) = cache.list()
    assert (entry.whole, entry.in_use, entry.size, entry.source) == (True, True, 100 * KIB, "s3://b/a")
    held.release()
    assert not cache.list()[0].in_use
    again = cache.hold("a")
    assert again is not None
    assert again.manifest().version == "1"
    again.release()


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 350 * KIB)
    for name, used_at in (("a", 100.0), ("b", 300.0), ("c", 200.0)):
        put(cache, name, used_at=used_at).release()
    put(cache, "d").release()
    assert names(cache) == {"b", "c", "d"}
    held = cache.hold("c")
    assert held is not None
    held.release()
    put(cache, "e").release()
    assert names(cache) == {"c", "d", "e"}


@pytest.mark.whole
def test_what_a_process_uses_never_goes_until_it_is_killed(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 250 * KIB)
    put(cache, "a", used_at=1.0).release()
    put(cache, "b", used_at=2.0).release()
    with another_process_holds(tmp_path, "a") as process:
        put(cache, "c").release()
        assert names(cache) == {"a", "c"}
        with pytest.raises(ArtifactError, match="a running process uses it"):
            cache.evict("a")
        with pytest.raises(ArtifactError, match=r"max_gib = .* leaves no room beside what is in use: a \("):
            put(cache, "big", 200 * KIB)
        assert names(cache) == {"a", "c"}, "nothing goes for what does not fit anyway"
        process.send_signal(signal.SIGKILL)
        process.wait()
    os.utime(tmp_path / "entries" / "a" / "lease", (1.0, 1.0))
    put(cache, "d").release()
    assert names(cache) == {"c", "d"}


def test_more_than_the_limit_is_refused_before_anything_goes(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 250 * KIB)
    put(cache, "a").release()
    with pytest.raises(ArtifactError, match=r"larger than artifacts\.max_gib = .*; allowed: a higher limit"):
        put(cache, "b", 300 * KIB)
    assert "a" in names(cache)


def test_a_download_that_runs_counts_as_whole_and_one_that_broke_off_may_go(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 250 * KIB)
    with cache.downloading("a") as partial:
        cache.make_room("a", "s3://b/a", 200 * KIB)
        (partial / "files" / "weights").write_bytes(b"x" * 10 * KIB)
        with pytest.raises(ArtifactError, match="leaves no room"):
            put(cache, "b")
    assert [(one.whole, one.in_use) for one in cache.list() if one.name == "a"] == [(False, False)]
    put(cache, "c", 249 * KIB).release()
    assert "a" not in names(cache)


def test_a_broken_off_download_of_an_older_version_goes(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    with cache.downloading("old"):
        cache.make_room("old", "s3://b/new", KIB)
    put(cache, "new").release()
    assert names(cache) == {"new"}


@pytest.mark.whole
def test_a_lease_that_is_taken_while_the_entry_goes_is_none(tmp_path: Path) -> None:
    """Whoever opened the lease's file before the entry went must not believe that it still has it."""
    cache = ModelCache(tmp_path)
    stop = threading.Event()
    lost = []

    def use() -> None:
        while not stop.is_set():
            if (held := cache.hold("a")) is not None:
                if not (held.files / "weights").exists():
                    lost.append(held)
                held.release()
            time.sleep(0.001)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        put(cache, "a").release()
        while "a" in names(cache):
            try:
                cache.evict("a")
            except ArtifactError:  # in use just now
                time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert lost == []


def test_evict_names_what_there_is(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    put(cache, "a").release()
    with pytest.raises(ArtifactError, match=r"entry 'b': not in .*; there are: a"):
        cache.evict("b")
    cache.evict("a")
    assert names(cache) == set()
    assert not list((tmp_path / "trash").iterdir())


def test_an_entry_with_a_manifest_that_cannot_be_read_may_go(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 150 * KIB)
    put(cache, "a").release()
    (tmp_path / "entries" / "a" / "manifest.json").write_text("{")
    assert cache.list()[0].source == "unreadable"
    put(cache, "b").release()
    assert names(cache) == {"b"}


def test_the_newest_of_a_source_is_its_entry_used_last(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    for name, source, used_at in (("old", "s3://b/m", 10.0), ("new", "s3://b/m", 20.0), ("other", "s3://b/n", 30.0)):
        put(cache, name, used_at=used_at, source=source).release()
    found = cache.newest("s3://b/m")
    assert found is not None
    assert found.entry.name == "new"
    found.release()
    assert cache.newest("s3://b/none") is None


def test_an_entry_without_its_lease_file_can_be_used_and_removed(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    put(cache, "a").release()
    (tmp_path / "entries" / "a" / "lease").unlink()
    held = cache.hold("a")
    assert held is not None
    assert [entry.in_use for entry in cache.list()] == [True]
    held.release()
    (tmp_path / "entries" / "a" / "lease").unlink()
    cache.evict("a")
    put(cache, "a").release()


def test_files_that_somebody_else_has_put_there_are_no_entries(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path, 150 * KIB)
    for name in ("entries", "partial", "trash"):
        (tmp_path / name / "notes.txt").write_text("not an entry")
    put(cache, "a").release()
    put(cache, "b").release()
    assert names(cache) == {"b"}
    assert cache.hold("notes.txt") is None


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"artifacts\.cache = .*: Not a directory .*; allowed: a folder"):
        ModelCache(tmp_path / "file" / "cache")
