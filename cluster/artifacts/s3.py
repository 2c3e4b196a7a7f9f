"""An `s3://` prefix as the origin of files, by boto3: its credential chain, its endpoints, its retries.

A request names the ETag that was listed (`If-Match`), so that a file that is replaced meanwhile is an error and not a
mixture. `checksums.py` says by what a file is checked.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)

from cluster.artifacts.checksums import Checksums
from cluster.artifacts.manifest import CachedFile, RemoteFile, checked_listing
from cluster.artifacts.progress import ProgressReport
from cluster.artifacts.ranged import Checked, Interrupted, RangedDownload, Read, Transfer
from cluster.artifacts.sources import ArtifactError, StorageUnavailable, bucket_and_prefix

_CONNECT_S, _READ_S = 10.0, 30.0
_BATCH = 256 << 10
"""Bytes for which the kernel wakes a reader. A connection slower than this in `_READ_S` counts as broken."""
_CREDENTIALS = (
    "boto3's chain: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE and ~/.aws, or the role of the instance "
    "or pod"
)
_DENIED = {
    "InvalidAccessKeyId": "the access key is unknown there",
    "SignatureDoesNotMatch": "the secret key is wrong, or the access key unknown",
    "ExpiredToken": "the credentials have expired",
    "ExpiredTokenException": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "AccessDenied": "these credentials may not read it",
    "Forbidden": "these credentials may not read it",
    "403": "these credentials may not read it",
}
_MISSING = ("NoSuchBucket", "NoSuchKey", "NotFound", "404")
_BUSY = ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "500", "502", "503", "504")
ResultT = TypeVar("ResultT")


class S3Origin:
    """The objects below an `s3://bucket/prefix`."""

    def __init__(self, source: str, part_bytes: int, connections: int) -> None:
        self.source = source
        self._bucket, self._prefix = bucket_and_prefix(source)
        self._client = _client(source, connections)
        self._checksums = Checksums(self._client, self._bucket)
        self._transfer = Transfer(self._opened, self._checked, part_bytes, connections)

    def listing(self) -> tuple[RemoteFile, ...]:
        """All objects below the prefix. Raises ArtifactError."""
        start = f"{self._prefix}/"
        found = self._asked(self.source, lambda: list(self._objects(start)))
        files = [
            RemoteFile(item["Key"].removeprefix(start), item["Size"], item["ETag"].strip('"'), item["Key"])
            for item in found
            if not item["Key"].endswith("/")  # what consoles make for an empty folder
        ]
        if not files:
            raise ArtifactError(
                f"source {self.source!r}: nothing is below this prefix; allowed: one that holds a model"
            )
        return checked_listing(self.source, files)

    def _objects(self, start: str) -> Iterator[Any]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=start):
            yield from page.get("Contents", ())

    def fetch(self, files: Sequence[RemoteFile], partial: Path, report: ProgressReport) -> tuple[CachedFile, ...]:
        """Fetches them. Raises ArtifactError, OSError."""
        return RangedDownload(files, partial, self._transfer, report).run()

    @contextmanager
    def _opened(self, file: RemoteFile, start: int, end: int) -> Iterator[Read]:
        where = f"s3://{self._bucket}/{file.key}"
        answer = self._asked(
            where,
            lambda: self._client.get_object(
                Bucket=self._bucket, Key=file.key, Range=f"bytes={start}-{end - 1}", IfMatch=f'"{file.tag}"'
            ),
            busy=Interrupted,
        )
        body = answer["Body"]
        if answer["ContentLength"] != end - start:
            body.close()
            raise ArtifactError(f"{where}: answered {answer['ContentLength']} bytes to a request for {end - start}")

        left = end - start
        with body as raw, _gathering(raw) as gather:

            def read(size: int) -> bytes:
                nonlocal left
                gather(left - size > 2 * _BATCH)
                try:
                    content: bytes = body.read(size)
                except (HTTPClientError, IncompleteReadError, OSError) as error:
                    raise Interrupted(f"the connection broke ({_words(error)})") from error
                left -= len(content)
                return content

            yield read

    def _checked(self, file: RemoteFile, path: Path, crc: int) -> Checked:
        where = f"s3://{self._bucket}/{file.key}"
        return self._asked(where, lambda: self._checksums.check(file, path, crc))

    def _asked(self, where: str, ask: Callable[[], ResultT], busy: type[Exception] | None = None) -> ResultT:
        """The answer. Raises ArtifactError with what is wrong; `busy` where another try may help."""
        try:
            return ask()
        except ClientError as error:
            raise self._refused(where, error, busy) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StorageUnavailable(f"{where}: {_words(error)}; looked for by {_CREDENTIALS}") from error
        except (EndpointConnectionError, ConnectTimeoutError) as error:
            raise self._trouble(f"{where}: cannot be reached: {_words(error)}", busy) from error
        except (HTTPClientError, ConnectionClosedError) as error:
            raise self._trouble(f"{where}: {_words(error)}", busy) from error
        except BotoCoreError as error:  # a profile that is missing, a role that cannot be assumed
            raise StorageUnavailable(f"{where}: {_words(error)}; allowed: {_CREDENTIALS}") from error

    @staticmethod
    def _trouble(message: str, busy: type[Exception] | None) -> Exception:
        return (
            StorageUnavailable(f"{message}; endpoint: AWS_ENDPOINT_URL or the region's own")
            if busy is None
            else busy(message)
        )

    def _refused(self, where: str, error: ClientError, busy: type[Exception] | None) -> Exception:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if code in _DENIED or status == 403:
            reason = _DENIED.get(code, "these credentials may not read it")
            return StorageUnavailable(f"{where}: {reason} ({code}); used: {_CREDENTIALS}")
        if code in ("PreconditionFailed", "412"):
            return ArtifactError(f"{where}: it was replaced while it was fetched; try it again")
        if code in _MISSING:
            return ArtifactError(f"{where}: there is no such bucket or object ({code}); allowed: one that exists")
        if code in _BUSY and busy is not None:
            return busy(f"the store answered {code}")
        if code in _BUSY:
            return StorageUnavailable(f"{where}: the store answered {code}, also when asked again")
        return ArtifactError(f"{where}: {_words(error)}")


@contextmanager
def _gathering(raw: Any) -> Iterator[Callable[[bool], None]]:
    """Switches whether the kernel wakes the reader of an answer for `_BATCH` bytes, or for every packet, which takes a
    third more of the CPU. To be off before less than that is left: else the reader would never be woken."""
    try:
        connection = socket.socket(fileno=os.dup(raw.fileno()))
    except OSError:  # its last byte has come already
        yield lambda whether: None
        return
    is_on = False

    def gather(whether: bool) -> None:
        nonlocal is_on
        if whether != is_on:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _BATCH if whether else 1)
            is_on = whether

    with connection:
        yield gather


_SESSION_LOCK = threading.Lock()


def _client(source: str, connections: int) -> Any:
    """boto3's client. Raises ArtifactError where its configuration is wrong or names no region."""
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        max_pool_connections=connections + 1,
        retries={"mode": "standard", "max_attempts": 3},
        response_checksum_validation="when_required",  # of a range there is none, and whole files are checked here
        user_agent_extra="raylane",
    )
    try:
        with _SESSION_LOCK:
            return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StorageUnavailable(f"source {source!r}: {_words(error)}; allowed: {_CREDENTIALS}") from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
