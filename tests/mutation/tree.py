"""A copy of the tree that mutants may be made in: the checked-out one is never changed."""

import ast
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
MUTATED = (
    "deployments/scheduling/*.py",
    "deployments/ownership/*.py",
    "deployments/cell/owners.py",
    "deployments/store.py",
    "deployments/cell/membership.py",
)
_PARTS = ("autoscaling", "benchmarks", "cli", "cluster", "deployments", "infra", "tests", "pyproject.toml")
_IGNORED = shutil.ignore_patterns("__pycache__", ".hypothesis")


def copy_tree(to: Path) -> Path:
    """Copies what the tests of the mutated packages need; `to` exists and is empty."""
    for name in _PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=_IGNORED)
        else:
            shutil.copy2(source, to / name)
    return to


def sources() -> list[str]:
    """The modules that are mutated, as paths from the root, sorted."""
    return sorted(
        str(path.relative_to(ROOT)) for pattern in MUTATED for path in ROOT.glob(pattern) if path.name != "__init__.py"
    )


def without_property_decorators(code: str) -> str:
    """The same code with each `@property` written as a call after its function: mutmut mutates no decorated function
    but static and class methods."""
    lines = code.splitlines()
    found = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef)
        and [ast.unparse(decorator) for decorator in node.decorator_list] == ["property"]
    ]
    for node in sorted(found, key=lambda node: -node.lineno):
        assert node.end_lineno is not None
        lines.insert(node.end_lineno, f"{' ' * node.col_offset}{node.name} = property({node.name})")
        del lines[node.decorator_list[0].lineno - 1]
    return "\n".join(lines) + "\n"
