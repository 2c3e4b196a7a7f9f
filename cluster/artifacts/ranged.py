"""Files fetched in ranges by several connections, with resume and checks: for any source that can be read from an
offset.

Every chunk is written to its place in the file, and then noted with its CRC (`extents.py`). A process that ends in
whatever way loses at most a chunk a connection; the next one checks what is noted against what is on the disk, and
requests the rest. A `part` is what one request asks for.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from awscrt.checksums import crc64nvme

from cluster.artifacts.extents import Extents, Span
from cluster.artifacts.manifest import CachedFile, RemoteFile
from cluster.artifacts.progress import FetchStep, ProgressReport
from cluster.artifacts.sources import ArtifactError

CHUNK = 1 << 20
"""Bytes that are written and noted at once."""
_MIN_PART = 8 << 20
_TRIES = 5
"""Requests in a row that bring no byte before the download fails."""
_PAUSE_S = 0.25
"""Before the second try; twice as long before each further one (seconds)."""
_REPORT_S = 0.2

Read = Callable[[int], bytes]
"""The next bytes, at most so many; none at the end. Raises Interrupted."""
Opener = Callable[[RemoteFile, int, int], AbstractContextManager[Read]]
"""Opens the bytes from a start to an end (exclusive) of a file. Raises Interrupted, ArtifactError."""


class Interrupted(Exception):
    """A transfer that broke off, and may succeed when it is tried again."""


@dataclass(frozen=True, slots=True)
class Checked:
    """How a file compares with the source's own checksum: which that is, and the spans that differ."""

    by: str
    wrong: tuple[Span, ...] = ()


Checker = Callable[[RemoteFile, Path, int], Checked]
"""Compares a whole file, whose CRC-64/NVME is given, with what its source knows of it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How to fetch: `opener` and `checker` are the source's."""

    opener: Opener
    checker: Checker
    part_bytes: int
    connections: int


class RangedDownload:
    """One download of `files` into `partial/files`."""

    def __init__(self, files: Sequence[RemoteFile], partial: Path, transfer: Transfer, report: ProgressReport) -> None:
        self._files, self._folder, self._transfer, self._report = files, partial / "files", transfer, report
        self._make_files()
        self._extents = Extents(partial / "extents", self._folder, files)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._total = sum(file.size for file in files)
        self._missing = sum(end - start for index in range(len(files)) for start, end in self._gaps(index))
        self._reported = 0.0
        self._done: dict[int, CachedFile] = {}
        self._wrong: dict[int, Checked] = {}

    def run(self) -> tuple[CachedFile, ...]:
        """Fetches what is missing and checks every file; what is wrong is fetched once more. Raises ArtifactError;
        OSError of the disk."""
        self._tell()
        try:
            self._fetch(range(len(self._files)))
            if self._wrong:
                again, self._wrong = sorted(self._wrong), {}
                self._fetch(again)
            for index, checked in self._wrong.items():
                raise ArtifactError(
                    f"{self._files[index].key}: its content does not match its {checked.by}, fetched twice; either "
                    "the store holds a damaged file, or something on the way damages it"
                )
        finally:
            self._extents.close()
        self._tell()
        return tuple(self._done[index] for index in range(len(self._files)))

    def _tell(self) -> None:
        self._report(FetchStep.FETCHING, self._total - self._missing, self._total)

    def _make_files(self) -> None:
        """Each file at its size. Anything else there is removed: an engine loads whatever weights it finds."""
        names = {self._folder / file.name for file in self._files}
        for path in self._folder.rglob("*"):
            if path.is_symlink() or (path.is_file() and path not in names):
                path.unlink()
        for file in self._files:
            path = self._folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as opened:
                opened.truncate(file.size)

    def _gaps(self, index: int) -> list[Span]:
        return self._extents.gaps(index, self._files[index].size)

    def _part_bytes(self) -> int:
        """What one request asks for: less than `part_bytes` where too few requests would be left for the
        connections."""
        share = -(-self._missing // (2 * self._transfer.connections * CHUNK)) * CHUNK
        return min(self._transfer.part_bytes, max(share, _MIN_PART))

    def _parts(self, index: int, size: int) -> list[Span]:
        """What is missing of a file, cut where parts of that size end; an empty span where nothing is."""
        parts = []
        for start, end in self._gaps(index):
            while start < end:
                cut = min(end, (start // size + 1) * size)
                parts.append((start, cut))
                start = cut
        return parts or [(0, 0)]

    def _fetch(self, indices: Iterable[int]) -> None:
        size = self._part_bytes()
        jobs = [(index, *part) for index in indices for part in self._parts(index, size)]
        left = Counter(index for index, _, _ in jobs)
        with ThreadPoolExecutor(self._transfer.connections, "artifact") as pool:
            try:
                for done in as_completed([pool.submit(self._work, left, *job) for job in jobs]):
                    done.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _work(self, left: Counter[int], index: int, start: int, end: int) -> None:
        self._copy(index, start, end)
        with self._lock:
            left[index] -= 1
            is_last = left[index] == 0
        if is_last and not self._stop.is_set():
            self._check(index)

    def _check(self, index: int) -> None:
        file, crc = self._files[index], self._extents.crc(index)
        checked = self._transfer.checker(file, self._folder / file.name, crc)
        if checked.wrong:
            self._extents.forget(index, checked.wrong)
            with self._lock:
                self._missing += sum(end - start for start, end in self._gaps(index))
            self._wrong[index] = checked
        else:
            self._done[index] = CachedFile(
                name=file.name, size=file.size, tag=file.tag, crc64nvme=crc, checked_by=checked.by
            )

    def _copy(self, index: int, start: int, end: int) -> None:
        """Fetches a part; where that breaks off, the rest of it. Raises ArtifactError after five tries in vain."""
        tries = 0
        target = os.open(self._folder / self._files[index].name, os.O_WRONLY)
        try:
            while start < end and not self._stop.is_set():
                came, trouble = self._request(index, target, start, end)
                start += came
                tries = 0 if came else tries + 1
                if trouble is not None and tries == _TRIES:
                    raise ArtifactError(f"{self._files[index].key}: {trouble}; what has been fetched is kept")
                if trouble is not None:
                    self._stop.wait(_PAUSE_S * 2 ** max(0, tries - 1))
        finally:
            os.close(target)

    def _request(self, index: int, target: int, start: int, end: int) -> tuple[int, Interrupted | None]:
        """The bytes that came of one request, and what broke it off."""
        at = start
        try:
            with self._transfer.opener(self._files[index], start, end) as read:
                while at < end and not self._stop.is_set():
                    piece = read(min(CHUNK, end - at))
                    if not piece:
                        raise Interrupted("the answer ended before its last byte")
                    self._write(index, target, at, piece)
                    at += len(piece)
        except Interrupted as trouble:
            return at - start, trouble
        return at - start, None

    def _write(self, index: int, target: int, at: int, piece: bytes) -> None:
        written = os.pwrite(target, piece, at)
        while written < len(piece):
            written += os.pwrite(target, memoryview(piece)[written:], at + written)
        self._extents.add(index, at, at + len(piece), crc64nvme(piece))
        with self._lock:
            self._missing -= len(piece)
            is_due = time.monotonic() - self._reported > _REPORT_S
            if is_due:
                self._reported = time.monotonic()
        if is_due:
            self._tell()
