"""What is known of a model's files: as its source lists them (`RemoteFile`), as the cache keeps them (`Manifest`)."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from awscrt.checksums import crc64nvme
from pydantic import BaseModel, ConfigDict

from cluster.artifacts.sources import ArtifactError

PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source: its `name` below the model's folder, its size in bytes, and the `tag` that changes with its
    content (an ETag, the hub's checksum). `key` is what the source itself calls it."""

    name: str
    size: int
    tag: str
    key: str


class CachedFile(BaseModel):
    """A file in the cache. `checked_by`: the checksum of its source that it was compared with; None where the source
    has none. `crc64nvme` is that of its content then."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int
    tag: str
    crc64nvme: int
    checked_by: str | None


class Manifest(BaseModel):
    """What an entry of the cache holds. `boot_id`: the boot of the machine that wrote it, until its files have been
    read once under a later one: what a kernel has not written to the disk is lost with its power."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    version: str
    files: tuple[CachedFile, ...]
    boot_id: str | None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def boot_id() -> str:
    """What changes when the machine starts anew; empty where that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def crc_of(path: Path) -> int:
    """The CRC-64/NVME of a file. Raises OSError."""
    crc, buffer = 0, memoryview(bytearray(PIECE))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            crc = crc64nvme(buffer[:size], crc)
    return crc


def problem_of(file: CachedFile, folder: Path, read: bool) -> str | None:
    """What is wrong with it: missing, of another size, or (`read`) of other content."""
    path = folder / file.name
    try:
        if (size := path.stat().st_size) != file.size:
            return f"{file.name}: {size} bytes, not {file.size}"
        if read and crc_of(path) != file.crc64nvme:
            return f"{file.name}: its content has changed"
    except OSError as error:
        return f"{file.name}: {error.strerror}"
    return None


def version_of(files: Iterable[RemoteFile]) -> str:
    """16 hexadecimal digits that change with any file."""
    facts = sorted((file.name, file.size, file.tag) for file in files)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def entry_name(source: str, version: str) -> str:
    """The folder's name in the cache: readable, and different for any other source or version."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", source.partition("://")[2] or source).strip("-.")[-80:]
    digest = hashlib.sha256(f"{source}\n{version}".encode()).hexdigest()[:16]
    return f"{readable}-{digest}"


def checked_listing(source: str, files: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files in order, with names that stay in the model's folder. Raises ArtifactError."""
    names = {file.name for file in files}
    for file in files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts or "\0" in file.name or str(path) != file.name:
            raise ArtifactError(
                f"source {source!r}: file {file.name!r}: allowed: a relative path without `..` or empty parts"
            )
        if any(str(parent) in names for parent in path.parents):
            raise ArtifactError(f"source {source!r}: {file.name!r}: a file has the name of one of its folders")
    return tuple(sorted(files, key=lambda file: file.name))
