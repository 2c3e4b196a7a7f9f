"""What the registry knows of a law."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoscaling.laws.law import Law, Plant
from autoscaling.laws.settings import Range


@dataclass(frozen=True, slots=True)
class Entry:
    """A law by its name: the type of its settings, how it is made of them, one line about it, and where a tuner looks for which settings (those that
    are not named here stay at their defaults). `principal`: those of them that matter most, for a search of few trials; none: all of them. `promise`:
    the setting that says within how many seconds a first token is wanted, if it has one."""

    name: str
    settings: type[Any]
    make: Callable[[Any, Plant], Law]
    about: str
    search: Mapping[str, Range] = field(default_factory=dict)
    principal: tuple[str, ...] = ()
    promise: str | None = None

    def quick_search(self) -> Mapping[str, Range]:
        """Where a search of few trials looks."""
        return {name: self.search[name] for name in self.principal} if self.principal else self.search
