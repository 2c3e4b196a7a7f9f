"""Imports run one way, `cli -> planning -> autoscaling -> deployments -> cluster`, in no circle, and what serves needs
no extra."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.source import LAYERS, modules, source_of


def imported(name: str, known: dict[str, Path]) -> Iterator[str]:
    """The project's modules that a module imports."""
    for node in source_of(known[name]).imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif node.module in known:
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


EXTRA = {"plotly", "optuna", "scipy", "jinja2", "markupsafe", "pandas", "statsmodels"}
"""Packages that an installation which only serves lacks."""


def test_no_import_goes_in_a_circle() -> None:
    known = modules()
    graph = {name: set(imported(name, known)) for name in known}
    assert sorted(name for name in known if name in _reached(graph, name)) == []


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """The modules that a module imports, and what those import."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def test_only_planning_and_benchmarks_import_packages_of_the_extras() -> None:
    wrong = [
        f"{name} -> {package}"
        for name, file in modules().items()
        if not name.startswith(("planning", "benchmarks"))
        for node in source_of(file).imports
        for package in _packages(node)
        if package in EXTRA
    ]
    assert wrong == []


def _packages(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {(node.module or "").partition(".")[0]}
