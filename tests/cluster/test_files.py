"""Files written in one move: whole or not at all, beside links that stay, over nothing that is no file."""

import errno
import os
import resource
import stat
from pathlib import Path

import pytest
from pydantic import BaseModel

from cluster.files import is_special, read_json, write_json, write_whole


class _Some(BaseModel):
    value: int


class _BadFileError(ValueError):
    pass


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    target, link = tmp_path / "other" / "target.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    for text in ("first", "second"):  # of nothing yet, and of a file
        assert not is_special(link)
        write_whole(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert sorted(file.name for file in (tmp_path / "other").iterdir()) == ["target.txt"]


def test_an_error_names_the_file_and_not_its_draft(tmp_path: Path) -> None:
    nowhere, large = tmp_path / "missing" / "a", tmp_path / "b"
    with pytest.raises(FileNotFoundError) as no_folder:
        write_whole(nowhere, "text")
    assert no_folder.value.filename == str(nowhere)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as full:
            write_whole(large, "text")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (full.value.errno, full.value.filename) == (errno.EFBIG, str(large))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    pipe, circle, to_device = tmp_path / "pipe", tmp_path / "circle", tmp_path / "device"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    to_device.symlink_to("/dev/full")
    before = {place: os.lstat(place) for place in (pipe, circle, to_device, tmp_path)}
    for place in before:
        assert is_special(place)
        with pytest.raises(OSError, match="not a regular file"):
            write_whole(place, "x")
    assert {place: stat.S_IFMT(os.lstat(place).st_mode) for place in before} == {
        place: stat.S_IFMT(one.st_mode) for place, one in before.items()
    }
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_the_mode_of_a_file_stays_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    secret, usual = tmp_path / "secret.txt", tmp_path / "usual.txt"
    secret.touch(0o600)
    usual.touch()
    write_whole(secret, "x")
    write_whole(tmp_path / "new.txt", "x")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_what_cannot_be_written_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "some.txt", "half \udc00")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("some.txt", "old")]


def test_json_is_written_so_too(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    write_json(link, _Some(value=3))
    assert link.is_symlink()
    assert read_json(tmp_path / "target.json", _Some, _BadFileError).value == 3
    with pytest.raises(OSError, match="not a regular file"):
        write_json(Path("/dev/full"), _Some(value=3))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000, b'{"value": "x"}'])
def test_a_file_that_holds_something_else_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_bytes(content)
    with pytest.raises(_BadFileError, match=r"some\.json"):
        read_json(tmp_path / "some.json", _Some, _BadFileError)
