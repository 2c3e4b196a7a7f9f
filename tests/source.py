"""The project's Python files, each parsed once in a process, for the tests that check layers, structure and names."""

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LAYERS = ("cluster", "deployments", "autoscaling", "planning", "cli", "benchmarks")
"""From the lowest on: each imports from itself and from those before it."""


@dataclass(frozen=True, slots=True)
class Source:
    """What those tests need of a file. Of a whole tree only this is kept: all trees together take much memory."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    """Wherever in the file they stand."""
    functions: tuple[tuple[str, int], ...]
    """Each function with the lines of its body, without signature and docstring."""
    public_classes: tuple[str, ...]
    names: frozenset[str]
    """All identifiers, and the names of metrics."""


@functools.cache
def modules() -> dict[str, Path]:
    """The files of all layers by the names of their modules."""
    return {_name(file): file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py"))}


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def source_of(file: Path) -> Source:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imports, functions, names = list[ast.Import | ast.ImportFrom](), list[tuple[str, int]](), set[str]()
    ahead: list[Any] = [tree]
    while ahead:  # `ast.walk` takes three times as long
        node = ahead.pop()
        if isinstance(node, str):
            names.update(node.split("."))  # an import's name has dots
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and re.fullmatch(r"raylane_\w+", node.value):
                names.add(node.value)
        elif isinstance(node, ast.AST):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node.name, _body_lines(node)))
            for value in vars(node).values():
                if isinstance(value, list):
                    ahead += value
                elif isinstance(value, ast.AST | str):
                    ahead.append(value)
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return Source(tuple(imports), tuple(functions), tuple(classes), frozenset(names))


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[bool(ast.get_docstring(node, clean=False)) and len(node.body) > 1]
    return (node.end_lineno or 0) - first.lineno + 1
