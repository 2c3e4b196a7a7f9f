"""The secret that all cells share: where a gateway reads it, and what is said where it cannot."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.launch import PEERS_FILE
from cluster.secrets import AwsSecret, SecretsUnavailable, copy_shared_secrets, read_shared_secret
from cluster.spec import ClusterSpec
from tests.aws import CREDENTIALS
from tests.cluster.test_secrets import secrets_manager  # noqa: F401  # a fixture

SECRET = "the secret of all cells, 32 letters at least"


def spec_of(secret: dict[str, Any] | None) -> ClusterSpec:
    tls = {"cert": "c.pem", "key": "k.pem", "ca": "ca.pem"}
    return ClusterSpec.model_validate(
        {
            "name": "chat",
            "regions": [
                {"name": name, "endpoint": f"https://{name}", "pools": [{"name": "p"}]}
                for name in ("us-east-1", "eu-west-1")
            ],
            "models": [{"name": "m", "source": "s", "settings": {"max_model_len": 100}}],
            "peering": {"tls": tls} if secret is None else {"secret": secret},
        }
    )


def read(spec: ClusterSpec, folder: Path | None = None) -> str | None:
    return read_shared_secret(PEERS_FILE, spec, spec.regions[0], folder)


def test_it_is_read_from_the_folder_that_the_spec_names(tmp_path: Path) -> None:
    (tmp_path / "peers_secret").write_text(SECRET + "\n")
    assert read(spec_of({"kind": "file", "folder": str(tmp_path)})) == SECRET


def test_a_deployed_node_has_it_beside_its_other_secrets(tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.mkdir()
    (node / "peers_secret").write_text(SECRET)
    assert read(spec_of({"kind": "file"}), node) == SECRET
    assert read(spec_of({"kind": "kubernetes"}), node) == SECRET
    assert read(spec_of({"kind": "file", "folder": "/on/the/machine/that/deploys"}), node) == SECRET


def test_with_certificates_alone_there_is_none(tmp_path: Path) -> None:
    assert read(spec_of(None)) is None
    spec = spec_of(None)
    assert read_shared_secret(PEERS_FILE, spec.model_copy(update={"peering": None}), spec.regions[0], tmp_path) is None


@pytest.mark.parametrize("content", [None, "", "too short", " " * 40])
def test_what_is_missing_is_named_and_never_shown(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "peers_secret").write_text(content)
    with pytest.raises(SecretsUnavailable, match=r"^peering\.secret: .*peers_secret: ") as refused:
        read(spec_of({"kind": "file", "folder": str(tmp_path)}))
    assert "too short" not in str(refused.value)
    assert re.search("missing; needed" if content is None else "at least 32 characters", str(refused.value))


def test_a_folder_is_needed_where_no_node_has_one() -> None:
    with pytest.raises(SecretsUnavailable, match=r"peering\.secret: folder: missing"):
        read(spec_of({"kind": "file"}))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda file: file.mkdir(), "IsADirectoryError"),
        (lambda file: file.write_bytes(bytes(range(128, 192))), "UnicodeDecodeError"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make: Callable[[Path], object], error: str) -> None:
    make(tmp_path / "peers_secret")
    with pytest.raises(SecretsUnavailable, match=rf"peering\.secret: .*peers_secret: cannot be read: {error}"):
        read(spec_of({"kind": "file", "folder": str(tmp_path)}))


def test_deploying_puts_it_beside_the_cells_own(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "peers_secret").write_text(SECRET)
    spec = spec_of({"kind": "file", "folder": str(source)})
    for _ in range(2):
        assert copy_shared_secrets(spec, target) == {"peers_secret": SECRET}
        assert (target / "peers_secret").read_text() == SECRET
        assert (target / "peers_secret").stat().st_mode & 0o777 == 0o600
    assert copy_shared_secrets(spec_of({"kind": "file"}), target) == {"peers_secret": SECRET}, "it is there"
    assert copy_shared_secrets(spec_of(None), tmp_path / "none") == {}
    assert not (tmp_path / "none").exists()
    (source / "peers_secret").unlink()
    with pytest.raises(SecretsUnavailable, match=r"peering\.secret: "):
        copy_shared_secrets(spec, target)


@pytest.mark.whole
def test_aws_keeps_it(secrets_manager: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for name, value in {"AWS_ENDPOINT_URL": secrets_manager, **CREDENTIALS}.items():
        monkeypatch.setenv(name, value)
    spec = spec_of({"kind": "aws"})
    where = "peering.secret: secret 'raylane/chat/peers' of AWS Secrets Manager: missing"
    with pytest.raises(SecretsUnavailable, match=re.escape(where)):
        read(spec)
    store = AwsSecret("raylane/chat/peers", "us-east-1")
    store._client.create_secret(Name=store.name, SecretString=SECRET)
    assert read(spec) == SECRET
