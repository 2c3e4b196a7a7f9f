"""The cliff: where in a sweep a law falls under the promise. Pure."""

import math
from collections.abc import Mapping

from planning.gauntlet.results import Results


def cliffs(results: Results, steps: Mapping[str, float], law: str) -> tuple[list[tuple[float, float]], float]:
    """The law's attainment at each step of a sweep (scenario -> the swept figure), and the first at which it is under the target; infinite: none
    is."""
    found = []
    cliff = math.inf
    for name, value in sorted(steps.items(), key=lambda step: step[1]):
        contest = results.of(name)
        one = None if contest is None else contest.of(law)
        if contest is None or one is None:
            continue
        found.append((value, one.picked.attainment))
        if one.picked.attainment < contest.target:
            cliff = min(cliff, value)
    return found, cliff
