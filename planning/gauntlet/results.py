"""What a gauntlet found: every law's frontier on the held-out plays of every scenario, beside what knows the future. Plain facts; `verdict.py`
judges."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaling.laws.settings import Value
from planning.scoring.score import Score

SCHEMA_VERSION = 1
"""`results_file.py` reads it."""


@dataclass(frozen=True)
class Point:
    """Settings, and how they did on each held-out play, in the order of the draws."""

    settings: Mapping[str, Value]
    scores: tuple[Score, ...]

    @cached_property
    def attainments(self) -> NDArray[np.float64]:
        """By play."""
        return np.array([one.attainment for one in self.scores])

    @cached_property
    def hours(self) -> NDArray[np.float64]:
        """Replica-hours by play."""
        return np.array([one.replica_hours for one in self.scores])

    @property
    def attainment(self) -> float:
        """The mean."""
        return float(self.attainments.mean())

    @property
    def mean_hours(self) -> float:
        """The mean of the replica-hours."""
        return float(self.hours.mean())

    def mean_of(self, name: str) -> float:
        """The mean of another figure of the scores."""
        return float(np.mean([getattr(one, name) for one in self.scores]))


@dataclass(frozen=True, slots=True)
class Contender:
    """A law in one scenario: its frontier, the cheapest point first; `pick` is the one that an operator would run, chosen in training."""

    law: str
    points: tuple[Point, ...]
    pick: int

    @property
    def picked(self) -> Point:
        """The point that an operator would run."""
        return self.points[self.pick]


@dataclass(frozen=True, slots=True)
class Contest:
    """One scenario. `oracle`, `known_rate`: of what knows the arrivals, and of what knows the rate only; by play."""

    scenario: str
    target: float
    contenders: tuple[Contender, ...]
    oracle: tuple[Score, ...]
    known_rate: tuple[Score, ...]

    def of(self, law: str) -> Contender | None:
        """The contender of that name."""
        return next((one for one in self.contenders if one.law == law), None)

    @property
    def oracle_hours(self) -> NDArray[np.float64]:
        """By play: the clairvoyant's, or less where any run that kept the promise took less."""
        hours = np.array([one.replica_hours for one in self.oracle])
        for scores in (self.known_rate, *(point.scores for one in self.contenders for point in one.points)):
            kept = np.array([one.replica_hours if one.attainment >= self.target else np.inf for one in scores])
            hours = np.minimum(hours, kept)
        return hours

    @property
    def known_hours(self) -> NDArray[np.float64]:
        """By play, of what knows the rate."""
        return np.array([one.replica_hours for one in self.known_rate])


@dataclass(frozen=True, slots=True)
class Results:
    """`about`: how it was run (trials, plays) and by which code (version; hashes of what every run goes through, of the limits, of each law), for
    whoever reads it later. `left_out`: scenarios that could not run, and why."""

    about: Mapping[str, Any]
    contests: tuple[Contest, ...]
    left_out: Mapping[str, str]

    def of(self, scenario: str) -> Contest | None:
        """The contest of that scenario."""
        return next((one for one in self.contests if one.scenario == scenario), None)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "schema": SCHEMA_VERSION,
            "about": dict(self.about),
            "left_out": dict(self.left_out),
            "contests": [_contest_json(one) for one in self.contests],
        }


def _contest_json(contest: Contest) -> dict[str, Any]:
    return {
        "scenario": contest.scenario,
        "target": contest.target,
        "oracle": [asdict(one) for one in contest.oracle],
        "oracle_hours": contest.oracle_hours.tolist(),
        "known_rate": [asdict(one) for one in contest.known_rate],
        "laws": {
            one.law: {
                "pick": one.pick,
                "points": [{"settings": dict(point.settings), "scores": [asdict(score) for score in point.scores]} for point in one.points],
            }
            for one in contest.contenders
        },
    }
