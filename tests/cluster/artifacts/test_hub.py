"""Hub names by huggingface_hub's own library, from a small server that answers as the hub does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.artifacts import StorageUnavailable
from cluster.artifacts.hub import HubOrigin, engine_files
from tests.http_server import Handler, listening

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = os.urandom(300_000)
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": LARGE,
    "pytorch_model.bin": b"the same again",
    "original/consolidated.00.pth": b"and again",
    ".gitattributes": b"",
}


class Hub(Handler):
    """Answers for `org/model`; everything else is unknown, and `org/gated` is gated."""

    protocol_version = "HTTP/1.1"
    damaged = False

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/model/tree/"):
            self._send(200, json.dumps(self._tree()).encode())
        elif path.startswith("/api/models/org/model"):
            self._send(200, json.dumps({"id": "org/model", "sha": COMMIT, "siblings": self._siblings()}).encode())
        elif path.startswith("/org/model/resolve/") and (name := path.split("/", 5)[5]) in FILES:
            content = FILES[name]
            if self.damaged and name == "model.safetensors":
                content = content[:-1] + bytes([content[-1] ^ 1])
            tag = hashlib.sha256(FILES[name]).hexdigest()
            self._send(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})
        elif "org/gated" in path:
            self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _siblings(self) -> list[dict[str, Any]]:
        return [
            {"rfilename": name, "size": len(content), "blobId": _git_sha(content), **self._lfs(name, content)}
            for name, content in FILES.items()
        ]

    def _tree(self) -> list[dict[str, object]]:
        return [
            {
                "type": "file",
                "path": file["rfilename"],
                "size": file["size"],
                "oid": file["blobId"],
                **({"lfs": {**file["lfs"], "oid": file["lfs"]["sha256"]}} if "lfs" in file else {}),
            }
            for file in self._siblings()
        ]

    @staticmethod
    def _lfs(name: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        is_large = name == "model.safetensors"
        return {"lfs": {"sha256": digest, "size": len(content), "pointerSize": 130}} if is_large else {}

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.answer(status, body, {"content-type": "application/json", **(headers or {})})


def _git_sha(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


@contextmanager
def hub(damaged: bool = False) -> Iterator[str]:
    with listening(type("OneHub", (Hub,), {"damaged": damaged})) as url:
        yield url


def pull(endpoint: str, source: str, cache: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "cli.main", "models", "pull", source, "--cache", str(cache)]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache.parent / "hf"),
        "COLUMNS": "400",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.whole
def test_a_model_of_the_hub_comes_without_its_second_copies(tmp_path: Path) -> None:
    with hub() as endpoint:
        code, said = pull(endpoint, "org/model", tmp_path / "cache")
    assert code == 0, said
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    files = {path.name: path.read_bytes() for path in (entry / "files").rglob("*") if path.is_file()}
    assert files == {name: FILES[name] for name in ("config.json", "model.safetensors")}
    manifest = json.loads((entry / "manifest.json").read_text())
    assert [file["checked_by"] for file in manifest["files"]] == ["git", "sha256"]


@pytest.mark.whole
def test_what_the_hub_refuses_or_damages_is_said(tmp_path: Path) -> None:
    with hub(damaged=True) as endpoint:
        code, said = pull(endpoint, "org/model", tmp_path / "cache")
        assert (code, "model.safetensors: its content does not match its sha256" in said) == (1, True), said
        assert not list((tmp_path / "cache" / "entries").iterdir())
        assert "no such model on the hub" in pull(endpoint, "org/unknown", tmp_path / "cache")[1]
        assert "gated; allowed: a token" in pull(endpoint, "org/gated", tmp_path / "cache")[1]
    assert "the hub cannot be used" in pull(endpoint, "org/model", tmp_path / "cache")[1]


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Handler):
        def do_GET(self) -> None:
            threading.Event().wait(5.0)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
    with listening(Silent) as endpoint:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        with pytest.raises(StorageUnavailable, match=r"the hub cannot be used: .*timed out"):
            HubOrigin("org/model").listing()


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["model.safetensors", "pytorch_model.bin", "config.json"], ["model.safetensors", "config.json"]),
        (["pytorch_model.bin", "config.json"], ["pytorch_model.bin", "config.json"]),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors", "params.json"]),
        (["consolidated.safetensors", "model-1-of-2.safetensors"], ["model-1-of-2.safetensors"]),
        (["original/x.pth", ".gitattributes", "tokenizer.json"], ["tokenizer.json"]),
    ],
)
def test_what_an_engine_reads(names: list[str], kept: list[str]) -> None:
    assert engine_files(names) == kept
