"""What the tests against the S3 server share: the server, models in its buckets, `raylane models pull` as a process of
its own, and the checksums that Swift does not store."""

import base64
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from awscrt.checksums import crc32, crc64nvme

from tests.s3.proxy import Passed, Proxy
from tests.s3.server import S3Server, s3_server

PART = 8 << 20
"""What boto3 uploads at once, and the CRT asks for."""


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server with an empty bucket `models`."""
    pytest.importorskip("swift", reason="the S3 server (PyPI `swift`) is not installed")
    with tempfile.TemporaryDirectory(prefix="s3-") as folder, s3_server(Path(folder)) as server:
        server.client().create_bucket(Bucket="models")
        yield server


def upload(server: S3Server, prefix: str, sizes: dict[str, int]) -> dict[str, bytes]:
    """Random files below `prefix`; those of more than a part in several parts. Returns their contents."""
    from boto3.s3.transfer import TransferConfig

    client, contents = server.client(), {}
    for name, size in sizes.items():
        contents[name] = random.Random(f"{prefix}/{name}").randbytes(size)
        with tempfile.TemporaryFile() as file:
            file.write(contents[name])
            file.seek(0)
            config = TransferConfig(multipart_threshold=PART + 1, multipart_chunksize=PART, max_concurrency=2)
            client.upload_fileobj(file, "models", f"{prefix}/{name}", Config=config)
    return contents


def whole_checksums(contents: dict[str, bytes]) -> Callable[[Passed], dict[str, str]]:
    """What S3 says of objects with a checksum of the whole."""

    def adds(passed: Passed) -> dict[str, str]:
        content = contents.get(passed.name, b"")
        return {"x-amz-checksum-crc64nvme": _encoded(crc64nvme(content), 8)} if passed.method == "HEAD" else {}

    return adds


def part_checksums(contents: dict[str, bytes]) -> Callable[[Passed], dict[str, str]]:
    """What S3 says of objects with a checksum of each part, when it is asked for exactly that part."""

    def adds(passed: Passed) -> dict[str, str]:
        if passed.span is None:
            return {"x-amz-checksum-crc32": f"{_encoded(0, 4)}-2"} if passed.method == "HEAD" else {}
        return {"x-amz-checksum-crc32": _encoded(crc32(contents[passed.name][slice(*passed.span)]), 4)}

    return adds


def _encoded(crc: int, width: int) -> str:
    return base64.b64encode(crc.to_bytes(width, "big")).decode()


@dataclass(frozen=True)
class Puller:
    """Runs `raylane models pull` on a cache."""

    cache: Path
    environment: dict[str, str]

    def behind(self, proxy: Proxy) -> "Puller":
        """The same by way of a proxy."""
        return Puller(self.cache, {**self.environment, "AWS_ENDPOINT_URL": proxy.endpoint})

    def start(self, source: str, **environment: str) -> "subprocess.Popen[str]":
        """As a process. Its standard error has no colours."""
        return self._start("pull", source, **environment)

    def _start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "cli.main", "models", *arguments, "--spec", self.spec]
        variables = {**os.environ, **self.environment, **environment, "NO_COLOR": "1", "COLUMNS": "400"}
        return subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def pull(self, source: str, **environment: str) -> tuple[int, str]:
        """Its exit code, and what it printed."""
        return self._ended(self.start(source, **environment))

    def run(self, *arguments: str) -> tuple[int, str]:
        """The same of another command of `raylane models`."""
        return self._ended(self._start(*arguments))

    @staticmethod
    def _ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
        out, err = process.communicate(timeout=120)
        return process.returncode, out + err

    @property
    def spec(self) -> str:
        """A spec whose cache is this one."""
        path = self.cache.parent / "spec.yaml"
        path.write_text(
            "name: s3\nregions: [{name: here, pools: [{name: cpu}]}]\n"
            "models: [{name: m, source: demo, settings: {max_model_len: 64}}]\n"
            f"artifacts: {{cache: {self.cache}}}\n"
        )
        return str(path)

    def files(self) -> dict[str, bytes]:
        """The contents of the only entry."""
        (entry,) = (self.cache / "entries").iterdir()
        root = entry / "files"
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def entries(self) -> list[Any]:
        return list((self.cache / "entries").iterdir()) if (self.cache / "entries").exists() else []

    def whole(self) -> set[str]:
        """The files of an interrupted pull that are whole."""
        notes = list(self.cache.glob("partial/*/manifest.json"))
        return {file["name"] for path in notes for file in json.loads(path.read_text())["files"]}
