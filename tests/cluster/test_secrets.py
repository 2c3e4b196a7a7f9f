"""A cell's secrets: three files for their owner alone, or one secret of AWS Secrets Manager; never printed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.secrets import AwsSecret, CellSecrets, SecretsFolder, SecretsUnavailable, kept
from tests.aws import CREDENTIALS, moto_server
from tests.live.cluster import free_port

KEYS = {"search": ["sha256:" + "ab" * 32]}


def test_they_are_made_once_and_kept(tmp_path: Path) -> None:
    store = SecretsFolder(tmp_path / "secrets")
    assert store.read() is None
    first = kept(store, KEYS)
    assert kept(store, KEYS) == first
    other = kept(store, {})
    assert (other.secret, other.ray_token, other.tenant_keys) == (first.secret, first.ray_token, {})
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {0o600}
    assert first.secret not in repr(first)


def test_a_first_write_that_was_broken_off_is_done_again(tmp_path: Path) -> None:
    store = SecretsFolder(tmp_path)
    first = kept(store, KEYS)
    (tmp_path / "ray_token").unlink()
    assert store.read() is None
    assert kept(store, KEYS).secret != first.secret


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("secret", None, "secret: missing, though ray_token is there"),
        ("secret", "short", "secret: not usable"),
        ("tenant_keys.json", "[", "cannot be read"),
        ("tenant_keys.json", "[" * 100_000, "cannot be read"),
        ("tenant_keys.json", '{"a": 1}', "tenant_keys.a: not usable"),
    ],
)
def test_what_is_damaged_is_named_and_not_shown(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    made = kept(SecretsFolder(tmp_path), KEYS)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SecretsUnavailable) as caught:
        SecretsFolder(tmp_path).read()
    assert words in str(caught.value)
    assert made.secret not in str(caught.value)
    assert made.ray_token not in str(caught.value)


def test_a_file_that_is_no_text_is_replaced(tmp_path: Path) -> None:
    made = kept(SecretsFolder(tmp_path), KEYS)
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    SecretsFolder(tmp_path).write(made)
    assert (tmp_path / "secret").read_text() == made.secret


@pytest.mark.parametrize("region", ["[/]", "", "a b", "x" * 300])
def test_a_region_that_aws_has_not_is_named(region: str) -> None:
    with pytest.raises(SecretsUnavailable, match="AWS region "):
        AwsSecret("raylane/team-us", region)


@pytest.fixture(scope="module")
def secrets_manager() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.mark.whole
def test_aws_keeps_them_and_a_node_fetches_them(
    secrets_manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"AWS_ENDPOINT_URL": secrets_manager, **CREDENTIALS}.items():
        monkeypatch.setenv(name, value)
    store = AwsSecret("raylane/team-us", "us-east-1")
    command = [sys.executable, "-m", "cli.main", "secrets", "fetch", "raylane/team-us", "--aws-region", "us-east-1"]
    command += ["--into", str(tmp_path / "secrets")]
    assert store.read() is None
    missing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "AWS Secrets Manager has no secret 'raylane/team-us'" in missing.stderr
    first = kept(store, KEYS)
    changed = kept(store, {})
    assert (changed.secret, changed.tenant_keys) == (first.secret, {})
    fetched = subprocess.run(command, capture_output=True, text=True, check=True)
    assert first.secret not in fetched.stdout + fetched.stderr
    local = SecretsFolder(tmp_path / "secrets").read()
    assert local is not None
    assert local == changed


@pytest.mark.whole
def test_aws_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    for name, value in {"AWS_ENDPOINT_URL": nowhere, **CREDENTIALS, "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    store = AwsSecret("raylane/team-us", "us-east-1")
    for act in (store.read, lambda: store.write(CellSecrets.new({}))):
        with pytest.raises(SecretsUnavailable, match="secret 'raylane/team-us' of AWS Secrets Manager: "):
            act()


@pytest.mark.whole
def test_a_secret_of_another_form_is_refused() -> None:
    with pytest.raises(SecretsUnavailable, match="ray_token, secret: not usable"):
        CellSecrets.from_json(json.dumps({"tenant_keys": {}}), "there")
