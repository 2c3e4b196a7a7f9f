"""MD5 of many parts at once, against hashlib."""

import hashlib
import random
from pathlib import Path

import pytest

from cluster.artifacts import checksums


def md5s(content: bytes, ends: list[int]) -> bytes:
    starts = [0, *ends[:-1]]
    return b"".join(hashlib.md5(content[start:end]).digest() for start, end in zip(starts, ends, strict=True))


@pytest.mark.whole
@pytest.mark.parametrize(
    "ends",
    [
        [64],
        [128, 256, 300],
        [64 * number for number in range(1, 40)],
        [*(6_400 * number for number in range(1, 17)), 6_400 * 16 + 1],
        [100, 200, 300],
        [64, 200, 264],
    ],
)
def test_sixteen_at_once_are_as_one_by_one(ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random.Random(ends[-1]).randbytes(ends[-1])
    (tmp_path / "file").write_bytes(content)
    monkeypatch.setattr(checksums, "_LANES_FROM", 0)
    assert checksums._md5_of_parts(tmp_path / "file", tuple(ends)) == md5s(content, ends)
    monkeypatch.setattr(checksums, "_lanes", lambda: None)
    assert checksums._md5_of_parts(tmp_path / "file", tuple(ends)) == md5s(content, ends)
