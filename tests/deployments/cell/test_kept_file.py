"""What one directory keeps on the disk the next one reads, and nothing wrong in the file ends it."""

import json
from pathlib import Path

import pytest

from deployments.cell.kept_file import EpochByModel, KeptFile
from tests.small_disk import small_disk


def epochs_in(path: Path | None) -> KeptFile[dict[str, int]]:
    return KeptFile(path, EpochByModel)


def test_what_one_directory_wrote_the_next_one_reads(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    first = epochs_in(path)
    assert first.read() == {}
    first.write({"demo": 3, "org/mödel": 0})
    assert epochs_in(path).read() == {"demo": 3, "org/mödel": 0}
    first.write({"demo": 4})
    assert json.loads(path.read_text()) == {"demo": 4}
    assert [file.name for file in tmp_path.iterdir()] == ["epochs.json"], (
        "written beside it first, and put in its place"
    )


def test_the_same_epochs_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    epochs_in(path).write({"demo": 3})
    known = epochs_in(path)
    assert known.read() == {"demo": 3}
    path.unlink()
    known.write({"demo": 3})
    assert not path.exists()
    known.write({"demo": 4})
    known.write({"demo": 4})
    assert epochs_in(path).read() == {"demo": 4}


def test_what_was_read_is_the_callers_to_change(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    epochs_in(path).write({"demo": 3})
    file = epochs_in(path)
    epochs = file.read()
    epochs["demo"] = 4
    file.write(epochs)
    assert epochs_in(path).read() == {"demo": 4}


def test_without_a_path_nothing_is_kept() -> None:
    file = epochs_in(None)
    file.write({"demo": 3})
    assert file.read() == {}


@pytest.mark.parametrize(
    "content",
    ["", "{", "3", "[1]", '{"demo": -1}', '{"demo": true}', '{"demo": 1.5}', '{"demo": 1, "other": "2"}', b"\xff"],
)
def test_a_file_that_is_no_map_of_epochs_is_logged_and_left_out(
    content: str | bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "epochs.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file = epochs_in(path)
    assert file.read() == {}
    assert [record.getMessage().partition(" cannot be read")[0] for record in caplog.records] == [str(path)]
    file.write({"demo": 0})
    assert epochs_in(path).read() == {"demo": 0}, "what gateways say takes its place"


def test_a_write_that_fails_is_logged_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.path / "epochs.json"
        file = epochs_in(path)
        file.write({"demo": 2})
        disk.fill()
        for _ in range(3):
            file.write({"demo": 3})
        assert epochs_in(path).read() == {"demo": 2}
        assert len([record for record in caplog.records if "cannot be written" in record.getMessage()]) == 1
        disk.free()
        file.write({"demo": 3})
        assert epochs_in(path).read() == {"demo": 3}
        assert path.stat().st_mode & 0o777 == 0o600
