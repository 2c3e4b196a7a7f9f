"""The memo: what was written is known again, by others too, and a torn line spoils nothing."""

import resource
from multiprocessing import get_context
from pathlib import Path

from planning.gauntlet.memo import Memo, key_of


def write(path: Path, first: int) -> None:
    memo = Memo(path)
    for number in range(first, first + 50):
        memo.put(str(number), {"scenario": "s"}, {"value": number, "text": "x" * 500})


def test_what_was_put_is_known_again(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.jsonl")
    memo.put("a", {"law": "b"}, {"x": 1.5})
    assert memo.get("a") == {"x": 1.5}
    assert Memo(tmp_path / "memo.jsonl").get("a") == {"x": 1.5}
    assert memo.get("c") is None


def test_without_a_file_it_lasts_as_long_as_the_process() -> None:
    memo = Memo(None)
    memo.put("a", {}, 1)
    assert memo.get("a") == 1


def test_several_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    context = get_context("spawn")
    writers = [context.Process(target=write, args=(path, first)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    known = Memo(path)
    assert all(known.get(str(first + number))["value"] == first + number for first in (0, 100, 200) for number in range(50))


def test_a_line_that_was_cut_off_is_passed_over_and_others_are_taken_in_later(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    memo = Memo(path)
    memo.put("a", {}, 1)
    with path.open("a") as file:
        file.write("{not json}\n[]\n")
    other = Memo(path)
    assert other.get("a") == 1
    memo.put("b", {}, 2)
    assert other.get("b") is None
    other.refresh()
    assert other.get("b") == 2


def test_what_follows_a_torn_line_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    Memo(path).put("a", {}, 1)
    early = Memo(path)
    with path.open("a") as file:
        file.write('{"key":"torn","res')
    early.refresh()
    Memo(path).put("b", {}, 2)
    Memo(path).put("c", {}, 3)
    early.refresh()
    for memo in (Memo(path), early):
        assert [memo.get(key) for key in ("a", "torn", "b", "c")] == [1, None, 2, 3]
    assert path.read_text().count("\n\n") == 0


def test_a_file_that_takes_no_more_is_let_be_with_a_word(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    memo = Memo(path)
    memo.put("a", {}, 1)
    assert memo.trouble is None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, before[1]))  # as where a disk is full
    try:
        memo.put("b", {}, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert memo.trouble is not None
    assert str(path) in memo.trouble
    memo.put("c", {}, 3)
    assert [memo.get(key) for key in ("a", "b", "c")] == [1, 2, 3]
    Memo(path).put("d", {}, 4)
    assert [Memo(path).get(key) for key in ("a", "b", "c", "d")] == [1, None, None, 4]


def test_a_line_too_deep_to_be_read_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "memo.jsonl"
    path.write_text('{"key":"deep","result":' + "[" * 100_000 + "\n")
    assert Memo(path).get("deep") is None


def test_keys_differ_where_anything_does() -> None:
    assert key_of("a", {"x": 1, "y": 2}) == key_of("a", {"y": 2, "x": 1})
    assert len({key_of("a", {"x": 1}), key_of("a", {"x": 2}), key_of("b", {"x": 1}), key_of("a", {})}) == 4
