"""By what a file from S3 is checked: the first of these that the object has.

1. CRC-64/NVME, CRC-32C, CRC-32 or SHA of the whole object (`x-amz-checksum-*`, type FULL_OBJECT).
2. The same of its parts (type COMPOSITE), each by itself: then only the parts that are wrong are fetched again.
3. Its ETag: the MD5, or for a multipart upload the MD5 of the parts' MD5s. Not with SSE-KMS or SSE-C, where an ETag is
   no MD5; such objects have a checksum of kind 1 or 2 from every SDK since January 2025.

Source: Amazon S3 User Guide, "Checking object integrity".
"""

import base64
import hashlib
import mmap
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from awscrt import checksums as crt
from botocore.exceptions import ClientError

from cluster.artifacts.manifest import RemoteFile
from cluster.artifacts.ranged import Checked

_ETAG = re.compile(r"([0-9a-f]{32})(?:-(\d+))?")
_LANES_FROM = 256 << 20
"""Bytes from which numba's import is worth its while."""
_OF_PARTS = "ETag (MD5 of its parts)"
_WINDOW = 8 << 20
"""Bytes that are hashed at once."""


def _crc(function: Callable[[Any, int], int], width: int) -> Callable[[Iterator[memoryview]], bytes]:
    def digest(pieces: Iterator[memoryview]) -> bytes:
        value = 0
        for piece in pieces:
            value = function(piece, value)
        return value.to_bytes(width, "big")

    return digest


def _hash(name: str) -> Callable[[Iterator[memoryview]], bytes]:
    def digest(pieces: Iterator[memoryview]) -> bytes:
        found = hashlib.new(name, usedforsecurity=False)
        for piece in pieces:
            found.update(piece)
        return found.digest()

    return digest


_DIGESTS = {
    "ChecksumCRC64NVME": _crc(crt.crc64nvme, 8),
    "ChecksumCRC32C": _crc(crt.crc32c, 4),
    "ChecksumCRC32": _crc(crt.crc32, 4),
    "ChecksumSHA256": _hash("sha256"),
    "ChecksumSHA1": _hash("sha1"),
}
"""Of which an object has at most one, and how each is computed."""
_MD5 = _hash("md5")


class Checksums:
    """Compares files with the checksums of the objects of `bucket`."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket

    def check(self, file: RemoteFile, path: Path, crc: int) -> Checked:
        """`crc` is the file's CRC-64/NVME. Raises boto3's errors."""
        head = self._head(file, ChecksumMode="ENABLED")
        for name, digest in _DIGESTS.items():
            if name in head and "-" not in head[name]:
                kind = name.removeprefix("Checksum")
                found = crc.to_bytes(8, "big") if kind == "CRC64NVME" else digest(_pieces(path, 0, file.size))
                return _judged(kind, file, base64.b64decode(head[name]) == found)
            if name in head and (parts := self._parts(file, name)):
                wrong = tuple(
                    (start, end) for start, end, expected in parts if digest(_pieces(path, start, end)) != expected
                )
                return Checked(name.removeprefix("Checksum"), wrong)
        return self._check_etag(file, path, head)

    def _head(self, file: RemoteFile, **more: Any) -> Any:
        return self._client.head_object(Bucket=self._bucket, Key=file.key, IfMatch=f'"{file.tag}"', **more)

    def _parts(self, file: RemoteFile, name: str) -> list[tuple[int, int, bytes]]:
        """Start, end and checksum of each part; empty where the store does not tell them."""
        found: list[tuple[int, int, bytes]] = []
        marker = 0
        while True:
            try:
                answer = self._client.get_object_attributes(
                    Bucket=self._bucket, Key=file.key, ObjectAttributes=["ObjectParts"], PartNumberMarker=marker
                )
            except ClientError:
                return []
            parts = answer.get("ObjectParts", {})
            for part in parts.get("Parts", ()):
                if name not in part:
                    return []
                start = found[-1][1] if found else 0
                found.append((start, start + part["Size"], base64.b64decode(part[name])))
            if not parts.get("IsTruncated"):
                return found if found and found[-1][1] == file.size else []
            marker = parts["NextPartNumberMarker"]

    def _check_etag(self, file: RemoteFile, path: Path, head: Any) -> Checked:
        form = _ETAG.fullmatch(file.tag)
        if form is None or head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head:
            return Checked("size alone: the object has no checksum")
        if form[2] is None:
            return _judged("ETag (MD5)", file, _MD5(_pieces(path, 0, file.size)).hex() == form[1])
        is_known = False
        for part_ends in (self._equal_parts, self._listed_parts):
            if (ends := part_ends(file, int(form[2]))) is not None:
                is_known = True
                if _MD5(iter([memoryview(_md5_of_parts(path, ends))])).hex() == form[1]:
                    return Checked(_OF_PARTS)
        return _judged(_OF_PARTS, file, False) if is_known else Checked("size alone: the store does not tell its parts")

    def _equal_parts(self, file: RemoteFile, count: int) -> tuple[int, ...] | None:
        """Where the parts of a multipart upload end, if all but the last are as long as the first: so nearly all are.
        None where that cannot be."""
        try:
            size = int(self._head(file, PartNumber=1)["ContentLength"])
        except ClientError:
            return None
        fits = size * (count - 1) < file.size <= size * count
        return (*(size * number for number in range(1, count)), file.size) if fits else None

    def _listed_parts(self, file: RemoteFile, count: int) -> tuple[int, ...] | None:
        """The same as the store tells it, a request for each part; None where it does not."""
        ends = [0]
        try:
            for number in range(1, count + 1):
                ends.append(ends[-1] + int(self._head(file, PartNumber=number)["ContentLength"]))
        except ClientError:
            return None
        return tuple(ends[1:]) if ends[-1] == file.size else None


def _md5_of_parts(path: Path, ends: tuple[int, ...]) -> bytes:
    """The MD5s of the parts that end there, one after the other."""
    size = ends[0]
    equal = next((number for number, end in enumerate(ends) if end != size * (number + 1)), len(ends))
    digests: list[bytes] = []
    if equal * size >= _LANES_FROM and size % 64 == 0 and (lanes := _lanes()) is not None:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as view,
            view[: equal * size] as whole,
        ):
            digests = lanes(whole, size)
    starts = (0, *ends[:-1])
    for start, end in list(zip(starts, ends, strict=True))[len(digests) :]:
        digests.append(_MD5(_pieces(path, start, end)))
    return b"".join(digests)


def _lanes() -> Callable[[memoryview, int], list[bytes]] | None:
    """Sixteen sums at once; None where numba (which comes with vLLM) is not installed."""
    try:
        from cluster.artifacts.md5_lanes import md5_of_parts
    except ImportError:
        return None
    return md5_of_parts


def _judged(by: str, file: RemoteFile, is_sound: bool) -> Checked:
    return Checked(by, () if is_sound else ((0, file.size),))


def _pieces(path: Path, start: int, end: int) -> Iterator[memoryview]:
    """Those bytes of the file, read from the page cache without a copy."""
    if start == end:
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        for at in range(start, end, _WINDOW):
            with view[at : min(end, at + _WINDOW)] as piece:
                yield piece
