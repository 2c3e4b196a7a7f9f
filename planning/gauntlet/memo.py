"""Stores results, so that an interrupted gauntlet resumes: JSON lines, one result each, in a file that several
processes add to. Keys hold hashes of the files that a result depends on: code and recordings. After a change to one
policy only its own results are computed again.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from autoscaling.policies.policy import PolicyEntry
from deployments.telemetry.line_log import WholeLines

ResultT = TypeVar("ResultT")


class Memo:
    """Results by key. Without a `path` they last as long as this process. `trouble`: why the file is not written any
    more."""

    def __init__(self, path: Path | None) -> None:
        self.trouble: str | None = None
        self._path = path
        self._known: dict[str, Any] = {} if path is None or not path.exists() else dict(_rows(path))

    def get(self, key: str) -> Any | None:
        return self._known.get(key)

    def get_as(self, kind: type[ResultT], key: str) -> ResultT | None:
        """The result as that dataclass; None where there is none, or something else."""
        try:
            return TypeAdapter(kind).validate_json(json.dumps(self._known.get(key)))
        except ValidationError:
            return None

    def put(self, key: str, about: dict[str, Any], result: Any) -> None:
        """Stores a result (plain JSON values); `about` describes it to a reader. After a failed write (a full disk) the
        file is left alone, and the run continues."""
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
            self.trouble = f"{self._path}: cannot be written: {error.strerror}; later results are not stored"


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
                yield row["key"], row["result"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # cut off by a crash, or of another format


def key_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


_ROOT = Path(__file__).parents[2]
_POLICIES = _ROOT / "autoscaling" / "policies"
_WORLD = (
    "autoscaling/policies/policy.py",
    "autoscaling/policies/settings.py",
    "autoscaling/scaler",
    "cluster/spec/autoscaling.py",
    "planning/scoring.py",
    "autoscaling/signals",
    "planning/workload",
    "deployments/engine_model",
    "deployments/scheduling",
)
_RUNNING = ("serving", "traffic", "recorded", "scenario", "run")
_LIMITS = ("schedule", "oracle", "known_rate")


@lru_cache
def world_hash() -> str:
    """Of the code that every run uses."""
    simulator = sorted((_ROOT / "planning" / "simulator").glob("*.py"))
    own = [Path(__file__).with_name(f"{name}.py") for name in _RUNNING]
    own += sorted(Path(__file__).with_name("engines").glob("*.json"))
    return _hash([*simulator, *(file for place in _WORLD for file in _files(_ROOT / place)), *own])


@lru_cache
def limits_hash() -> str:
    """Of the oracle and the known-rate baseline."""
    return _hash(Path(__file__).with_name(f"{name}.py") for name in _LIMITS)


@lru_cache
def module_hash(module: str) -> str:
    """Of one module, such as a scenario's."""
    return _hash([_source(module)])


def policy_hash(entry: PolicyEntry) -> str:
    """Of a policy's folder: all files beside the one with its settings, or that file alone if it is directly in
    `policies`. Of the folder where it is made too, if that is another one, because a policy may use another's settings.
    And of Ray, whose functions some policies call."""
    make: Any = entry.make
    rooms = dict.fromkeys(
        _room(module) for module in (entry.settings.__module__, getattr(make, "func", make).__module__)
    )
    return "-".join([*map(_hash_once, rooms), "ray", version("ray")])


def recordings_hash(files: tuple[Path, ...]) -> str:
    """Of recorded traffic, once for each process."""
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
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not files:
        raise ValueError(f"{place}: no source file")
    return files


@lru_cache
def _hash_once(files: tuple[Path, ...]) -> str:
    return _hash(files)


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
