"""Which bytes of a download are on the disk: a journal that survives the end of its process, with a CRC for each
span."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from awscrt.checksums import combine_crc64nvme, crc64nvme

from cluster.artifacts.manifest import RemoteFile
from cluster.files import write_whole

Span = tuple[int, int]
"""Bytes of a file, the end exclusive."""


class Extents:
    """Which bytes of each file are on the disk, with their CRCs. Thread-safe."""

    def __init__(self, journal: Path, folder: Path, files: Sequence[RemoteFile]) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._known: list[dict[int, tuple[int, int]]] = [{} for _ in files]
        noted = self._read()
        for index, file in enumerate(files):
            for start, end, crc in noted.get(index, ()):
                if start < end <= file.size and _crc_of(folder / file.name, start, end) == crc:
                    self._known[index][start] = (end, crc)
        self._rewrite()

    def _read(self) -> dict[int, list[tuple[int, int, int]]]:
        found: dict[int, list[tuple[int, int, int]]] = {}
        try:
            lines = self._journal.read_text(encoding="ascii", errors="replace").split("\n")[:-1]  # a torn one is last
        except FileNotFoundError:
            return {}
        for line in lines:
            try:
                index, start, end, crc = (int(word) for word in line.split())
            except ValueError:
                continue
            found.setdefault(index, []).append((start, end, crc))
        return found

    def _rewrite(self) -> None:
        lines = [
            f"{index} {start} {end} {crc}\n"
            for index, spans in enumerate(self._known)
            for start, (end, crc) in spans.items()
        ]
        write_whole(self._journal, "".join(lines))
        self._file = self._journal.open("ab", buffering=0)

    def add(self, index: int, start: int, end: int, crc: int) -> None:
        """Notes a span that has been written."""
        with self._lock:
            self._known[index][start] = (end, crc)
            self._file.write(f"{index} {start} {end} {crc}\n".encode())

    def forget(self, index: int, spans: Sequence[Span]) -> None:
        """Takes back what overlaps one of `spans`."""
        with self._lock:
            kept = self._known[index]
            self._known[index] = {
                start: (end, crc)
                for start, (end, crc) in kept.items()
                if not any(start < to and end > since for since, to in spans)
            }
            self._file.close()
            self._rewrite()

    def gaps(self, index: int, size: int) -> list[Span]:
        """What is missing of a file."""
        at, missing = 0, []
        for start, (end, _) in sorted(self._known[index].items()):
            if start > at:
                missing.append((at, start))
            at = max(at, end)
        return [*missing, (at, size)] if at < size else missing

    def crc(self, index: int) -> int:
        """The CRC-64/NVME of a file that is whole."""
        total = 0
        for start, (end, crc) in sorted(self._known[index].items()):
            total = combine_crc64nvme(total, crc, end - start)
        return total

    def close(self) -> None:
        """Ends writing."""
        self._file.close()


def _crc_of(path: Path, start: int, end: int) -> int | None:
    try:
        with path.open("rb", buffering=0) as file:
            return crc_from(file.fileno(), start, end)
    except FileNotFoundError:
        return None


def crc_from(descriptor: int, start: int, end: int) -> int | None:
    """The CRC-64/NVME of those bytes of an open file; None where it is shorter."""
    total, at = 0, start
    while at < end:
        piece = os.pread(descriptor, min(1 << 20, end - at), at)
        if not piece:
            return None
        total = crc64nvme(piece, total)
        at += len(piece)
    return total
