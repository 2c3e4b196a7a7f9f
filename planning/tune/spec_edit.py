"""Changes values in a YAML text, and leaves every other character of it as it is.

A round trip through a YAML library, even one that keeps comments (ruamel.yaml), lays quotes, lists and long lines out
anew, so that a diff of three values would touch half of a file that people keep. So the text is edited where the parser
says that a value stands. What comes out is parsed again and compared with what it should say; where that differs
(aliases, merge keys, a layout that nobody thought of), there is an error and no text.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import yaml

from cluster.errors import InputError

Path = tuple[str | int, ...]


class EditError(InputError):
    """A text that can not be edited so; the message names the key and says why."""


def edited(text: str, changes: Sequence[tuple[Path, Any]]) -> str:
    """The text with these values at these places: keys and positions from the top. Mappings on the way that are missing
    are made. A list or a mapping may take the place of another value; its lines are laid out anew. Raises EditError."""
    desired = said_in(text)
    for path, value in changes:
        text = _changed(text, path, value)
        _set(desired, path, value)
        try:
            says = yaml.safe_load(text)
        except yaml.YAMLError:
            says = None
        if says != desired:
            raise EditError(f"{named(path)}: cannot be edited safely in this text; set it to {value!r} by hand")
    return text


def said_in(text: str) -> Any:
    """The text as plain values, each its own. Raises EditError."""
    try:
        return _unshared(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise EditError(f"is not YAML: {' '.join(str(error).split())}") from error


def _unshared(data: Any) -> Any:
    """The same, with what aliases share said once for each: to change one of them shall not change the others."""
    if isinstance(data, dict):
        return {key: _unshared(value) for key, value in data.items()}
    return [_unshared(value) for value in data] if isinstance(data, list) else data


def named(path: Path) -> str:
    return ".".join(str(step) for step in path)


def _set(data: Any, path: Path, value: Any) -> None:
    for step, below in pairwise(path):
        if isinstance(data, dict) and data.get(step) is None and isinstance(below, str):
            data[step] = {}
        data = data[step]
    data[path[-1]] = value


def _changed(text: str, path: Path, value: Any) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        raise EditError(f"{named(path)}: the text is empty")
    node, parent_column, replaced = root, -2, None
    for depth, step in enumerate(path):
        if isinstance(node, yaml.SequenceNode):
            if not isinstance(step, int) or not 0 <= step < len(node.value):
                raise EditError(
                    f"{named(path[: depth + 1])}: there is no such item; allowed: 0 to {len(node.value) - 1}"
                )
            node = node.value[step]
            continue
        if _is_empty(node):
            return _filled(text, node, parent_column + 2, _nested(path[depth:], value))
        if not isinstance(node, yaml.MappingNode):
            raise EditError(
                f"{named(path[:depth])}: is not a mapping in the text; needed: a mapping with the key {step!r}"
            )
        entry = next(((key, below) for key, below in node.value if key.value == step), None)
        if entry is None:
            return _added(text, node, _nested(path[depth:], value))
        key, below = entry
        if below.start_mark.index < key.end_mark.index:
            raise EditError(f"{named(path[: depth + 1])}: is an alias of another part of the text; set it by hand")
        parent_column, replaced, node = key.start_mark.column, (node, key), below
    if isinstance(value, dict | list) and replaced is not None and isinstance(path[-1], str):
        return _replaced(text, *replaced, node, value)
    if not isinstance(node, yaml.ScalarNode):
        raise EditError(f"{named(path)}: is not a single value in the text; allowed: a number, a word, true or false")
    if _is_empty(node) and node.start_mark.index == node.end_mark.index:
        return text[: node.start_mark.index] + " " + _scalar(value) + text[node.start_mark.index :]
    return text[: node.start_mark.index] + _scalar(value) + text[node.end_mark.index :]


def _replaced(text: str, mapping: yaml.MappingNode, key: yaml.Node, below: yaml.Node, value: Any) -> str:
    """With a list or a mapping as the value of a key that has one."""
    if mapping.flow_style:
        return text[: below.start_mark.index] + _scalar(value) + text[below.end_mark.index :]
    newline = _newline(text)
    block = _block({key.value: value}, key.start_mark.column, newline).removesuffix(newline)
    end = max(key.end_mark.index, _last_character(below))
    return text[: key.start_mark.index] + block[key.start_mark.column :] + text[end + 1 :]


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _nested(path: Path, value: Any) -> dict[str, Any]:
    for step in reversed(path):
        value = {step: value}
    found: dict[str, Any] = value
    return found


def _scalar(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=1 << 20)).split("\n")[0]


def _flow(mapping: dict[str, Any]) -> str:
    return str(yaml.safe_dump(mapping, default_flow_style=True, sort_keys=False, width=1 << 20)).strip()[1:-1]


def _block(mapping: dict[str, Any], column: int, newline: str) -> str:
    lines = str(yaml.safe_dump(mapping, default_flow_style=False, sort_keys=False, width=1 << 20)).splitlines()
    return "".join(" " * column + line + newline for line in lines)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _filled(text: str, node: yaml.Node, column: int, mapping: dict[str, Any]) -> str:
    """Where a key has no value, or null, a mapping below it."""
    text = text[: node.start_mark.index] + text[node.end_mark.index :]
    return _below(text, node.start_mark.index, _block(mapping, max(0, column), _newline(text)))


def _below(text: str, index: int, lines: str) -> str:
    """The lines, put below the one in which that character stands."""
    end = text.find("\n", index)
    if end < 0:
        return text + _newline(text) + lines
    return text[: end + 1] + lines + text[end + 1 :]


def _added(text: str, node: yaml.MappingNode, mapping: dict[str, Any]) -> str:
    """At the end of a mapping that has other keys."""
    if node.flow_style:
        at, comma = (node.value[-1][1].end_mark.index, ", ") if node.value else (node.end_mark.index - 1, "")
        return text[:at] + comma + _flow(mapping) + text[at:]
    return _below(text, _last_character(node), _block(mapping, node.value[0][0].start_mark.column, _newline(text)))


def _last_character(node: yaml.Node) -> int:
    """The index of the last character of what a node says, without the comments behind it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        key, value = node.value[-1]
        key_end: int = key.end_mark.index
        return max(key_end, _last_character(value) if value.start_mark.index >= key_end else 0)
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return max(_last_character(item) for item in node.value)
    end: int = node.end_mark.index
    return max(end - 1, 0)
