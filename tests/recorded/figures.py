"""Which figures are recorded: five scenarios of `benchmarks.policies` and two recorded days, by policies with
their defaults."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded.figures_adapter import figures_of

SCENARIO_POLICIES = ("backlog", "hpa", "known_rate")
SCENARIOS = ("burst", "ramp", "outage", "silent", "two_writers")
DAYS = ("servegen_week", "servegen_r1")
CASES = (*((name, policy) for name in SCENARIOS for policy in SCENARIO_POLICIES), *((name, "backlog") for name in DAYS))


def figures(traces: Path | None) -> Iterator[dict[str, Any]]:
    """All of them. `traces`: the folder of recorded traffic, for the days."""
    for scenario, policy in CASES:
        yield {"scenario": scenario, "policy": policy, "figures": figures_of(scenario, 0, policy, traces)}
