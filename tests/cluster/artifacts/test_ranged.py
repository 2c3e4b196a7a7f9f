"""Ranges, resume and checks, from sources that break off, end early and lie."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from cluster.artifacts import ArtifactError, ranged
from cluster.artifacts.manifest import RemoteFile
from cluster.artifacts.progress import quiet
from cluster.artifacts.ranged import Checked, Interrupted, RangedDownload, Read, Transfer

PART = 4_000


class Memory:
    """Files in memory as a source. `breaks`: asked before each piece; how many bytes come of it before the connection
    breaks (None: it does not)."""

    def __init__(self, contents: dict[str, bytes], breaks: Callable[[], int | None] = lambda: None) -> None:
        self.contents = contents
        self.breaks = breaks
        self.asked: list[tuple[str, int, int]] = []
        self.sent = 0
        self.damaged: list[str] = []
        """Names of which the next byte that is read is wrong."""

    @property
    def files(self) -> list[RemoteFile]:
        return [RemoteFile(name, len(content), "t", name) for name, content in self.contents.items()]

    @contextmanager
    def opened(self, file: RemoteFile, start: int, end: int) -> Iterator[Read]:
        self.asked.append((file.name, start, end))
        at = start

        def read(size: int) -> bytes:
            nonlocal at
            piece = bytearray(self.contents[file.name][at : min(end, at + max(1, size // 3))])
            if (whole := self.breaks()) is not None:
                if not whole:
                    raise Interrupted("cut")
                piece = piece[:whole]
            if file.name in self.damaged:
                self.damaged.remove(file.name)
                piece[0] ^= 1
            at += len(piece)
            self.sent += len(piece)
            return bytes(piece)

        yield read

    def checked(self, file: RemoteFile, path: Path, crc: int) -> Checked:
        assert crc64nvme(path.read_bytes()) == crc
        content = self.contents[file.name]
        wrong = [
            (at, min(at + PART, file.size))
            for at in range(0, file.size, PART)
            if path.read_bytes()[at : at + PART] != content[at : at + PART]
        ]
        return Checked("content", tuple(wrong))

    def download(self, partial: Path, connections: int = 3) -> Sequence[object]:
        transfer = Transfer(self.opened, self.checked, PART, connections)
        return RangedDownload(self.files, partial, transfer, quiet).run()


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "CHUNK", 1_000)
    monkeypatch.setattr(ranged, "_PAUSE_S", 0.001)


def some(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def is_whole(memory: Memory, partial: Path) -> bool:
    return all((partial / "files" / name).read_bytes() == content for name, content in memory.contents.items())


@pytest.mark.whole
@given(sizes=st.lists(st.integers(0, 15_000), min_size=1, max_size=4), seed=st.integers(0, 1_000))
def test_what_breaks_off_is_continued_without_a_byte_twice(
    sizes: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    partial = tmp_path_factory.mktemp("partial")
    draw = random.Random(seed)
    memory = Memory({f"d/{number}": some(size, number) for number, size in enumerate(sizes)})
    before: int | None = None

    def breaks() -> int | None:
        nonlocal before  # five requests in a row without a byte would be an error
        before = draw.choice([None, None, 7] if before == 0 else [None, None, None, 0, 7])
        return before

    memory.breaks = breaks
    memory.download(partial)
    assert is_whole(memory, partial)
    assert memory.sent == sum(sizes)


def test_a_part_is_what_one_request_asks_for(tmp_path: Path) -> None:
    memory = Memory({"a": some(10_000)})
    memory.download(tmp_path)
    assert sorted(memory.asked) == [("a", 0, 4_000), ("a", 4_000, 8_000), ("a", 8_000, 10_000)]


def test_a_source_that_sends_nothing_more_fails_and_the_next_download_goes_on(tmp_path: Path) -> None:
    memory = Memory({"a": some(30_000), "b": some(9_000, 1)})
    left = iter([None] * 30)
    memory.breaks = lambda: next(left, 0)
    with pytest.raises(ArtifactError, match=r"cut; what has been fetched is kept"):
        memory.download(tmp_path)
    assert 0 < memory.sent < 39_000
    memory.breaks = lambda: None
    memory.download(tmp_path)
    assert is_whole(memory, tmp_path)
    assert memory.sent == 39_000


def test_an_answer_that_ends_early_is_no_end(tmp_path: Path) -> None:
    memory = Memory({"a": some(3_000)})
    whole = memory.contents["a"]
    ends = iter([0, 0, None])

    @contextmanager
    def opened(file: RemoteFile, start: int, end: int) -> Iterator[Read]:
        with Memory({"a": whole[: 1_500 if next(ends) == 0 else 3_000]}).opened(file, start, end) as read:
            yield read

    RangedDownload(memory.files, tmp_path, Transfer(opened, memory.checked, PART, 1), quiet).run()
    assert is_whole(memory, tmp_path)


def test_a_damaged_part_alone_is_fetched_again(tmp_path: Path) -> None:
    memory = Memory({"a": some(20_000), "b": some(5_000, 1)})
    memory.damaged = ["a"]
    memory.download(tmp_path)
    assert is_whole(memory, tmp_path)
    assert memory.sent == 25_000 + PART


def test_what_is_damaged_twice_is_an_error(tmp_path: Path) -> None:
    memory = Memory({"a": some(6_000)})
    memory.damaged = ["a"] * 200
    with pytest.raises(ArtifactError, match=r"^a: its content does not match its content, fetched twice"):
        memory.download(tmp_path, connections=1)


def broken_off(tmp_path: Path) -> Memory:
    memory = Memory({"a": some(8_000)})
    left = iter([None] * 12)
    memory.breaks = lambda: next(left, 0)
    with pytest.raises(ArtifactError):
        memory.download(tmp_path, connections=1)
    memory.breaks, memory.sent = (lambda: None), 0
    return memory


def test_the_journals_torn_last_line_counts_for_nothing(tmp_path: Path) -> None:
    memory = broken_off(tmp_path)
    journal = tmp_path / "extents"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][:-3])
    memory.download(tmp_path)
    assert is_whole(memory, tmp_path)
    kept = sum(int(line.split()[2]) - int(line.split()[1]) for line in lines[:-1])
    assert memory.sent == 8_000 - kept


def test_what_does_not_belong_to_the_model_is_removed(tmp_path: Path) -> None:
    """A stranger's weights would be loaded, and a link would be written through."""
    (tmp_path / "outside").write_text("not mine")
    folder = tmp_path / "partial" / "files"
    (folder / "d").mkdir(parents=True)
    (folder / "d" / "stranger.safetensors").write_text("weights")
    (folder / "a").symlink_to(tmp_path / "outside")
    memory = Memory({"a": some(3_000)})
    memory.download(tmp_path / "partial")
    assert is_whole(memory, tmp_path / "partial")
    assert not (folder / "d" / "stranger.safetensors").exists()
    assert (tmp_path / "outside").read_text() == "not mine"


def test_what_the_disk_has_lost_is_fetched_again(tmp_path: Path) -> None:
    memory = broken_off(tmp_path)
    with (tmp_path / "files" / "a").open("r+b") as file:
        file.write(b"\0" * 10)
    noted = [tuple(map(int, line.split()[1:3])) for line in (tmp_path / "extents").read_text().splitlines()]
    memory.download(tmp_path)
    assert is_whole(memory, tmp_path)
    assert memory.sent == 8_000 - sum(end - start for start, end in noted[1:])


def test_an_unreadable_journal_is_a_download_from_the_beginning(tmp_path: Path) -> None:
    memory = broken_off(tmp_path)
    (tmp_path / "extents").write_bytes(b"\xff\xfe nonsense\n0 x y z\n0 5\n")
    memory.download(tmp_path)
    assert is_whole(memory, tmp_path)
    assert memory.sent == 8_000
