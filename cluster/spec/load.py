"""Reads a spec from YAML, with errors that an operator can act on: key, value, what is allowed.

`raylane spec check`, `raylane up` and the tests call this; nothing else parses specs. Other YAML files of raylane (the traffic file) are read with
`parse_section`, so that all speak alike.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from cluster.spec.allowed import allowed
from cluster.spec.cluster import ClusterSpec
from cluster.spec.paths import FOLDER

SectionT = TypeVar("SectionT", bound=BaseModel)


class SpecError(ValueError):
    """A spec that cannot be used. `problems` holds one line each: `key = value: what is wrong or allowed`."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = problems


def load_spec(path: Path) -> ClusterSpec:
    """The spec in the YAML file `path`. Raises SpecError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [f"cannot be read: {error}"]) from error
    return parse_spec(text, source=str(path), folder=path.resolve().parent)


def parse_spec(text: str, source: str = "spec", folder: Path | None = None) -> ClusterSpec:
    """The spec in a YAML text. `source` names it in errors; paths that are relative to the spec start from `folder`. Raises SpecError."""
    return parse_section(ClusterSpec, text, source, folder)


def parse_section(kind: type[SectionT], text: str, source: str, folder: Path | None = None) -> SectionT:
    """What a YAML text says, as a `kind`. `source` and `folder` as in `parse_spec`. Raises SpecError."""
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter two: a date of no calendar, an endless nesting
        raise SpecError(source, [f"is not YAML: {' '.join(str(error).split())}"]) from error
    if not isinstance(data, dict):
        raise SpecError(source, [f"must be a mapping of keys at the top level, not {type(data).__name__}"])
    try:
        return kind.model_validate(data, context={FOLDER: folder})
    except ValidationError as error:
        raise SpecError(source, problem_lines(error, kind)) from error


def problem_lines(error: ValidationError, kind: type[BaseModel]) -> list[str]:
    """What is wrong with what should have been a `kind`, a line each: key, value, what is allowed."""
    return [_line(problem, kind) for problem in _root_problems(error.errors())]


def _root_problems(problems: list[Any]) -> list[Any]:
    """Without those that only follow from others: a list whose one item is wrong is, to pydantic, also too short."""
    paths = [problem["loc"] for problem in problems]
    return [
        problem
        for problem in problems
        if problem["type"] != "too_short" or not any(path != problem["loc"] and path[: len(problem["loc"])] == problem["loc"] for path in paths)
    ]


def _line(problem: Any, kind: type[BaseModel]) -> str:
    path = problem["loc"]
    key = ".".join(str(part) for part in path) or "the file"
    value = problem["input"]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{key} = {_short(value)}: unknown key; allowed: {allowed(path[:-1], kind)}"
    if problem["type"] == "missing":
        return f"{key}: missing, and it has no default; allowed: {allowed(path, kind)}"
    if problem["type"] == "value_error":  # of our own validators, which say what is allowed
        return f"{key}: {message}" if isinstance(value, dict) else f"{key} = {_short(value)}: {message}"
    return f"{key} = {_short(value)}: allowed: {allowed(path, kind) or message}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a key written twice is an error and not a silent override."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *defaults`, whose keys may be set again
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
