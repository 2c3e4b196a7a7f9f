"""What the registry knows of a law."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoscaling.laws.law import Law, Plant
from autoscaling.laws.settings import Range


@dataclass(frozen=True, slots=True)
class Entry:
    """A law by its name: the type of its settings, how it is made of them, one line about it, and where a tuner looks for which settings (those that
    are not named here stay at their defaults). `promise`: the setting that says within how many seconds a first token is wanted, if it has one."""

    name: str
    settings: type[Any]
    make: Callable[[Any, Plant], Law]
    about: str
    search: Mapping[str, Range] = field(default_factory=dict)
    promise: str | None = None
