"""The memo: what was written is known again; a torn line spoils nothing."""

import resource
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest

from planning.memo import Memo


@dataclass(frozen=True)
class Found:
    value: int
    text: str = ""


def put(memo: Memo, *keys: str) -> None:
    for number, key in enumerate(keys):
        memo.put(key, {"about": "b"}, asdict(Found(number)))


def known(memo: Memo, *keys: str) -> list[int | None]:
    found = [memo.get_as(Found, key) for key in keys]
    return [None if one is None else one.value for one in found]


def write(path: Path, first: int) -> None:
    memo = Memo(path)
    for number in range(first, first + 50):
        memo.put(str(number), {}, asdict(Found(number, "x" * 500)))


def test_what_was_put_is_known_again(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.jsonl")
    put(memo, "a", "b")
    for one in (memo, Memo(tmp_path / "memo.jsonl")):
        assert known(one, "a", "b", "c") == [0, 1, None]


def test_a_result_of_another_shape_is_unknown() -> None:
    memo = Memo(None)
    for other in (None, {}, [], "x", {"value": None}, {"value": "one"}):
        memo.put("a", {}, other)
        assert known(memo, "a") == [None]


@pytest.mark.whole
def test_several_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    context = get_context("spawn")
    writers = [context.Process(target=write, args=(path, first)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    numbers = [first + number for first in (0, 100, 200) for number in range(50)]
    assert known(Memo(path), *map(str, numbers)) == numbers


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    put(Memo(path), "a")
    with path.open("a") as file:
        file.write('{not json}\n[]\n{"key":"deep","result":' + "[" * 100_000 + "\n")
    put(Memo(path), "b")
    assert known(Memo(path), "a", "deep", "b") == [0, None, 0]


def test_what_follows_a_torn_line_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    put(Memo(path), "a")
    early = Memo(path)
    with path.open("a") as file:
        file.write('{"key":"torn","res')
    put(Memo(path), "b")
    put(early, "c")
    assert known(Memo(path), "a", "torn", "b", "c") == [0, None, 0, 0]


def test_a_file_that_takes_no_more_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    memo = Memo(path)
    put(memo, "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))  # as where a disk is full
    try:
        put(memo, "b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    put(memo, "c")
    assert known(memo, "a", "b", "c") == [0, 0, 0]
    put(Memo(path), "d")
    assert known(Memo(path), "a", "b", "c", "d") == [0, None, None, 0]
