"""A folder as the origin: links, what is no file, and what disappears or changes meanwhile."""

import os
import shutil
from pathlib import Path

import pytest

from cluster.artifacts import ArtifactError, ModelCache
from cluster.artifacts.folder import FolderOrigin
from cluster.artifacts.manifest import RemoteFile
from cluster.artifacts.pull import pull


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_linked_folders_and_files_come_with_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "weights").write_text("w")
    (source / "linked").symlink_to(tmp_path / "elsewhere")
    (source / "again").symlink_to(tmp_path / "elsewhere" / "deep")
    (source / "tokenizer.json").symlink_to(tmp_path / "elsewhere" / "deep" / "weights")
    held = pull(FolderOrigin(str(source)), ModelCache(tmp_path / "cache"))
    assert {str(path.relative_to(held.files)) for path in held.files.rglob("*") if path.is_file()} == {
        "config.json",
        "tokenizer.json",
        "again/weights",
        "linked/deep/weights",
    }
    assert not any(path.is_symlink() for path in held.files.rglob("*"))


def test_a_link_in_a_circle_is_an_error(source: Path) -> None:
    (source / "sub").mkdir()
    (source / "sub" / "up").symlink_to(source)
    with pytest.raises(ArtifactError, match=r"sub/up is a link to a folder that holds it"):
        FolderOrigin(str(source)).listing()


def test_what_is_no_file_is_named(source: Path) -> None:
    (source / "pipe").symlink_to("/nowhere")
    with pytest.raises(ArtifactError, match=r"cannot be read: No such file or directory \(.*/pipe\)"):
        FolderOrigin(str(source)).listing()
    (source / "pipe").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(ArtifactError, match=r"source/pipe is neither a file nor a folder"):
        FolderOrigin(str(source)).listing()


@pytest.mark.parametrize("what", ["folder", "content"])
def test_a_folder_that_disappears_is_not_published(source: Path, tmp_path: Path, what: str) -> None:
    cache = ModelCache(tmp_path / "cache")
    shutil.rmtree(source)
    if what == "content":
        source.mkdir()
    with pytest.raises(
        ArtifactError, match=r"(cannot be read: No such file|holds no files; allowed: a model's folder)"
    ):
        pull(FolderOrigin(str(source)), cache)
    assert cache.list() == []


class Changing(FolderOrigin):
    """A folder that somebody changes after it was listed."""

    def listing(self) -> tuple[RemoteFile, ...]:
        files = super().listing()
        if (Path(self.source) / "gone").exists():
            shutil.rmtree(self.source)
        else:
            (Path(self.source) / "config.json").write_text("[]")
            os.utime(Path(self.source) / "config.json", (1.0, 1.0))
        return files


@pytest.mark.parametrize(("mark", "message"), [("gone", "cannot be read: No such file"), ("other", "changed while it")])
def test_what_changes_after_it_was_listed_is_not_published(
    source: Path, tmp_path: Path, mark: str, message: str
) -> None:
    cache = ModelCache(tmp_path / "cache")
    (source / mark).write_text("x")
    with pytest.raises(ArtifactError, match=message):
        pull(Changing(str(source)), cache)
    assert not any(entry.whole for entry in cache.list())
