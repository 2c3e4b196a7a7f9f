"""All scenarios. Adding one: a file in `scenarios/` that ends in `SCENARIO` (or `SCENARIOS`, where they are a family), and its name here."""

from collections.abc import Mapping

from planning.gauntlet.scenario import Scenario
from planning.gauntlet.scenarios import (
    azure,
    burst,
    flapping,
    heavy_prompts,
    idle,
    manual_edit,
    mooncake,
    oscillation,
    outage,
    overload,
    phantom,
    ramp,
    servegen,
    silent,
    spikes,
    two_writers,
)

_ALL: tuple[Scenario, ...] = (
    burst.SCENARIO,
    oscillation.SCENARIO,
    flapping.SCENARIO,
    phantom.SCENARIO,
    silent.SCENARIO,
    two_writers.SCENARIO,
    manual_edit.SCENARIO,
    spikes.SCENARIO,
    idle.SCENARIO,
    outage.SCENARIO,
    heavy_prompts.SCENARIO,
    ramp.SCENARIO,
    overload.SCENARIO,
    *azure.SCENARIOS,
    mooncake.SCENARIO,
    *mooncake.SWEEP,
    *servegen.SCENARIOS,
)

SCENARIOS: Mapping[str, Scenario] = {one.name: one for one in _ALL}
