"""A policy's settings from plain values, as a spec or a tuner writes them. Every policy has its own frozen settings: a
dataclass (or a section of the spec) with defaults, whose types hold the bounds."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from cluster.errors import InputError

Value = float | int | bool | str | None
Positive = Annotated[float, Field(gt=0)]
SettingsT = TypeVar("SettingsT")


class PolicyError(InputError):
    """An unknown policy or an invalid setting; the message names the policy, the key, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a tuner searches for a setting: evenly or logarithmically between two values, whole numbers or any."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


def defaults_in(kind: type[Any]) -> dict[str, Any]:
    """The settings of `kind` (a dataclass, or a section of the spec) that have a default."""
    if issubclass(kind, BaseModel):
        return {name: one.default for name, one in kind.model_fields.items() if not one.is_required()}
    return {one.name: one.default for one in fields(kind) if one.default is not MISSING}


@cache  # milliseconds to make, and a search asks for thousands of settings
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def settings_from(policy: str, kind: type[SettingsT], values: Mapping[str, Value]) -> SettingsT:
    """The settings of `kind` with these values, and defaults for the rest. Raises PolicyError."""
    known = kind.model_fields if issubclass(kind, BaseModel) else [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise PolicyError(f"policy {policy}: {key}={value!r}: no such setting; allowed: {', '.join(known)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise PolicyError(f"policy {policy}: {key}={value!r}: allowed: a finite number")
    hashable: Any = kind  # mypy takes no class for hashable
    try:
        return cast(SettingsT, _adapter(hashable).validate_json(json.dumps(values), strict=True))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        named = f"{first['loc'][0]}={first['input']!r}: " if first["loc"] and first["type"] != "missing" else ""
        raise PolicyError(f"policy {policy}: {named or '.'.join(map(str, first['loc']))}{message}") from None
