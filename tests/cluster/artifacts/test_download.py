"""What an interrupted download has left: whole files are kept, everything else is fetched again or removed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.artifacts import ArtifactError, ModelCache
from cluster.artifacts.download import Download
from cluster.artifacts.folder import FolderOrigin
from cluster.artifacts.pull import damage, pull


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    for name in ("config.json", "sub/a", "sub/b"):
        (folder / name).write_bytes(name.encode() * 1_000)
    return folder


class BrokenOff(FolderOrigin):
    """Two of three files come."""

    def fetch(self, download: Download) -> None:
        download.missing = download.missing[:2]
        super().fetch(download)
        raise ArtifactError("broken off")


class Counted(FolderOrigin):
    """Remembers what had to come."""

    def fetch(self, download: Download) -> None:
        self.fetched = [file.name for file in download.missing]
        super().fetch(download)


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def link(partial: Path) -> None:
    """What is read through a link is whole, and is not the model's own."""
    outside = partial.parent.parent / "outside"
    (partial / "files" / "sub" / "a").rename(outside)
    (partial / "files" / "sub" / "a").symlink_to(outside)


@pytest.mark.parametrize(
    ("tamper", "fetched"),
    [
        (lambda partial: None, ["sub/b"]),
        (lambda partial: change(partial / "files" / "sub" / "a"), ["sub/a", "sub/b"]),
        (lambda partial: (partial / "files" / "sub" / "a").write_text("short"), ["sub/a", "sub/b"]),
        (lambda partial: (partial / "files" / "sub" / "a").unlink(), ["sub/a", "sub/b"]),
        (link, ["sub/a", "sub/b"]),
        (lambda partial: (partial / "manifest.json").write_text("{"), ["config.json", "sub/a", "sub/b"]),
        (lambda partial: (partial / "plan.json").unlink(), ["sub/b"]),
        (lambda partial: (partial / "files" / "stranger.safetensors").write_text("not of this model"), ["sub/b"]),
        (lambda partial: (partial / "files" / "sub" / "b").write_text("a piece"), ["sub/b"]),
    ],
    ids=["untouched", "changed", "short", "gone", "linked", "no-notes", "no-plan", "stranger", "piece"],
)
def test_whole_files_are_kept(
    source: Path, tmp_path: Path, tamper: Callable[[Path], object], fetched: list[str]
) -> None:
    cache = ModelCache(tmp_path / "cache")
    with pytest.raises(ArtifactError, match="broken off"):
        pull(BrokenOff(str(source)), cache)
    (partial,) = (tmp_path / "cache" / "partial").iterdir()
    tamper(partial)
    origin = Counted(str(source))
    held = pull(origin, cache)
    assert origin.fetched == fetched
    assert damage(held, read=True) == []
    copies = {str(path.relative_to(held.files)): path for path in held.files.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in copies.items()} == {
        name: (source / name).read_bytes() for name in ("config.json", "sub/a", "sub/b")
    }
    assert not any(path.is_symlink() for path in copies.values())
