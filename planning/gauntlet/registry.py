"""All scenarios. To add one, write a file in `scenarios/` that ends in `SCENARIOS` (one, or a family), and a line in
`_MODULES`."""

from collections.abc import Mapping
from importlib import import_module

from planning.gauntlet.scenario import Scenario

_MODULES = (
    "burst",
    "oscillation",
    "flapping",
    "phantom",
    "unresponsive",
    "two_writers",
    "manual_edit",
    "spikes",
    "idle",
    "outage",
    "heavy_prompts",
    "ramp",
    "overload",
    "azure",
    "mooncake",
    "servegen",
)

_ALL: tuple[Scenario, ...] = tuple(
    one for name in _MODULES for one in import_module(f".scenarios.{name}", __package__).SCENARIOS
)
SCENARIOS: Mapping[str, Scenario] = {one.name: one for one in _ALL}
