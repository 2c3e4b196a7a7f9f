"""The pure core compiled by mypyc, as an option: `make install FAST=1` builds it, and `simulate`, `tune` and `plan` use
it.

The compiled modules stand apart from their sources, in `build/compiled`, and only a process with RAYLANE_COMPILED=1 in
its environment imports them; the three commands set that, for their workers too. What serves runs the sources. A build
whose sources have changed since is not used. Both give the same outcomes bit for bit
(`tests/planning/test_compiled.py`).
"""

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Container, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import ModuleType

ASKED = "RAYLANE_COMPILED"
"""1: use the compiled modules where they are built and current. 0: never."""
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "compiled"
MANIFEST = "sources.json"
_FOLDERS = ("deployments/scheduling", "deployments/engine_model")
_LEFT_OUT = ("recorder.py", "cost_file.py", "cost_model.py", "__init__.py")
"""The recorder is a subclass made for logs; pydantic, which reads cost files, makes no compiled curves."""
_SIMULATOR = tuple(f"planning/simulator/{name}.py" for name in ("cell", "fleet", "peered_cell"))
"""The cell, and all that inherits from it: an interpreted class cannot inherit from a compiled one."""


def sources(root: Path = ROOT) -> list[str]:
    """The modules that are compiled, relative to `root`."""
    core = [path for folder in _FOLDERS for path in sorted((root / folder).glob("*.py")) if path.name not in _LEFT_OUT]
    return [str(path.relative_to(root)) for path in core] + list(_SIMULATOR)


def fingerprint(root: Path = ROOT) -> dict[str, str]:
    """What a build was made of: SHA-256 by source, and the version of Python."""
    digests = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in sources(root)}
    return {**digests, "python": sys.version}


def is_current(folder: Path = FOLDER, root: Path = ROOT) -> bool | None:
    """Whether the build in `folder` was made of the sources as they are. None: there is no build."""
    try:
        built = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return bool(built == fingerprint(root))


class CompiledFinder:
    """Imports the modules that `folder` holds from there."""

    def __init__(self, folder: Path) -> None:
        suffix = EXTENSION_SUFFIXES[0]
        self._files = {
            ".".join(path.relative_to(folder).parts).removesuffix(suffix): path for path in folder.rglob(f"*{suffix}")
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `importlib.abc.MetaPathFinder` says."""
        file = self._files.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


def is_any_imported(modules: Container[str] | None = None) -> bool:
    """Whether `modules`, this process's by default, hold one that is compiled."""
    held = sys.modules if modules is None else modules
    return any(name.removesuffix(".py").replace("/", ".") in held for name in sources())


def use_compiled() -> bool:
    """Lets this process import the compiled modules, if the environment asks for them and the build is current.

    Not where one of their sources is imported already: compiled code that meets an interpreted class crashes.
    """
    if os.environ.get(ASKED) != "1" or is_any_imported() or not is_current():
        return False
    if not any(isinstance(finder, CompiledFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, CompiledFinder(FOLDER))
    return True
