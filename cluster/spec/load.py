"""Reads a spec from YAML, with errors that an operator can act on: key, value, what is allowed.

Nothing else parses specs. Other YAML files of raylane (the traffic file) are read with `parse_section`, so that all
errors read alike.
"""

from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from cluster.errors import InputError
from cluster.spec.base import FOLDER
from cluster.spec.cluster import ClusterSpec

SectionT = TypeVar("SectionT", bound=BaseModel)


class SpecError(InputError):
    """A spec that cannot be used. `problems` holds one line each: `key = value: what is wrong or allowed`."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = problems
        self.hint = f"raylane spec check {source}"

    @property
    def report(self) -> str:
        return f"{self.source} is not a usable spec:\n  " + "\n  ".join(self.problems)


def load_spec(path: Path) -> ClusterSpec:
    """The spec in the YAML file `path`. Raises SpecError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [f"cannot be read: {error}"]) from error
    return parse_spec(text, source=str(path), folder=path.resolve().parent)


def parse_spec(text: str, source: str = "spec", folder: Path | None = None) -> ClusterSpec:
    """The spec in a YAML text. `source` names it in errors; paths that are relative to the spec start from `folder`.
    Raises SpecError."""
    return parse_section(ClusterSpec, text, source, folder)


def parse_section(kind: type[SectionT], text: str, source: str, folder: Path | None = None) -> SectionT:
    """What a YAML text says, as a `kind`. `source` and `folder` as in `parse_spec`. Raises SpecError."""
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # the latter two: a date of no calendar, an endless nesting
        raise SpecError(source, [f"is not YAML: {' '.join(str(error).split())}"]) from error
    if not isinstance(data, dict):
        raise SpecError(source, [f"must be a mapping of keys at the top level, not {type(data).__name__}"])
    return section_of(kind, data, source, folder)


def section_of(kind: type[SectionT], data: Mapping[str, Any], source: str, folder: Path | None = None) -> SectionT:
    """What plain data say, as a `kind`. Raises SpecError."""
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
        if problem["type"] != "too_short"
        or not any(path != problem["loc"] and path[: len(problem["loc"])] == problem["loc"] for path in paths)
    ]


def _line(problem: Any, kind: type[BaseModel]) -> str:
    path = problem["loc"]
    key = ".".join(str(part) for part in _walked(path, kind)[0]) or "the file"
    value = problem["input"]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):  # of a section, of a dataclass
        return f"{key} = {_short(value)}: unknown key; allowed: {allowed(path[:-1], kind)}"
    if problem["type"] == "missing":
        return f"{key}: missing, and it has no default; allowed: {allowed(path, kind)}"
    if problem["type"] == "unknown_provider":
        given = value.get("provider") if isinstance(value, dict) else value
        return f"{key}.provider = {_short(given)}: {message}"
    if problem["type"] == "value_error":  # of our own validators, which say what is allowed
        return f"{key}: {message}" if isinstance(value, dict) else f"{key} = {_short(value)}: {message}"
    return f"{key} = {_short(value)}: allowed: {allowed(path, kind) or message}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a key written twice is an error instead of an override."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *defaults`, whose keys may be set again
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} appears twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _number(loader: _UniqueKeyLoader, node: yaml.ScalarNode) -> object:
    """YAML 1.1 reads 18:00 as a number of base 60; here it is a time of day."""
    return str(node.value) if ":" in node.value else loader.construct_yaml_int(node)


_UniqueKeyLoader.add_constructor("tag:yaml.org,2002:int", _number)

_BOUNDS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "above"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "below"),
)
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true, false",
    "array": "a list",
    "object": "a mapping",
}


def allowed(key: Iterable[str | int], of: type[BaseModel]) -> str | None:
    """The allowed values of the key at that path (`("gateway", "port")`) of a spec of that kind, or None where its
    schema does not know it."""
    node = _walked(key, of)[1]
    return None if node is None else _words(node, _schema(of))


def _walked(path: Iterable[str | int], of: type[BaseModel]) -> tuple[list[str | int], dict[str, Any] | None]:
    """The path as the file has it, and where it leads to in the schema (None: nowhere). pydantic's own path also names
    the chosen one of several kinds of a section."""
    root = _schema(of)
    node: dict[str, Any] | None = root
    keys: list[str | int] = []
    for part in path:
        node = {} if node is None else _resolved(node, root)
        chosen = [choice for choice in node.get("oneOf", ()) if part in _constants(_resolved(choice, root))]
        if not chosen:
            keys.append(part)
        node = chosen[0] if chosen else _step(node, part)
    return keys, node


def _step(node: dict[str, Any], part: str | int) -> dict[str, Any] | None:
    if isinstance(part, int):
        found = node.get("items")
    else:
        of_any_key = node.get("additionalProperties") or next(iter(node.get("patternProperties", {}).values()), None)
        found = node.get("properties", {}).get(part) or of_any_key
    return dict(found) if isinstance(found, dict) else None


def _constants(node: dict[str, Any]) -> set[Any]:
    return {field["const"] for field in node.get("properties", {}).values() if "const" in field}


def _resolved(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The node itself: behind a reference, or the one that is not null of several."""
    while True:
        if "$ref" in node:
            node = root["$defs"][node["$ref"].rpartition("/")[2]]
        elif "anyOf" in node:
            node = next(choice for choice in node["anyOf"] if choice.get("type") != "null")
        else:
            return node


def _words(node: dict[str, Any], root: dict[str, Any]) -> str:
    or_null = " or null" if any(choice.get("type") == "null" for choice in node.get("anyOf", ())) else ""
    node = _resolved(node, root)
    if "enum" in node or "const" in node:
        return ", ".join(str(value) for value in node.get("enum", [node.get("const")])) + or_null
    if node.get("additionalProperties") is False:
        return f"a mapping of {', '.join(node['properties'])}{or_null}"
    words = "an IPv4 address" if node.get("format") == "ipv4" else _KINDS.get(node.get("type", ""), "any value")
    if {"minimum", "maximum"} <= node.keys():
        words += f", {node['minimum']:.15g} to {node['maximum']:.15g}"
    else:
        words += "".join(f", {name} {node[bound]:.15g}" for bound, name in _BOUNDS if bound in node)
    if "pattern" in node:
        words += f" of the form {node['pattern']}"
    if node.get("minItems"):
        words += f" of at least {node['minItems']}"
    return words + or_null


@cache
def _schema(of: type[BaseModel]) -> dict[str, Any]:
    return of.model_json_schema()
