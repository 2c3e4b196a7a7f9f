"""All laws by name: for the spec, the tuner, the gauntlet, the conformance suite. Adding one: a file that holds an
`ENTRY`, and a line in `_MODULES`.

Laws are listed without what they need to run: a law that imports Ray does so when it is asked for the first time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from autoscaling.laws.law import Entry, Law, Plant
from autoscaling.laws.settings import LawError, Value, settings_from

_MODULES = (
    "backlog.entry",
    "fixed",
    "rivals.ray_default",
    "rivals.ray_ttft",
    "rivals.hpa",
    "rivals.keda",
    "rivals.knative",
    "rivals.aibrix",
    "rivals.dynamo",
    "rivals.llmd",
)
"""In this folder, each with its `ENTRY`."""

_ENTRIES: tuple[Entry, ...] = tuple(import_module(f".{name}", __package__).ENTRY for name in _MODULES)
LAWS: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def make_law(name: str, settings: Mapping[str, Value], plant: Plant) -> Law:
    """The law of that name, new, with these settings and its defaults for the rest. Raises LawError."""
    entry = LAWS.get(name)
    if entry is None:
        raise LawError(f"law {name!r}: no such law; allowed: {', '.join(LAWS)}")
    return entry.make(settings_from(name, entry.settings, settings), plant)


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
