"""What of a spec can change while the cell runs, and what two specs differ in. Pure."""

from dataclasses import dataclass
from typing import Any

from cluster.spec import ClusterSpec

LIVE = (
    "lanes",
    "classes",
    "scheduling",
    "tenants",
    "prefix_sharing",
    "gateway.limits",
    "gateway.timeouts",
    "gateway.heartbeat_s",
    "gateway.cors",
    "autoscaling",
    "models.*.replicas",
    "models.*.autoscaling",
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
