"""All laws by name: for the spec, the tuner, the gauntlet, the conformance suite. Adding one: an `Entry` in its file, and its name in `LAWS` here.

Laws are listed without what they need to run: a law that imports Ray does so when it is asked for the first time.
"""

from collections.abc import Mapping

from autoscaling.laws import fixed
from autoscaling.laws.backlog import entry as backlog
from autoscaling.laws.entry import Entry
from autoscaling.laws.law import Law, Plant
from autoscaling.laws.rivals import aibrix, dynamo, hpa, keda, knative, llmd, ray_default, ray_ttft
from autoscaling.laws.settings import LawError, Value, settings_from

_ENTRIES: tuple[Entry, ...] = (
    backlog.ENTRY,
    fixed.ENTRY,
    ray_default.ENTRY,
    ray_ttft.ENTRY,
    hpa.ENTRY,
    keda.ENTRY,
    knative.ENTRY,
    aibrix.ENTRY,
    dynamo.ENTRY,
    llmd.ENTRY,
)

LAWS: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def make_law(name: str, settings: Mapping[str, Value], plant: Plant) -> Law:
    """The law of that name, new, with these settings and its defaults for the rest. Raises LawError."""
    entry = LAWS.get(name)
    if entry is None:
        raise LawError(f"law {name!r}: no such law; allowed: {', '.join(LAWS)}")
    return entry.make(settings_from(name, entry.settings, settings), plant)
