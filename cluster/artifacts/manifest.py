"""What is known of a model's files: as its source lists them (`RemoteFile`), as the cache keeps them (`Manifest`)."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from cluster.artifacts.progress import ProgressReport
from cluster.artifacts.sources import ArtifactError


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source: its `name` below the model's folder, its size in bytes, and the `tag` that changes with its
    content (an ETag, the hub's checksum). `key` is what the source itself calls it."""

    name: str
    size: int
    tag: str
    key: str


class CachedFile(BaseModel):
    """A file in the cache. `crc64nvme` is that of its content as it was checked against `checked_by` of the source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int
    tag: str
    crc64nvme: int
    checked_by: str


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


class Origin(Protocol):
    """Where files come from."""

    source: str

    def listing(self) -> tuple[RemoteFile, ...]:
        """All files that the engine may need. Raises ArtifactError."""

    def fetch(self, files: Sequence[RemoteFile], partial: Path, report: ProgressReport) -> tuple[CachedFile, ...]:
        """Completes `partial/files` and checks it; what is there from before is used. Raises ArtifactError, OSError."""


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
