"""What of a spec can change while the cell runs, and what two specs differ in. Pure."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
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

_LIVE_PATHS = tuple(tuple(section.split(".")) for section in LIVE)


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
        return any(_is_within(self.path, section) for section in _LIVE_PATHS)


def changes_between(old: ClusterSpec, new: ClusterSpec) -> tuple[SpecChange, ...]:
    """Every value in which two specs differ, defaults included."""
    return tuple(_compare((), old.model_dump(mode="json"), new.model_dump(mode="json")))


def split_live(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A spec's content (as JSON) in two: what needs a restart, and what may change while the cell runs, with lists of
    named entries as mappings by name. `joined` puts it together again."""
    frozen: dict[str, Any] = copy.deepcopy(dict(content))
    live: dict[str, Any] = {}
    for *sections, last in _LIVE_PATHS:
        for path, section in _sections(frozen, tuple(sections)):
            if last in section:
                _put(live, (*path, last), section.pop(last))
    return frozen, live


def joined(frozen: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """The content whose two parts these are."""
    content: dict[str, Any] = copy.deepcopy(dict(frozen))
    for *sections, last in _LIVE_PATHS:
        if sections:
            for path, found in _sections(live, tuple(sections)):
                if last in found:
                    _owner(content, path)[last] = copy.deepcopy(found[last])
        elif last in live:
            content[last] = copy.deepcopy(live[last])
    return content


def _sections(content: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """The mappings at a path with `*` for any name, each with the path that leads to it."""
    found: list[tuple[tuple[str, ...], dict[str, Any]]] = [((), content)]
    for part in path:
        found = [((*at, name), inner) for at, one in found for name, inner in _entries(one, part)]
    return found


def _entries(section: Any, part: str) -> list[tuple[str, Any]]:
    named = _by_name(section) if isinstance(section, list) else section
    return list(named.items()) if part == "*" else [(part, named[part])] if part in named else []


def _put(content: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        content = content.setdefault(part, {})
    content[path[-1]] = value


def _owner(content: Any, path: tuple[str, ...]) -> dict[str, Any]:
    for part in path:
        content = _by_name(content)[part] if isinstance(content, list) else content.setdefault(part, {})
    found: dict[str, Any] = content
    return found


def _is_within(path: tuple[str, ...], section: tuple[str, ...]) -> bool:
    """Names may hold dots, so paths are compared part by part."""
    return len(path) >= len(section) and all(
        desired in ("*", part) for part, desired in zip(path, section, strict=False)
    )


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
