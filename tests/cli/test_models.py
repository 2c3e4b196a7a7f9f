"""`raylane models`: pull, list, verify, evict."""

import json
from pathlib import Path

import pytest

from cluster.artifacts import ModelCache
from tests.commands import ran


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec whose one model's folder is copied into a cache."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: s\nregions: [{name: here, pools: [{name: cpu}]}]\n"
        f"models: [{{name: m, source: {tmp_path}/model, settings: {{max_model_len: 64}}}}]\n"
        f"artifacts: {{cache: {tmp_path}/cache, copy_folders: true, max_gib: 1}}\n"
    )
    return path


def run(*words: object) -> tuple[int, str]:
    done = ran("models", *words, code=None, columns=300)
    return done.exit_code, done.output


def test_a_model_is_pulled_listed_verified_and_evicted(spec: Path, tmp_path: Path) -> None:
    code, said = run("pull", spec)
    assert code == 0, said
    ((entry,), cache) = json.loads(run("list", "--spec", spec, "--json")[1]), ModelCache(tmp_path / "cache")
    assert (entry["whole"], entry["in_use"], entry["size"]) == (True, False, 2)
    assert "whole" in run("list", "--spec", spec)[1]
    assert run("verify", "--spec", spec) == (0, f"{entry['name']}: sound\n")
    held = cache.hold(entry["name"])
    assert held is not None
    code, said = run("evict", entry["name"], "--spec", spec)
    assert (code, "a running process uses it" in said) == (1, True)
    assert run("evict", "--unused", "--spec", spec) == (0, "")
    (held.files / "config.json").write_text("[]")
    held.release()
    code, said = run("verify", "--spec", spec)
    assert (code, "config.json: its content has changed" in said) == (1, True)
    assert run("evict", entry["name"], "--spec", spec)[0] == 0
    assert cache.list() == []


def test_what_is_used_where_it_is(spec: Path, tmp_path: Path) -> None:
    assert "demo: used where it is" in run("pull", "demo", "--cache", tmp_path / "cache")[1]


def test_the_caches_folder_may_be_below_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"in {tmp_path}/cache" in run("list", "--cache", "~/cache")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pull", "{spec}", "--model", "x"], "--model 'x': not in"),
        (["pull", "s3://bucket", "--cache", "{tmp}"], "allowed: s3://bucket/prefix"),
        (["pull", "{tmp}/none.yaml"], "is not a usable spec"),
        (["verify", "x", "--cache", "{tmp}"], "entry 'x': not in"),
        (["evict", "x", "--cache", "{tmp}"], "entry 'x': not in"),
        (["evict", "--cache", "{tmp}"], "allowed: either entries"),
        (["list", "--cache", "/proc/nothing"], "artifacts.cache = '/proc/nothing'"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], message: str, spec: Path, tmp_path: Path) -> None:
    code, said = run(*(word.format(spec=spec, tmp=tmp_path) for word in words))
    assert code in (1, 2)
    assert message in said, said
