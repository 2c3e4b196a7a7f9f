"""What a gauntlet runs, and what it found: every policy's frontier on the held-out runs of every scenario, beside what
knows the future. Plain facts; `verdict.py` judges, `results_file.py` reads them again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaling.policies.settings import Value
from planning.scoring import Score

SCHEMA_VERSION = 1
"""`results_file.py` reads it."""


@dataclass(frozen=True, slots=True)
class GauntletPlan:
    """`trials` of settings a policy and scenario, each on `training` runs; at most `points` of its frontier, each
    judged on `held_out` runs; `sims` simulations for the clairvoyant of a run; `jobs` processes. `memo`: where results
    are kept between runs. `traces`: the folder of recorded traffic."""

    policies: tuple[str, ...]
    scenarios: tuple[str, ...]
    trials: int = 4
    training: int = 1
    held_out: int = 2
    points: int = 2
    sims: int = 8
    jobs: int = 1
    memo: Path | None = None
    traces: Path | None = None


@dataclass(frozen=True)
class Point:
    """Settings, and how they did on each held-out run, in the order of the draws."""

    settings: Mapping[str, Value]
    scores: tuple[Score, ...]

    @cached_property
    def attainments(self) -> NDArray[np.float64]:
        return np.array([one.attainment for one in self.scores])

    @cached_property
    def hours(self) -> NDArray[np.float64]:
        return np.array([one.replica_hours for one in self.scores])

    @property
    def attainment(self) -> float:
        return float(self.attainments.mean())

    @property
    def mean_hours(self) -> float:
        return float(self.hours.mean())

    def mean_of(self, name: str) -> float:
        return float(np.mean([getattr(one, name) for one in self.scores]))


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """A policy in one scenario: its frontier, the cheapest point first; `pick` is the one that an operator would run,
    chosen in training."""

    policy: str
    points: tuple[Point, ...]
    pick: int

    @property
    def picked(self) -> Point:
        return self.points[self.pick]


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario. `oracle`, `known_rate`: of what knows the arrivals, and of what knows the rate only; by run."""

    scenario: str
    target: float
    contenders: tuple[PolicyResult, ...]
    oracle: tuple[Score, ...]
    known_rate: tuple[Score, ...]

    def of(self, policy: str) -> PolicyResult | None:
        return next((one for one in self.contenders if one.policy == policy), None)

    @property
    def oracle_hours(self) -> NDArray[np.float64]:
        """By run: the clairvoyant's, or less where any run that met the SLO took less."""
        hours = np.array([one.replica_hours for one in self.oracle])
        for scores in (self.known_rate, *(point.scores for one in self.contenders for point in one.points)):
            kept = np.array([one.replica_hours if one.attainment >= self.target else np.inf for one in scores])
            hours = np.minimum(hours, kept)
        return hours

    @property
    def known_hours(self) -> NDArray[np.float64]:
        return np.array([one.replica_hours for one in self.known_rate])


@dataclass(frozen=True, slots=True)
class Results:
    """`about`: how it was run (trials, runs) and by which code (version; hashes of what every run goes through, of the
    limits, of each policy), for whoever reads it later. `left_out`: scenarios that could not run, and why."""

    about: Mapping[str, Any]
    contests: tuple[ScenarioResult, ...]
    left_out: Mapping[str, str]

    def of(self, scenario: str) -> ScenarioResult | None:
        return next((one for one in self.contests if one.scenario == scenario), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "about": dict(self.about),
            "left_out": dict(self.left_out),
            "contests": [_contest_json(one) for one in self.contests],
        }


def _contest_json(contest: ScenarioResult) -> dict[str, Any]:
    return {
        "scenario": contest.scenario,
        "target": contest.target,
        "oracle": [asdict(one) for one in contest.oracle],
        "oracle_hours": contest.oracle_hours.tolist(),
        "known_rate": [asdict(one) for one in contest.known_rate],
        "policies": {
            one.policy: {
                "pick": one.pick,
                "points": [
                    {"settings": dict(point.settings), "scores": [asdict(score) for score in point.scores]}
                    for point in one.points
                ],
            }
            for one in contest.contenders
        },
    }


_CODE = ("world", "limits", "policies")


def merged(parts: Sequence[Results]) -> Results:
    """All their scenarios. Raises ValueError where two hold the same scenario, or were not made by the same code with
    the same policies."""
    first = parts[0]
    for part in parts[1:]:
        for name in _CODE:
            if part.about.get(name) != first.about.get(name):
                raise ValueError(
                    f"{name}: {part.about.get(name)!r} and {first.about.get(name)!r}: only results of the same code go "
                    "together"
                )
    contests = tuple(one for part in parts for one in part.contests)
    names = [one.scenario for one in contests]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"in two of them: {', '.join(twice)}")
    left_out = {name: why for part in parts for name, why in part.left_out.items() if name not in names}
    return Results(_about([part.about for part in parts]), contests, left_out)


def _about(all_of: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How they were run; where that differs, each way of it."""
    return {name: _either([about.get(name) for about in all_of]) for name in all_of[0]}


def _either(values: Sequence[Any]) -> Any:
    different = [value for index, value in enumerate(values) if value not in values[:index]]
    return different[0] if len(different) == 1 else " or ".join(str(value) for value in different)
