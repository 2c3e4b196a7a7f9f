"""The files of a decision log (`decisions.py` says what is in one): written by the process that decides, read by
whoever replays or explains.

A file begins with its version. Frames follow, each with its length and checksum: a header, or inputs. They are parts of
a stream of raw deflate that each header begins anew, so an open file is compressed, too, and is read from any header.

What cannot be written is lost, and nothing else with it: no method of a log raises. Once there is room again the log
goes on, after a header, which holds the whole state and so makes up for what was lost.
"""

import contextlib
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from deployments.decisions import Entry, Header, Input, LogError
from deployments.telemetry.line_log import LogHealth, WholeLines
from deployments.wire import WireError, decoder, encode

MAX_BYTES = 16 << 20
KEPT = 8
RETRY_S = 1.0
"""A log that failed is tried again so often (seconds)."""
VERSION = b"raylane decisions 1\n"
_ROOM_BYTES = 256 << 10
"""A log that failed begins again where there is at least so much room, and for two headers: one costs time to make, and
is not made for a full disk."""
_BUFFER_BYTES = 16 << 10
_HEADER, _INPUTS = b"H", b"I"
_LEVEL = 1


def in_file_name(model: str) -> str:
    """A model's name as a part of a file's: `+`, which none holds (`cluster/spec/models.py`), stands for the slashes.
    No two have the same."""
    return model.replace("/", "+")


def model_in(part: str) -> str:
    """The model that such a part names."""
    return part.replace("+", "/")


def log_files(folder: Path, name: str) -> list[Path]:
    """The files of the log of that name, oldest first."""
    found = [(path, path_parts(path)) for path in folder.glob("*.log")] if folder.is_dir() else []
    return [path for path, parts in sorted(found, key=lambda one: one[1]) if parts[0] == name]


_NAME = re.compile(r"(.*)\.(\d{6,})\.log")


def path_parts(path: Path) -> tuple[str, int]:
    """The name of the log that a file belongs to, and its number there."""
    found = _NAME.fullmatch(path.name)
    return (path.name, 0) if found is None else (found[1], int(found[2]))


class DecisionLog:
    """`name.NNNNNN.log` in a folder; the `KEPT` files before the newest stay. No other process writes to them.

    `at_once`: an entry is in the file as soon as it is written, for those who read it meanwhile. `kin`: a pattern of
    the names of logs that follow each other; so many files of all these stay.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        health: LogHealth,
        max_bytes: int = MAX_BYTES,
        at_once: bool = False,
        kin: str = "",
    ) -> None:
        self._folder = folder
        self._name = name
        self._kin = re.compile(kin or re.escape(name))
        self._health = health
        self._max_bytes = max_bytes
        self._buffer_bytes = 0 if at_once else _BUFFER_BYTES
        self._path = folder
        self._file: WholeLines | None = None
        self._deflate = _compressor()
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._closed = False
        self.broken = False
        """Entries were lost: what follows them needs a header."""
        self._retry_s = 0.0
        self._room_bytes = _ROOM_BYTES

    def due(self) -> bool:
        """Whether a header is wanted as the next entry: the first one, where the file is full, and where entries were
        lost and there is room again."""
        if self._closed:
            return False
        if self.broken:
            return time.monotonic() >= self._retry_s and self._has_room()
        return self._file is None or self._file.size >= self._max_bytes

    def write(self, entry: Entry) -> None:
        """Adds an entry; nothing once it is closed."""
        if self._closed:
            return
        if isinstance(entry, Header):
            self._begin(encode(entry))
        elif self.broken or self._file is None:
            self._health.lost(1)
        else:
            self._buffer.append(encode(entry))
            self._buffered_bytes += len(self._buffer[-1])
            if self._buffered_bytes > self._buffer_bytes:
                self._flush()

    def lost(self, error: Exception) -> None:
        """An entry could not be made: what follows needs a header."""
        self._flush()
        self._fail(1, error)

    def close(self) -> None:
        """Ends the log; what was written is in the file then."""
        self._flush()
        self._closed = True
        self._leave()

    def _begin(self, header: bytes) -> None:
        """Begins a file; or goes on in one that is not full: each new file costs the oldest."""
        self._flush()
        self._room_bytes = max(_ROOM_BYTES, 2 * len(header))
        try:
            self._deflate = _compressor()
            frame = self._frame(_HEADER, header)
            file = self._file
            if file is None or file.torn or file.size >= self._max_bytes or not file.is_at(self._path):
                self._new_file(frame)
            else:
                file.add(frame)
        except OSError as error:
            self._fail(1, error)
        else:
            self.broken = False
            self._health.well()

    def _frame(self, kind: bytes, content: bytes) -> bytes:
        body = self._deflate.compress(content) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return kind + len(body).to_bytes(4) + zlib.crc32(body).to_bytes(4) + body

    def _new_file(self, header: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f"{self._name}.new"
        file = WholeLines(new, fresh=True)  # first of all: where none can be begun, none is lost
        try:
            file.add(VERSION + header)
            files = log_files(self._folder, self._name)
            path = self._folder / f"{self._name}.{1 + (path_parts(files[-1])[1] if files else 0):06}.log"
            new.replace(path)
        except OSError:
            file.close()
            _remove(new)
            raise
        with contextlib.suppress(OSError):  # another writer of kin may remove one meanwhile
            kin = [one for one in self._folder.glob("*.log") if self._kin.fullmatch(path_parts(one)[0]) and one != path]
            for old in sorted(kin, key=lambda one: (one.stat().st_mtime_ns, one))[:-KEPT]:
                _remove(old)
        self._leave()
        self._file, self._path = file, path

    def _flush(self) -> None:
        inputs, self._buffer, self._buffered_bytes = self._buffer, [], 0
        if not inputs or self._file is None:
            return
        try:
            if not self._file.is_at(self._path):
                raise FileNotFoundError(f"{self._path} was removed, or replaced by another")
            self._file.add(self._frame(_INPUTS, encode([msgspec.Raw(one) for one in inputs])))
        except OSError as error:
            self._fail(len(inputs), error)

    def _fail(self, entries: int, error: Exception) -> None:
        self._health.lost(entries, error)
        self.broken = True
        self._retry_s = time.monotonic() + RETRY_S

    def _has_room(self) -> bool:
        probe = self._folder / f"{self._name}.new"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = WholeLines(probe, fresh=True)
            try:
                file.add(b"\0" * self._room_bytes)
            finally:
                file.close()
                _remove(probe)
        except OSError as error:
            self._fail(0, error)
            return False
        return True

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _compressor() -> "zlib._Compress":
    return zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def read_log(files: Iterable[Path], last_header: bool = False) -> Iterator[Entry]:
    """The entries of whole files, in order. A frame that a killed writer left unfinished ends its file, and is passed
    over. Raises OSError, LogError. `last_header`: begins at the last header of each file."""
    for path in files:
        with path.open("rb") as file:
            yield from _entries(file, path, last_header)


_header = decoder(Header)
_inputs = decoder(list[Input])


def _entries(file: BinaryIO, path: Path, last_header: bool) -> Iterator[Entry]:
    version = file.read(len(VERSION))
    if version != VERSION:
        raise LogError(f"{path}: not a decision log of this version: begins with {version!r}; allowed: {VERSION!r}")
    if last_header:
        file.seek(max((at for at, kind, _ in _frames(file, path) if kind == _HEADER), default=len(VERSION)))
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    for at, kind, body in _frames(file, path):
        if kind == _HEADER:
            inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = inflate.decompress(body)
            yield from [_header(content)] if kind == _HEADER else _inputs(content)
        except (zlib.error, WireError) as error:
            raise LogError(f"{path}, byte {at}: {error}") from error


def _frames(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """The place, kind and body of each frame from here on. Raises LogError for one that is damaged."""
    while len(head := file.read(9)) == 9:
        at, kind, size = file.tell() - 9, head[:1], int.from_bytes(head[1:5])
        known = kind in (_HEADER, _INPUTS)
        body = file.read(size) if known else b""
        if known and len(body) < size:
            return
        if not known or zlib.crc32(body) != int.from_bytes(head[5:]):
            raise LogError(f"{path}, byte {at}: a damaged part")
        yield at, kind, body
