"""Settings on trial."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaling.laws.settings import Value


@dataclass(frozen=True, slots=True)
class Candidate:
    """The law's settings by name, and `replicas.min`."""

    settings: Mapping[str, Value]
    least: int

    def differs_from(self, other: "Candidate") -> dict[str, tuple[Value, Value]]:
        """What is not the same, by name: the other's value and this one's."""
        changed: dict[str, tuple[Value, Value]] = {
            name: (other.settings.get(name), value) for name, value in self.settings.items() if other.settings.get(name) != value
        }
        if self.least != other.least:
            changed["replicas.min"] = (other.least, self.least)
        return changed
