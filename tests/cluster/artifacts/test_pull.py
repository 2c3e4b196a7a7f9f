"""From a folder into the cache, as from any other source: once, whole, continued, checked, and on a full disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.artifacts import ArtifactError, ModelCache, StorageUnavailable, local_files, manifest
from cluster.artifacts import pull as module
from cluster.artifacts.folder import FolderOrigin
from cluster.artifacts.manifest import RemoteFile, checked_listing, entry_name, version_of
from cluster.artifacts.pull import damage, origin_of, pull
from cluster.spec import Artifacts
from tests.small_disk import small_disk

KIB = 1 << 10


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights").write_bytes(os.urandom(300 * KIB))
    (folder / ".hidden").write_text("not wanted")
    return folder


@pytest.fixture
def damaged(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    """Weights that a power failure has kept from the disk, at the boot after it."""
    cache = ModelCache(tmp_path / "cache")
    held = pull(origin(source), cache)
    (held.files / "sub" / "weights").write_bytes(bytes(300 * KIB))
    held.release()
    monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    return cache


def settings(cache: Path, **values: object) -> Artifacts:
    return Artifacts.model_validate({"cache": str(cache), "copy_folders": True, **values})


def origin(source: Path) -> FolderOrigin:
    return FolderOrigin(str(source))


def test_a_folder_is_copied_and_checked(source: Path, tmp_path: Path) -> None:
    found = local_files(str(source), settings(tmp_path / "cache"))
    assert found.held is not None
    copy = Path(found.path)
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()) == [
        "config.json",
        "sub/weights",
    ]
    assert (copy / "sub" / "weights").read_bytes() == (source / "sub" / "weights").read_bytes()
    assert damage(found.held, read=True) == []
    again = local_files(str(source), settings(tmp_path / "cache"))
    assert again.path == found.path


def test_a_folder_is_used_where_it_is_unless_asked_otherwise(source: Path, tmp_path: Path) -> None:
    found = local_files(str(source), Artifacts(cache=str(tmp_path / "cache")))
    assert (found.path, found.held) == (str(source), None)
    assert local_files("demo", settings(tmp_path / "cache")).held is None
    assert not (tmp_path / "cache").exists()


def test_a_changed_source_is_another_entry(source: Path, tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "cache")
    first = pull(origin(source), cache)
    (source / "config.json").write_text('{"a": 1}')
    second = pull(origin(source), cache)
    assert first.files != second.files
    assert (first.files / "config.json").read_text() == "{}"


@pytest.mark.parametrize("in_use", [False, True])
def test_a_damaged_entry_is_fetched_again(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, in_use: bool
) -> None:
    cache = ModelCache(tmp_path / "cache")
    held = pull(origin(source), cache)
    (held.files / "config.json").write_text("truncated or longer")
    assert damage(held) == ["config.json: 19 bytes, not 2"]
    if not in_use:
        held.release()
    again = pull(origin(source), cache)
    assert (again.files / "config.json").read_text() == "{}"
    assert list((tmp_path / "cache" / "trash").iterdir()) == []
    assert "config.json: 19 bytes, not 2" in caplog.text


def test_after_a_power_failure_what_was_not_written_is_noticed(
    source: Path, damaged: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later boot reads an entry's files once, and keeps that it has."""
    again = pull(origin(source), damaged)
    assert (again.files / "sub" / "weights").read_bytes() == (source / "sub" / "weights").read_bytes()
    again.release()
    monkeypatch.setattr(module, "boot_id", lambda: "a third one")
    third = pull(origin(source), damaged)
    assert third.manifest().boot_id is None
    third.release()
    reads = []
    monkeypatch.setattr(manifest, "crc_of", reads.append)
    pull(origin(source), damaged).release()
    assert reads == []


def test_a_full_disk_says_so_and_the_next_pull_goes_on(source: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        cache = ModelCache(disk.path / "cache")
        disk.fill()
        with pytest.raises(ArtifactError, match=r"(disk of .* is full; free some space|GiB are missing)"):
            pull(origin(source), cache)
        disk.free()
        held = pull(origin(source), cache)
        assert damage(held, read=True) == []


def test_a_disk_that_fills_up_meanwhile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room was there when it was looked for, and others took it."""
    monkeypatch.setattr(ModelCache, "_fits_disk", lambda self, missing: True)
    (source / "sub" / "weights").write_bytes(os.urandom(900 * KIB))
    with small_disk(tmp_path / "disk") as disk:
        cache = ModelCache(disk.path / "cache")
        (disk.path / "others").write_bytes(bytes(400 * KIB))
        with pytest.raises(ArtifactError, match=r"disk of .* is full; free some space; what is whole is kept"):
            pull(origin(source), cache)
        assert [entry.whole for entry in cache.list()] == [False]
        (disk.path / "others").unlink()
        assert damage(pull(origin(source), cache), read=True) == []


def test_too_large_for_the_disk_is_said_before_a_byte_is_fetched(source: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        cache = ModelCache(disk.path / "cache")
        (source / "huge").write_bytes(bytes(2 << 20))
        with pytest.raises(ArtifactError, match=r"are missing, and the disk of .* has .* free; in use: nothing"):
            pull(origin(source), cache)
        assert list((disk.path / "cache").rglob("huge")) == []


EIGHT = """
import sys
from pathlib import Path
from cluster.artifacts import ModelCache
from cluster.artifacts.folder import FolderOrigin
from cluster.artifacts.pull import pull
fetched = []
origin = FolderOrigin(sys.argv[1])
fetch = origin.fetch
origin.fetch = lambda *args: (fetched.append(1), fetch(*args))[1]
pull(origin, ModelCache(Path(sys.argv[2])))
print(len(fetched))
"""


@pytest.mark.whole
def test_eight_processes_fetch_once(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", EIGHT, source, tmp_path / "cache"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    assert sorted(process.communicate()[0] for process in processes) == ["0\n"] * 7 + ["1\n"]
    assert [entry.whole for entry in ModelCache(tmp_path / "cache").list()] == [True]


class Unreachable:
    """An origin whose store is down."""

    source = "s3://bucket/prefix"

    def listing(self) -> tuple[RemoteFile, ...]:
        raise StorageUnavailable("s3://bucket/prefix: cannot be reached")


def test_a_store_that_is_down_does_not_keep_a_replica_from_its_own_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "origin_of", lambda *_: Unreachable())
    with pytest.raises(StorageUnavailable):
        local_files("s3://bucket/prefix", settings(tmp_path / "cache"))
    there = origin(source)
    listed = there.listing()
    there.source, there.listing = Unreachable.source, lambda: listed  # type: ignore[method-assign]
    held = pull(there, ModelCache(tmp_path / "cache"))
    monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    found = local_files("s3://bucket/prefix", settings(tmp_path / "cache"))
    assert found.path == str(held.files)
    assert "cannot be reached; this node's own copy is used" in caplog.text
    assert held.manifest().boot_id is None, "was read"


def test_a_copy_that_a_power_failure_damaged_is_not_used_while_the_store_is_down(
    source: Path, damaged: ModelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unreachable, "source", str(source))
    monkeypatch.setattr(module, "origin_of", lambda *_: Unreachable())
    with pytest.raises(StorageUnavailable):
        local_files(str(source), settings(tmp_path / "cache"))
    assert [entry.in_use for entry in damaged.list()] == [False]


def test_a_folder_that_is_away_does_not_keep_a_replica_from_its_own_copy(source: Path, tmp_path: Path) -> None:
    held = local_files(str(source), settings(tmp_path / "cache"))
    source.rename(tmp_path / "away")
    assert local_files(str(source), settings(tmp_path / "cache")).path == held.path
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        local_files(str(source), settings(tmp_path / "another"))


def test_offline_hub_names_are_left_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert origin_of("org/model", settings(tmp_path)) is None
    assert local_files("org/model", settings(tmp_path)).path == "org/model"


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_revision_is_left_to_the_engine_as_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    known, commit = tmp_path / "hub" / "models--org--model", "0" * 40
    snapshot = known / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (known / "refs").mkdir()
    (known / "refs" / "v1").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    assert local_files("org/model@v1", settings(tmp_path)).path == str(snapshot)
    with pytest.raises(ArtifactError, match="source 'org/model@v2': the hub cannot be used"):
        local_files("org/model@v2", settings(tmp_path))


@pytest.mark.parametrize("name", ["../up", "a/../b", "/etc/passwd", "a//b", "./a", "a\0b"])
def test_no_name_leaves_the_folder(name: str) -> None:
    with pytest.raises(ArtifactError, match="allowed: a relative path"):
        checked_listing("s3://b/p", [RemoteFile(name, 1, "t", name)])


def test_a_file_is_no_folder() -> None:
    files = [RemoteFile(name, 1, "t", name) for name in ("a/b", "a")]
    with pytest.raises(ArtifactError, match="'a/b': a file has the name of one of its folders"):
        checked_listing("s3://b/p", files)


def test_versions_and_names_tell_sources_and_contents_apart() -> None:
    files = [RemoteFile("a", 1, "t", "k"), RemoteFile("b", 2, "u", "l")]
    assert version_of(files) == version_of(files[::-1])
    assert version_of(files) != version_of([files[0], RemoteFile("b", 2, "v", "l")])
    assert entry_name("s3://b/llama/v1", "1") != entry_name("s3://b/llama/v2", "1")
    assert entry_name("s3://b/llama/v1", "1").startswith("b-llama-v1-")
