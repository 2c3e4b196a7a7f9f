"""Imports run one way, `cli -> planning -> autoscaling -> deployments -> cluster`."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("cluster", "deployments", "autoscaling", "planning", "cli", "benchmarks")
"""From the lowest on: each imports from itself and from those before it."""


def modules() -> dict[str, Path]:
    return {_name(file): file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py"))}


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, known: dict[str, Path]) -> Iterator[str]:
    """The project's modules that a module imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            assert not node.level, f"{name}: a relative import"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [one for one in submodules if one in known]
            yield from found
            if len(found) < len(submodules):
                yield node.module


def test_imports_point_down() -> None:
    known = modules()
    up = [
        f"{name} -> {other}"
        for name in known
        for other in imported(name, known)
        if LAYERS.index(other.partition(".")[0]) > LAYERS.index(name.partition(".")[0])
    ]
    assert len(known) > 100
    assert up == []
