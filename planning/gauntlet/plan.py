"""How much a gauntlet runs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Plan:
    """`trials` of settings a law and scenario, each on `training` plays; at most `points` of its frontier, each judged on `held_out` plays; `sims`
    simulations for the clairvoyant of a play; `jobs` processes. `memo`: where results are kept between runs. `traces`: the folder of recorded
    traffic."""

    laws: tuple[str, ...]
    scenarios: tuple[str, ...]
    trials: int = 4
    training: int = 1
    held_out: int = 2
    points: int = 2
    sims: int = 8
    jobs: int = 1
    memo: Path | None = None
    traces: Path | None = None
