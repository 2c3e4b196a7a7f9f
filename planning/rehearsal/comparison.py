"""The simulator's error, beside how far live runs are from each other.

    error(f)     = mean of simulated(f) / mean of live(f) - 1        each run simulated at the speed that the machine had in it
    raw error(f) = the same at the calibrated speed
    spread(f)    = (largest - smallest of live(f)) / mean of live(f)  0 with one run

A figure is within its bound where |error| <= max(bound, spread + 3 points): nobody can be nearer to live runs than these are to each other
(`deployments/telemetry/published_error.py`, which is the file's format and what the gateway exports).
"""

import math
from collections.abc import Mapping, Sequence

from deployments.telemetry.published_error import Figure

BOUNDS: Mapping[str, float] = {"ttft/all/p50": 0.10, "ttft/all/p90": 0.12, "ttft/all/p99": 0.15, "itl/mean": 0.07, "itl/p50": 0.07}
"""What a rehearsal must reach for advice to rest on it."""


def compare(live: Sequence[Mapping[str, float]], simulated: Sequence[Mapping[str, float]], raw: Mapping[str, float]) -> list[Figure]:
    """Each figure that all runs have. `simulated`: of each live run at its speed; `raw`: at the calibrated one. Raises ValueError without runs."""
    if not live or len(live) != len(simulated):
        raise ValueError(f"{len(live)} live runs and {len(simulated)} simulated ones; needed: as many of these as of those, and some")
    found = []
    for name, calibrated in raw.items():
        seen, ours = ([run.get(name, math.nan) for run in runs] for runs in (live, simulated))
        if any(math.isnan(value) for value in (*seen, *ours, calibrated)):
            continue
        mean, mean_ours = sum(seen) / len(seen), sum(ours) / len(ours)
        if mean > 0:
            error, raw_error, spread = mean_ours / mean - 1, calibrated / mean - 1, (max(seen) - min(seen)) / mean
            found.append(
                Figure(name=name, live_s=mean, simulated_s=mean_ours, error=error, raw_error=raw_error, spread=spread, bound=BOUNDS.get(name))
            )
    return found
