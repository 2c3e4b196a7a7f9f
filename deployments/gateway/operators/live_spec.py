"""What of a spec can change while the cell runs, and what two specs differ in. Pure."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from cluster.spec import ClusterSpec

LIVE = (
    "lanes",
    "classes",
    "scheduling",
    "tenants",
    "ladder",
    "prefix_sharing",
    "service_tiers",
    "gateway.limits",
    "gateway.timeouts",
    "gateway.heartbeat_s",
    "gateway.cors",
    "gateway.cache",
    "autoscaling",
    "models.*.aliases",
    "models.*.fallback",
    "models.*.replicas",
    "models.*.autoscaling",
    "models.*.start",
    "models.*.owner",
    "models.*.lanes",
    "models.*.groups.*.replicas",
    "models.*.groups.*.autoscaling",
    "models.*.groups.*.start",
)
"""The sections that are taken over at once, by the gateways or by what scales the models (`*`: any name); all else
needs a restart."""

_Tree = dict[str, Any]
_LIVE: _Tree = {}
"""The same by key, section for section; an empty one is taken over as a whole."""
for _section in LIVE:
    reduce(lambda tree, part: tree.setdefault(part, {}), _section.split("."), _LIVE)


@dataclass(frozen=True, slots=True)
class SpecChange:
    """One value that differs. `path` leads to it in the spec, with list entries by name where they have one; None:
    absent."""

    path: tuple[str, ...]
    old: Any
    new: Any

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def is_live(self) -> bool:
        """Whether it takes effect without a restart."""
        tree: _Tree | None = _LIVE
        for part in self.path:  # names may hold dots, so paths are compared part by part
            tree = tree and tree.get(part, tree.get("*"))
        return tree == {}


def changes_between(old: ClusterSpec, new: ClusterSpec) -> tuple[SpecChange, ...]:
    """Every value in which two specs differ, defaults included."""
    return tuple(_compare((), old.model_dump(mode="json"), new.model_dump(mode="json")))


def split_live(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A spec's content (as JSON) in two: what needs a restart, and what may change while the cell runs, with lists of
    named entries as mappings by name. `joined` puts it together again."""
    return _split(copy.deepcopy(dict(content)), _LIVE)


def _split(frozen: dict[str, Any], tree: _Tree) -> tuple[dict[str, Any], dict[str, Any]]:
    live: dict[str, Any] = {}
    for key in [one for one in tree if one in frozen]:  # in the order of LIVE: a rendered spec is compared by its text
        if not tree[key]:
            live[key] = frozen.pop(key)
        elif isinstance(frozen[key], list):
            live[key] = {one["name"]: part for one in frozen[key] if (part := _split(one, tree[key]["*"])[1])}
        else:
            live[key] = _split(frozen[key], tree[key])[1]
    return frozen, {key: part for key, part in live.items() if part or not tree[key]}


def joined(frozen: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """The content whose two parts these are."""
    content: dict[str, Any] = copy.deepcopy(dict(frozen))
    for key, value in live.items():
        there = content.get(key)
        if isinstance(there, list):
            content[key] = [joined(one, value.get(one["name"], {})) for one in there]
        else:
            content[key] = joined(there, value) if isinstance(there, dict) else copy.deepcopy(value)
    return content


def _compare(path: tuple[str, ...], old: Any, new: Any) -> list[SpecChange]:
    if old == new:
        return []
    if isinstance(old, list) and isinstance(new, list) and _named(old) and _named(new):
        order = (
            []
            if list(_by_name(old)) == list(_by_name(new))
            else [SpecChange(path, list(_by_name(old)), list(_by_name(new)))]
        )
        return order + _compare_fields(path, _by_name(old), _by_name(new))
    if isinstance(old, dict) and isinstance(new, dict):
        return _compare_fields(path, old, new)
    return [SpecChange(path, old, new)]


def _compare_fields(path: tuple[str, ...], old: dict[str, Any], new: dict[str, Any]) -> list[SpecChange]:
    return [
        change
        for name in dict.fromkeys([*old, *new])
        for change in _compare((*path, name), old.get(name), new.get(name))
    ]


def _named(items: list[Any]) -> bool:
    return all(isinstance(item, dict) and "name" in item for item in items)


def _by_name(items: list[Any]) -> dict[str, Any]:
    return {item["name"]: item for item in items}
