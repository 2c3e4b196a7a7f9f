"""Where a model's files come from."""

from pathlib import Path

import pytest

from cluster.artifacts import ArtifactError, resolve_source
from cluster.files import shipped


def test_a_hub_name_is_handed_on() -> None:
    assert resolve_source("org/model-7b") == "org/model-7b"


@pytest.mark.parametrize("source", ["s3:/bucket/model", "S3://bucket/model", "s3:bucket", "gs://bucket/model"])
def test_a_mistyped_address_is_no_hub_name(source: str) -> None:
    with pytest.raises(ArtifactError, match=r"a mistyped address; allowed: .*s3://bucket/prefix"):
        resolve_source(source)


def test_a_local_folder_must_hold_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ArtifactError, match=r"holds no config\.json or adapter_config\.json; allowed: a model's folder"
    ):
        resolve_source(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve_source(str(tmp_path)) == str(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    assert resolve_source(f"./{tmp_path.name}") == str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert resolve_source(f"~/{tmp_path.name}") == str(tmp_path)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuses)  # root may read everything
    with pytest.raises(ArtifactError, match="Permission denied"):
        resolve_source(str(tmp_path))


def test_a_home_that_is_unknown() -> None:
    with pytest.raises(ArtifactError, match="allowed"):
        resolve_source("~nobody-of-that-name/model")


def test_what_does_not_ship(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import cluster.files as module

    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "cluster")
    with pytest.raises(FileNotFoundError, match="does not ship"):
        shipped("specs/local.yaml")
    with pytest.raises(ArtifactError, match="does not ship"):
        resolve_source("demo")
