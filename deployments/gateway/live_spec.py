"""What of a spec can change while the cell runs, and what two specs differ in. Pure."""

from dataclasses import dataclass
from typing import Any

from cluster.spec import ClusterSpec

LIVE = ("lanes", "classes", "scheduling", "tenants", "gateway.limits", "gateway.timeouts")
"""The sections that a gateway takes over at once; all else needs a restart."""


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs. `key` is its path in the spec, with list entries by name where they have one; None: absent."""

    key: str
    old: Any
    new: Any

    @property
    def is_live(self) -> bool:
        """Whether it takes effect without a restart."""
        return any(self.key == section or self.key.startswith(section + ".") for section in LIVE)


def changes_between(old: ClusterSpec, new: ClusterSpec) -> tuple[Change, ...]:
    """Every value in which two specs differ, defaults included."""
    return tuple(_compare("", old.model_dump(mode="json"), new.model_dump(mode="json")))


def _compare(key: str, old: Any, new: Any) -> list[Change]:
    if old == new:
        return []
    if isinstance(old, list) and isinstance(new, list) and _named(old) and _named(new):
        order = [] if list(_by_name(old)) == list(_by_name(new)) else [Change(key, list(_by_name(old)), list(_by_name(new)))]
        return order + _compare_fields(key, _by_name(old), _by_name(new))
    if isinstance(old, dict) and isinstance(new, dict):
        return _compare_fields(key, old, new)
    return [Change(key, old, new)]


def _compare_fields(key: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    prefix = f"{key}." if key else ""
    return [change for name in dict.fromkeys([*old, *new]) for change in _compare(prefix + name, old.get(name), new.get(name))]


def _named(items: list[Any]) -> bool:
    return all(isinstance(item, dict) and "name" in item for item in items)


def _by_name(items: list[Any]) -> dict[str, Any]:
    return {item["name"]: item for item in items}
