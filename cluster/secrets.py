"""The secrets of a deployed cell: the cluster's own, Ray's token, and the digests of the tenants' keys; and the one by
which cells know each other.

On a node they are files in one folder, for their owner alone. They come from a folder of the machine that deploys,
from AWS Secrets Manager, or from a Kubernetes Secret that the pod mounts; nothing else ever holds them, and no command
line does.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster import launch
from cluster.files import write_private
from cluster.spec import ClusterSpec, Region

Keys = Mapping[str, Sequence[str]]
"""The digests of the tenants' keys, by tenant."""


class SecretsUnavailable(RuntimeError):
    """The secrets cannot be read or written; the message says where, and never what they are."""


class CellSecrets(BaseModel):
    """The content, which AWS Secrets Manager keeps as JSON. It is never printed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: str = Field(min_length=32, repr=False)
    ray_token: str = Field(min_length=32, repr=False)
    tenant_keys: dict[str, list[str]] = Field(default_factory=dict, repr=False)

    @classmethod
    def new(cls, tenant_keys: Keys) -> "CellSecrets":
        """Fresh ones, of 256 random bits each."""
        return cls(secret=secrets.token_hex(32), ray_token=secrets.token_hex(32)).with_keys(tenant_keys)

    def with_keys(self, tenant_keys: Keys) -> "CellSecrets":
        return self.model_copy(update={"tenant_keys": {name: list(tenant_keys[name]) for name in sorted(tenant_keys)}})

    @classmethod
    def from_json(cls, text: str, source: str) -> "CellSecrets":
        """Raises SecretsUnavailable."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            keys = ", ".join(sorted({".".join(map(str, one["loc"])) or "the whole" for one in error.errors()}))
            raise SecretsUnavailable(
                f"{source}: {keys}: not usable; allowed: JSON with secret and ray_token of at least 32 characters, and "
                "tenant_keys"
            ) from None


class SecretStore(Protocol):
    """Where a cell's secrets are kept."""

    def read(self) -> CellSecrets | None:
        """None: it has none yet. Raises SecretsUnavailable."""

    def write(self, content: CellSecrets) -> None:
        """Raises SecretsUnavailable."""


def kept(store: SecretStore, tenant_keys: Keys) -> CellSecrets:
    """The secrets with these keys: those that are kept, else fresh ones, which are kept from now on. Raises
    SecretsUnavailable."""
    known = store.read()
    content = CellSecrets.new(tenant_keys) if known is None else known.with_keys(tenant_keys)
    if known != content:
        store.write(content)
    return content


class SecretsFolder:
    """Three files in one folder, for their owner alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> CellSecrets | None:
        """None: it has none, or writing the first ones was broken off. Raises SecretsUnavailable."""
        folder = self.folder
        try:
            texts = {
                name: (folder / name).read_text(encoding="utf-8").strip() if (folder / name).exists() else None
                for name in (launch.SECRET_FILE, launch.TOKEN_FILE, launch.KEYS_FILE)
            }
            keys = json.loads(texts[launch.KEYS_FILE] or "{}")
        except (OSError, ValueError, RecursionError) as error:
            raise SecretsUnavailable(f"{folder}: cannot be read: {error}") from error
        secret, token = texts[launch.SECRET_FILE], texts[launch.TOKEN_FILE]
        if token is None:  # it is written last, and used by nobody before
            return None
        if secret is None:
            raise SecretsUnavailable(f"{folder / launch.SECRET_FILE}: missing, though {launch.TOKEN_FILE} is there")
        text = json.dumps({"secret": secret, "ray_token": token, "tenant_keys": keys})
        return CellSecrets.from_json(text, str(folder))

    def write(self, content: CellSecrets) -> None:
        """Writes what differs, each file in one move. Raises SecretsUnavailable."""
        folder = self.folder
        keys = json.dumps(content.tenant_keys, sort_keys=True)
        texts = {launch.KEYS_FILE: keys, launch.SECRET_FILE: content.secret, launch.TOKEN_FILE: content.ray_token}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            for name, text in texts.items():
                if not (folder / name).is_file() or (folder / name).read_bytes() != text.encode():
                    write_private(folder / name, text)
        except OSError as error:
            raise SecretsUnavailable(f"{folder}: cannot be written: {error.strerror}") from error

    def take(self, texts: Mapping[str, str]) -> None:
        """Writes files as another folder has them, the token last. Raises SecretsUnavailable."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in sorted(texts, key=lambda name: name == launch.TOKEN_FILE):
                write_private(self.folder / name, texts[name])
        except OSError as error:
            raise SecretsUnavailable(f"{self.folder}: cannot be written: {error.strerror}") from error


class AwsSecret:
    """One secret of AWS Secrets Manager, with boto3's own credential chain."""

    def __init__(self, name: str, region: str) -> None:
        """Raises SecretsUnavailable."""
        import boto3
        from botocore.exceptions import BotoCoreError

        self.name = name
        try:
            self._client: Any = boto3.client("secretsmanager", region_name=region)
        except (BotoCoreError, ValueError) as error:
            raise SecretsUnavailable(f"AWS region {region!r}: {error}") from error

    def read(self) -> CellSecrets | None:
        """None: there is no such secret. Raises SecretsUnavailable."""
        text = self.text()
        return None if text is None else CellSecrets.from_json(text, f"secret {self.name!r} of AWS Secrets Manager")

    def text(self) -> str | None:
        """As it is kept. None: there is no such secret. Raises SecretsUnavailable."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return str(self._client.get_secret_value(SecretId=self.name)["SecretString"])
        except self._client.exceptions.ResourceNotFoundException:
            return None
        except (BotoCoreError, ClientError, KeyError) as error:
            raise SecretsUnavailable(f"secret {self.name!r} of AWS Secrets Manager: {error}") from error

    def write(self, content: CellSecrets) -> None:
        """Makes it, or gives it a new version. Raises SecretsUnavailable."""
        self.put(content.model_dump_json())

    def put(self, text: str) -> None:
        """Makes it, or gives it a new version. Raises SecretsUnavailable."""
        if not self.create(text):
            self._call("put_secret_value", SecretId=self.name, SecretString=text)

    def create(self, text: str) -> bool:
        """False: there is one already. Raises SecretsUnavailable."""
        try:
            self._call("create_secret", Name=self.name, SecretString=text)
        except self._client.exceptions.ResourceExistsException:
            return False
        return True

    def delete(self) -> None:
        """At once. Raises SecretsUnavailable."""
        self._call("delete_secret", SecretId=self.name, ForceDeleteWithoutRecovery=True)

    def _call(self, operation: str, **parameters: Any) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            getattr(self._client, operation)(**parameters)
        except self._client.exceptions.ResourceExistsException:
            raise
        except (BotoCoreError, ClientError) as error:
            raise SecretsUnavailable(f"secret {self.name!r} of AWS Secrets Manager: {error}") from error


def read_shared_secret(file: str, spec: ClusterSpec, region: Region, folder: Path | None) -> str | None:
    """That secret of all cells (`launch.shared_secrets`), on a node of this region's cell; None where the spec names
    none. `folder`: of the node's secrets, in a deployed cell. Raises SecretsUnavailable."""
    found = next((one for one in launch.shared_secrets(spec) if one.file == file), None)
    return None if found is None else _read_shared(found, spec, region, folder)


def _read_shared(shared: launch.SharedSecret, spec: ClusterSpec, region: Region, folder: Path | None) -> str:
    source = shared.source
    if source.kind == "aws":
        name = source.name or f"raylane/{spec.name}/{shared.name}"
        where = f"secret {name!r} of AWS Secrets Manager"
        try:
            text = AwsSecret(name, launch.aws_region(region)).text()
        except SecretsUnavailable as error:
            raise SecretsUnavailable(f"{shared.key}: {error}") from None
    else:
        folders = [one for one in (folder, source.folder and Path(source.folder).expanduser()) if one]
        files = [one / shared.file for one in folders]
        where = " or ".join(map(str, files)) or "folder: missing, and no node's folder of secrets; the file"
        try:
            text = next((file.read_text(encoding="utf-8") for file in files if file.exists()), None)
        except (OSError, ValueError) as error:
            raise SecretsUnavailable(f"{shared.key}: {where}: cannot be read: {type(error).__name__}") from None
    if text is None:
        raise SecretsUnavailable(f"{shared.key}: {where}: missing; needed: the one that all cells share")
    if len(text.strip()) < shared.shortest:
        raise SecretsUnavailable(f"{shared.key}: {where}: allowed: at least {shared.shortest} characters")
    return text.strip()


def copy_shared_secrets(spec: ClusterSpec, folder: Path) -> dict[str, str]:
    """Puts the files of what all cells share beside the secrets of a cell that is to be deployed, where the spec names
    another folder for them. Returns their texts, by file. Raises SecretsUnavailable."""
    texts = {}
    for shared in launch.shared_secrets(spec):
        if shared.source.kind != "file":
            continue
        own = folder if shared.source.folder is None else None
        text, file = _read_shared(shared, spec, spec.regions[0], own), folder / shared.file
        texts[shared.file] = text
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not file.is_file() or file.read_bytes().strip() != text.encode():
                write_private(file, text)
        except OSError as error:
            raise SecretsUnavailable(f"{folder}: cannot be written: {error.strerror}") from error
    return texts
