"""A policy's settings from plain values, as a spec or a tuner writes them. Every policy has its own frozen settings,
with defaults and bounds."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

Value = float | int | bool | str | None
SettingsT = TypeVar("SettingsT")


class PolicyError(ValueError):
    """An unknown policy or an invalid setting; the message names the policy, the key, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a tuner searches for a setting: evenly or logarithmically between two values, whole numbers or any."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


def require(settings: object, allowed: str, holds: bool, *names: str) -> None:
    """Raises ValueError that names the settings `names` and what is `allowed`, unless it `holds`. For a dataclass's
    `__post_init__`."""
    if not holds:
        given = ", ".join(f"{name}={getattr(settings, name)!r}" for name in names)
        raise ValueError(f"{given}: allowed: {allowed}")


def require_positive(settings: object, *names: str) -> None:
    for name in names:
        require(settings, "above 0", getattr(settings, name) > 0, name)


def require_not_negative(settings: object, *names: str) -> None:
    for name in names:
        require(settings, "0 or more", getattr(settings, name) >= 0, name)


def defaults_in(kind: type[Any]) -> dict[str, Any]:
    """The settings of `kind` (a dataclass, or a section of the spec) that have a default."""
    if issubclass(kind, BaseModel):
        return {name: one.default for name, one in kind.model_fields.items() if not one.is_required()}
    return {one.name: one.default for one in fields(kind) if one.default is not MISSING}


def settings_from(policy: str, kind: type[SettingsT], values: Mapping[str, Value]) -> SettingsT:
    """The settings of `kind` with these values, and defaults for the rest. Raises PolicyError."""
    if issubclass(kind, BaseModel):
        hints: dict[str, Any] = {name: one.annotation for name, one in kind.model_fields.items()}
    else:
        hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            raise PolicyError(f"policy {policy}: {key}={value!r}: no such setting; allowed: {', '.join(hints)}")
    missing = [name for name in hints if name not in values and name not in defaults_in(kind)]
    if missing:
        raise PolicyError(f"policy {policy}: {', '.join(missing)}: has no default and must be given")
    try:
        return kind(**{key: _value(policy, key, value, hints[key]) for key, value in values.items()})
    except PolicyError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        raise PolicyError(f"policy {policy}: {first['loc'][0]}={first['input']!r}: {first['msg']}") from None
    except ValueError as error:
        raise PolicyError(f"policy {policy}: {error}") from error


def _value(policy: str, key: str, value: Value, hint: Any) -> Any:
    """The value as the type of the setting. A whole number is accepted as a number; nothing else is converted."""
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
