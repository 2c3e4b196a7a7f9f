"""What was run before, so that a gauntlet that was broken off goes on where it was: JSON lines, a result a line, in a
file that several processes add to. And what a result came from: one of other code, or of another recording, is none.

Hashes are of files: a change of a policy spoils only its own results.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autoscaling.policies.policy import PolicyEntry
from deployments.telemetry.line_log import WholeLines


class Memo:
    """Results by key. `path` None: this process's own, kept nowhere. `trouble`: why nothing is written to the file any
    more, None where all is well."""

    def __init__(self, path: Path | None) -> None:
        self.trouble: str | None = None
        self._path = path
        self._known: dict[str, Any] = {} if path is None or not path.exists() else dict(_rows(path))

    def get(self, key: str) -> Any | None:
        return self._known.get(key)

    def put(self, key: str, about: dict[str, Any], result: Any) -> None:
        """Keeps a result (plain JSON values); `about` tells a reader what it is of. A file that takes no more (a full
        disk) is let be from then on: what is run goes on."""
        self._known[key] = result
        if self._path is None or self.trouble is not None:
            return
        line = json.dumps({"key": key, **about, "result": result}, separators=(",", ":")).encode() + b"\n"
        try:
            file = WholeLines(self._path)
            try:
                file.add(line)
            finally:
                file.close()
        except OSError as error:
            self.trouble = f"{self._path}: cannot be written: {error.strerror}; results are not remembered any more"


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
                yield row["key"], row["result"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # cut off by a crash, or of another make


def key_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


_ROOT = Path(__file__).parents[2]
_POLICIES = _ROOT / "autoscaling" / "policies"
_WORLD = (
    "autoscaling/policies/policy.py",
    "autoscaling/policies/settings.py",
    "autoscaling/scaler",
    "cluster/spec/autoscaling.py",
    "planning/scoring",
    "autoscaling/signals",
    "planning/workload",
    "deployments/engine_model",
    "deployments/scheduling",
)
_RUNNING = ("serving", "traffic", "recorded", "scenario", "run")
_LIMITS = ("schedule", "oracle", "known_rate")


@lru_cache
def world_hash() -> str:
    """Of what every run goes through."""
    simulator = sorted((_ROOT / "planning" / "simulator").glob("*.py"))
    own = [Path(__file__).with_name(f"{name}.py") for name in _RUNNING]
    return _hash([*simulator, *(file for place in _WORLD for file in _files(_ROOT / place)), *own])


@lru_cache
def limits_hash() -> str:
    """Of what knows the future."""
    return _hash(Path(__file__).with_name(f"{name}.py") for name in _LIMITS)


@lru_cache
def module_hash(module: str) -> str:
    """Of one module, such as a scenario's."""
    return _hash([_source(module)])


def policy_hash(entry: PolicyEntry) -> str:
    """Of a policy's room: all files beside the one that holds its settings; of that one alone where it lives in no room
    of its own. Of the room where it is made too, where that is another: a policy may take another's settings. And of
    Ray, whose functions some policies are."""
    make: Any = entry.make
    rooms = dict.fromkeys(
        _room(module) for module in (entry.settings.__module__, getattr(make, "func", make).__module__)
    )
    return "-".join([*map(_hash_once, rooms), "ray", version("ray")])


def recordings_hash(files: tuple[Path, ...]) -> str:
    """Of recorded traffic. Read once a process, as the recordings are."""
    return _hash_once(files)


@lru_cache
def _room(module: str) -> tuple[Path, ...]:
    file = _source(module)
    return (file,) if file.parent == _POLICIES else tuple(_files(file.parent))


def _source(module: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ValueError(f"{module}: no module with a source file")
    return Path(found.origin)


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


@lru_cache
def _hash_once(files: tuple[Path, ...]) -> str:
    return _hash(files)


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
