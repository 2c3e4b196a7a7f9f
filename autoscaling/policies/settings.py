"""A policy's settings from plain values, as a spec or a tuner writes them. Every policy keeps its own frozen dataclass
of them, with defaults and bounds."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

Value = float | int | bool | str | None
SettingsT = TypeVar("SettingsT")


class PolicyError(ValueError):
    """A policy or a setting that there is not; the message names the policy, the key, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a tuner looks for a setting: between two values, evenly or evenly in the logarithm, whole numbers or
    any."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


def require(settings: object, allowed: str, holds: bool, *names: str) -> None:
    """Raises ValueError that names the settings `names` and says what is `allowed`, unless it `holds`. For a
    dataclass's `__post_init__`."""
    if not holds:
        given = ", ".join(f"{name}={getattr(settings, name)!r}" for name in names)
        raise ValueError(f"{given}: allowed: {allowed}")


def require_positive(settings: object, *names: str) -> None:
    for name in names:
        require(settings, "above 0", getattr(settings, name) > 0, name)


def require_not_negative(settings: object, *names: str) -> None:
    for name in names:
        require(settings, "0 or more", getattr(settings, name) >= 0, name)


def settings_from(policy: str, kind: type[SettingsT], values: Mapping[str, Value]) -> SettingsT:
    """The settings of `kind` with these values, and defaults for the rest. Raises LawError."""
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise PolicyError(f"policy {policy}: {key}={value!r}: no such setting; allowed: {', '.join(known)}")
    missing = [
        name
        for name, field in known.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise PolicyError(f"policy {policy}: {', '.join(missing)}: has no default and must be given")
    try:
        return kind(**{key: _value(policy, key, value, hints[key]) for key, value in values.items()})
    except PolicyError:
        raise
    except ValueError as error:
        raise PolicyError(f"policy {policy}: {error}") from error


def _value(policy: str, key: str, value: Value, hint: Any) -> Any:
    """The value as the type that the setting wants. A whole number is a number; nothing else is turned into
    anything."""
    kinds = get_args(hint) or (hint,)
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        if kind in (int, bool, str) and type(value) is kind:
            return value
        if isinstance(kind, type) and issubclass(kind, StrEnum) and value in set(kind):
            return kind(value)
    raise PolicyError(f"policy {policy}: {key}={value!r}: allowed: {' or '.join(_allowed(kind) for kind in kinds)}")


def _allowed(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(kind)
    return {float: "a finite number", int: "a whole number", bool: "true or false", str: "a text", NoneType: "nothing"}[
        kind
    ]
