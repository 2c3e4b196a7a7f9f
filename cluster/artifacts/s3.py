"""An `s3://` prefix as the origin of files: boto3 lists it, s3transfer fetches it with the AWS CRT.

The CRT compares each file with the checksum that S3 stores of it: one of the whole object, or one of each part where
the parts are as long as what it asks for at once (8 MiB, which is also what boto3 and the AWS CLI upload by default).
Each request names the ETag that was listed (`If-Match`), so that a file that is replaced meanwhile is an error and not
a mixture.

Source: Amazon S3 User Guide, "Checking object integrity" (part-level checksums).
"""

import errno
import os
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import boto3
import botocore.session
from awscrt.exceptions import AwsCrtError
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from s3transfer.crt import (
    BotocoreCRTCredentialsWrapper,
    BotocoreCRTRequestSerializer,
    CRTTransferManager,
    create_s3_crt_client,
)
from s3transfer.subscribers import BaseSubscriber

from cluster.artifacts.download import Download
from cluster.artifacts.manifest import CachedFile, RemoteFile, checked_listing, crc_of
from cluster.artifacts.sources import ArtifactError, StorageUnavailable, bucket_and_prefix

_FILES_AT_ONCE = 4
"""Each is fetched by many connections. With all files at once, a pull that is killed would leave none that is whole."""
_CONNECT_S, _READ_S = 10.0, 30.0
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
    "400": "refused without a reason, as credentials are that have expired",
}
_DAMAGE = "AWS_ERROR_S3_RESPONSE_CHECKSUM_MISMATCH"
_MISSING = ("NoSuchBucket", "NoSuchKey", "NotFound", "404")
_BUSY = ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "500", "502", "503", "504")


class S3Origin:
    """The objects below an `s3://bucket/prefix`."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._bucket, self._prefix = bucket_and_prefix(source)
        self._session, self._client = _session_and_client(source)
        self._region: str = self._client.meta.region_name

    def listing(self) -> tuple[RemoteFile, ...]:
        """All objects below the prefix. Raises ArtifactError."""
        start = f"{self._prefix}/"
        try:
            found = list(self._objects(start))
        except (ClientError, BotoCoreError) as error:
            raise _failure(self.source, error) from error
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
            headers = page["ResponseMetadata"]["HTTPHeaders"]
            self._region = headers.get("x-amz-bucket-region", self._region)  # boto3 finds it, the CRT does not
            yield from page.get("Contents", ())

    def fetch(self, download: Download) -> None:
        """Fetches what is missing. Raises ArtifactError, OSError."""
        waiting, ended, running = deque(download.missing), SimpleQueue[_Transfer](), 0
        damaged: set[str] = set()
        with self._manager(download) as manager:
            while waiting or running:
                while waiting and running < _FILES_AT_ONCE:
                    transfer = _Transfer(waiting.popleft(), download, ended)
                    target = str(download.path(transfer.file))
                    manager.download(self._bucket, transfer.file.key, target, subscribers=[transfer])
                    running += 1
                transfer = ended.get()
                running -= 1
                try:
                    transfer.future.result()
                except (ClientError, BotoCoreError, AwsCrtError) as error:
                    if not _is_named(error, _DAMAGE) or transfer.file.name in damaged:
                        raise _failure(f"s3://{self._bucket}/{transfer.file.key}", error) from error
                    download.came(-transfer.size)
                    damaged.add(transfer.file.name)
                    waiting.append(transfer.file)
                else:
                    download.note(transfer.result())

    def _manager(self, download: Download) -> CRTTransferManager:
        tags = {file.key: f'"{file.tag}"' for file in download.missing}

        def name_the_version(params: dict[str, Any], **_: object) -> None:
            params["IfMatch"] = tags[params["Key"]]

        self._session.register("before-parameter-build.s3.GetObject", name_the_version)
        credentials = BotocoreCRTCredentialsWrapper(self._session.get_credentials())
        client = create_s3_crt_client(
            region=self._region,
            crt_credentials_provider=credentials.to_crt_credentials_provider(),
            use_ssl=self._client.meta.endpoint_url.startswith("https:"),
            verify=self._session.get_config_variable("ca_bundle"),
        )
        return CRTTransferManager(client, BotocoreCRTRequestSerializer(self._session, {"region_name": self._region}))


class _Transfer(BaseSubscriber):  # type: ignore[misc]
    """The transfer of one file. The CRT's threads call it."""

    def __init__(self, file: RemoteFile, download: Download, ended: "SimpleQueue[_Transfer]") -> None:
        self.file, self.size = file, 0
        self._download, self._ended = download, ended
        self._checked_by: str | None = None

    def on_progress(self, future: Any, bytes_transferred: int, **_: object) -> None:
        self.size += bytes_transferred
        self._download.came(bytes_transferred)

    def on_done(self, future: Any, checksum_validation_algorithm: Any = None, **_: object) -> None:
        self.future = future
        if checksum_validation_algorithm is not None:
            self._checked_by = checksum_validation_algorithm.name
        self._ended.put(self)

    def result(self) -> CachedFile:
        """What has come. Raises OSError, ArtifactError."""
        path = self._download.path(self.file)
        if (size := path.stat().st_size) != self.file.size:
            raise ArtifactError(f"{self.file.key}: {size} bytes came, not {self.file.size}; try it again")
        return CachedFile(
            name=self.file.name,
            size=size,
            tag=self.file.tag,
            crc64nvme=crc_of(path),
            checked_by=self._checked_by,
        )


def _is_named(error: Exception, name: str) -> bool:
    return isinstance(error, AwsCrtError) and error.name == name


def _failure(where: str, error: Exception) -> Exception:
    """What to raise: an ArtifactError, or the OSError of a full disk."""
    if isinstance(error, ClientError):
        return _refused(where, error)
    if _is_named(error, "AWS_ERROR_NO_SPACE"):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if _is_named(error, _DAMAGE):
        return ArtifactError(
            f"{where}: its content does not match the checksum that is stored with it, fetched twice; either the store "
            "holds a damaged file, or something on the way damages it"
        )
    if isinstance(error, AwsCrtError):
        return ArtifactError(f"{where}: {_words(error)}; what is whole is kept")
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return StorageUnavailable(f"{where}: {_words(error)}; looked for by {_CREDENTIALS}")
    if isinstance(error, (EndpointConnectionError, ConnectTimeoutError, HTTPClientError, ConnectionClosedError)):
        return StorageUnavailable(
            f"{where}: cannot be reached: {_words(error)}; endpoint: AWS_ENDPOINT_URL or the region's own"
        )
    return StorageUnavailable(f"{where}: {_words(error)}; allowed: {_CREDENTIALS}")  # a role that cannot be assumed


def _refused(where: str, error: ClientError) -> ArtifactError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code in _DENIED or status == 403:
        reason = _DENIED.get(code, "these credentials may not read it")
        return StorageUnavailable(f"{where}: {reason} ({code}); used: {_CREDENTIALS}")
    if code in ("PreconditionFailed", "412"):
        return ArtifactError(f"{where}: it was replaced while it was fetched; try it again")
    if code in _MISSING:
        return ArtifactError(f"{where}: there is no such bucket or object ({code}); allowed: one that exists")
    if code in _BUSY:
        return StorageUnavailable(f"{where}: the store answered {code}, also when asked again")
    return ArtifactError(f"{where}: {_words(error)}")


def _session_and_client(source: str) -> tuple[Any, Any]:
    """botocore's session, and boto3's client. Raises ArtifactError where its configuration is wrong."""
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "max_attempts": 3},
        user_agent_extra="raylane",
    )
    try:
        session = botocore.session.Session()
        return session, boto3.session.Session(botocore_session=session).client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StorageUnavailable(f"source {source!r}: {_words(error)}; allowed: {_CREDENTIALS}") from error


def _words(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
