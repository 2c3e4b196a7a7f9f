"""Where a model's files come from: the shipped demo model, a local folder, an `s3://` prefix, or a hub name."""

import re
from pathlib import Path

from cluster.errors import InputError
from cluster.files import shipped
from cluster.spec import ClusterSpec
from cluster.spec.models import LOCAL

_MARKS = ("config.json", "adapter_config.json")
"""A model's folder holds the first, an adapter's the second."""
SHIPPED = {"demo": "demo/target", "demo-draft": "demo/draft"}
S3 = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{1,254}")
"""A bucket's name; of an access point, its ARN."""
_KINDS = "a model's folder, s3://bucket/prefix, a hub name, or `demo`"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
"""No hub name has a colon before its revision."""


class ArtifactError(InputError):
    """A model source that cannot be used; the message names it and what is allowed or what to do."""


class StorageUnavailable(ArtifactError):
    """The store cannot be reached, or lets nobody in: what this machine already has may still be used."""


def resolve_source(source: str) -> str:
    """What a spec's `source` names on this machine: the absolute path of a folder, else `source` itself.

    `demo` and `demo-draft` are the shipped models. A source that starts with `/`, `./`, `../` or `~` is a local folder
    and must hold a `config.json` (an adapter's: an `adapter_config.json`). An `s3://` prefix and a hub name (anything
    else) are returned as they are: `local_folder` fetches them. Raises ArtifactError.
    """
    if source in SHIPPED:
        try:
            return str(shipped(SHIPPED[source]))
        except FileNotFoundError as error:
            raise ArtifactError(f"source {source!r}: {error}; allowed: a model's folder or a hub name") from None
    if source.startswith(S3):
        bucket_and_prefix(source)
        return source
    if _ADDRESS.match(source):
        raise ArtifactError(f"source {source!r}: a mistyped address; allowed: {_KINDS}")
    if (folder := folder_of(source)) is None:
        return source
    try:
        if any((folder / mark).is_file() for mark in _MARKS):
            return str(folder)
    except OSError as error:
        raise ArtifactError(f"source {source!r}: {error}; allowed: {_KINDS}") from None
    raise ArtifactError(f"source {source!r}: {folder} holds no {' or '.join(_MARKS)}; allowed: {_KINDS}")


def is_hub_name(source: str) -> bool:
    return source not in SHIPPED and not source.startswith((S3, *LOCAL))


def folder_of(source: str) -> Path | None:
    """The absolute path of the folder that a source names, if any, be it there or not. Raises ArtifactError."""
    try:
        return Path(source).expanduser().resolve() if source.startswith(LOCAL) else None
    except RuntimeError as error:
        raise ArtifactError(f"source {source!r}: {error}; allowed: {_KINDS}") from None


def bucket_and_prefix(source: str) -> tuple[str, str]:
    """Bucket and prefix (without slashes around it) of an `s3://` source. Raises ArtifactError."""
    bucket, _, prefix = source.removeprefix(S3).partition("/")
    if bucket.startswith("arn:"):  # s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/PREFIX
        name, _, prefix = prefix.partition("/")
        bucket = f"{bucket}/{name}"
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or not prefix:
        raise ArtifactError(f"source {source!r}: allowed: s3://bucket/prefix, the prefix of one model's files")
    return bucket, prefix


def missing_sources(spec: ClusterSpec) -> list[str]:
    """What is wrong with the sources of a spec's models, adapters and drafts on this machine."""
    problems = []
    for source in (source for model in spec.models for source in model.sources):
        try:
            resolve_source(source)
        except ArtifactError as error:
            problems.append(str(error))
    return problems
