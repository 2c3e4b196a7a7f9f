"""A law by name and settings, as a spec, a tuner or a log says it; and how the law is made of that."""

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaling.laws.law import Law, Plant
from autoscaling.laws.registry import make_law
from autoscaling.laws.settings import Value


@dataclass(frozen=True)
class LawChoice:
    """`settings`: those that differ from the law's defaults, or all."""

    name: str
    settings: Mapping[str, Value]

    def make(self, plant: Plant) -> Law:
        """The law, new. Raises LawError that names it, the setting and what is allowed."""
        return make_law(self.name, self.settings, plant)


def remember(new: Law, old: Law | None) -> Law:
    """The new law with what the old one has learned, where it can make use of it: laws of a kind whose `adopt(old)` takes it over."""
    adopt = getattr(new, "adopt", None)
    if adopt is not None and type(old) is type(new):
        adopt(old)
    return new
