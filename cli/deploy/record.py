"""What was deployed last, kept where every operator finds it: in the cell's folder on the head, in AWS Secrets Manager,
or in a ConfigMap. And a lock there, so that one deployment of a cell runs at a time.

The record says step by step what has been applied: a deployment that is broken off goes on where it was.
"""

import base64
import contextlib
import lzma
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cli.deploy.serve_api import DeployError
from cluster.launch import EXTERNAL_FILE, KEYS_FILE, PEERS_FILE, SECRET_FILE, TOKEN_FILE, cell_folder
from cluster.secrets import AwsSecret

RECORD = "deployed"
"""The folder on the head, relative to the cell's, and the end of the names elsewhere."""
_NO_ANSWER = 255
"""The status of `ssh` where it does not reach the host."""


class EngineEstimate(BaseModel):
    """The costs of a group's engine from data sheets: a cost file's content, empty where there was none to be had.
    `engine`: a digest of what they were estimated for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str
    costs: str


class Applied(BaseModel):
    """What has been applied so far: digests of the cluster's files and of the applications (None: not yet, or a change
    has begun), the files themselves, the spec of the last deployment that was finished, and the one `before` it, which
    differs. Specs have no tenants' keys. `estimates`: by group, those that a deployment began with last."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str | None = None
    applications: str | None = None
    keys: str | None = None
    files: dict[str, str] = Field(default_factory=dict)
    content: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    estimates: dict[str, EngineEstimate] = Field(default_factory=dict)

    @property
    def way_back(self) -> dict[str, Any] | None:
        """The spec that was whole before the deployment that came last."""
        return self.content if self.applications is None else self.before


def parsed(text: str, source: str) -> Applied:
    """Raises DeployError."""
    if not text.strip():
        return Applied()
    try:
        return Applied.model_validate_json(text)
    except ValidationError as error:
        raise DeployError(f"{source}: not usable: {error.errors()[0]['msg']}") from None


def who() -> str:
    """Who holds a lock, for those who find it."""
    return f"process {os.getpid()} on {socket.gethostname()}"


class HeadRecord:
    """On the machine of the head, by `login`: ssh, its options, and the host."""

    def __init__(self, login: Sequence[str], cell: str) -> None:
        self._login = login
        self._cell = f"~/{cell_folder(cell)}"
        self._folder = f"{self._cell}/{RECORD}"
        self._host = login[-1]

    def read(self) -> Applied:
        source = f"{self._folder}/applied.json"
        return parsed(self._ask(f"if [ -e {source} ]; then cat {source}; fi"), f"{self._host}:{source}")

    def write(self, applied: Applied) -> None:
        file = f"{self._folder}/applied.json"
        draft = f"{file}.new"
        if applied == Applied():
            self._ask(f"rm -rf {self._folder}")
            return
        command = f"umask 077; mkdir -p {self._folder} && cat > {draft} && sync {draft} && mv {draft} {file}"
        self._ask(command, applied.model_dump_json(indent=1))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held as long as the connection is: a deployment that dies lets it go."""
        file = f"{self._folder}/lock"
        hold = shlex.quote(f"echo {shlex.quote(who())} >{file}; echo held; cat")
        held = f"umask 077; mkdir -p {self._folder} && touch -a {file} && flock --nonblock {file} sh -c {hold}"
        held += f" || cat {file}"
        with subprocess.Popen(
            [*self._login, held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                said = process.stdout.readline().strip()
                if said != "held":
                    process.kill()
                    if errors := process.stderr.read().strip():
                        raise DeployError(f"{self._host}: {errors[-500:]}")
                    raise DeployError(
                        f"another deployment of the cell runs, by {said or 'somebody'}; if its machine is gone: "
                        f"{shlex.join([*self._login, f'rm {file}'])}"
                    )
                yield
            finally:
                process.kill()

    def secrets(self) -> dict[str, str]:
        """The cell's secrets on the head, by file; empty: it has none."""
        names = (SECRET_FILE, TOKEN_FILE, KEYS_FILE, PEERS_FILE, EXTERNAL_FILE)
        files = " ".join(f"{self._cell}/secrets/{name}" for name in names)
        texts = self._ask(f"for file in {files}; do cat $file 2>/dev/null; printf '\\001'; done").split("\1")
        return {name: text for name, text in zip(names, texts, strict=False) if text}

    def _ask(self, command: str, body: str = "") -> str:
        done = subprocess.run([*self._login, command], input=body, capture_output=True, text=True, check=False)
        if done.returncode == _NO_ANSWER:
            raise DeployError(f"{self._host} does not answer: {done.stderr.strip()[-500:]}")
        if done.returncode:
            raise DeployError(f"{self._host}: status {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout


class AwsRecord:
    """Two secrets of AWS Secrets Manager, beside the cell's own: the record, and the lock while it is held. No head is
    needed to read it. By LZMA, since a secret holds 64 kB, and the record has estimates twice, far from each other."""

    def __init__(self, cell: str, region: str) -> None:
        self._record = AwsSecret(f"raylane/{cell}/{RECORD}", region)
        self._lock = AwsSecret(f"raylane/{cell}/deploying", region)

    def read(self) -> Applied:
        text = self._record.text()
        source = f"secret {self._record.name!r} of AWS Secrets Manager"
        try:
            return parsed("" if text is None else lzma.decompress(base64.b64decode(text)).decode(), source)
        except (ValueError, EOFError, lzma.LZMAError) as error:
            raise DeployError(f"{source}: not usable: {error}") from None

    def write(self, applied: Applied) -> None:
        self._record.put(base64.b64encode(lzma.compress(applied.model_dump_json().encode())).decode())

    @contextmanager
    def lock(self) -> Iterator[None]:
        if not self._lock.create(who()):
            raise DeployError(
                f"another deployment of the cell runs, by {self._lock.text()}; if it is gone: aws secretsmanager "
                f"delete-secret --force-delete-without-recovery --secret-id {self._lock.name}"
            )
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # what the deployment said counts
                self._lock.delete()
