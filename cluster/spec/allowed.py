"""What a key of a spec may hold, in words, read from its own JSON schema: so an error can always name the allowed range."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel

_BOUNDS = (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"), ("exclusiveMaximum", "below"))
_KINDS = {"integer": "a whole number", "number": "a number", "string": "a text", "boolean": "true, false", "array": "a list", "object": "a mapping"}


def allowed(key: Iterable[str | int], of: type[BaseModel]) -> str | None:
    """The allowed values of the key at that path (`("gateway", "port")`) of a spec of that kind, or None where its schema does not know it."""
    root = _schema(of)
    node: Any = root
    for part in key:
        node = _step(_resolved(node, root), part)
        if node is None:
            return None
    return _words(node, root)


def _step(node: dict[str, Any], part: str | int) -> dict[str, Any] | None:
    if isinstance(part, int):
        found = node.get("items")
    else:
        found = node.get("properties", {}).get(part)
    return dict(found) if isinstance(found, dict) else None


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
    words = _KINDS.get(node.get("type", ""), "any value")
    if {"minimum", "maximum"} <= node.keys():
        words += f", {node['minimum']:.12g} to {node['maximum']:.12g}"
    else:
        words += "".join(f", {name} {node[bound]:.12g}" for bound, name in _BOUNDS if bound in node)
    if "pattern" in node:
        words += f" of the form {node['pattern']}"
    if node.get("minItems"):
        words += f" of at least {node['minItems']}"
    return words + or_null


@cache
def _schema(of: type[BaseModel]) -> dict[str, Any]:
    return of.model_json_schema()
