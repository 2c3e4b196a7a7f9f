"""What a gauntlet runs, and its results: every policy's frontier on the held-out runs of every scenario, beside the
oracle and the known-rate baseline; their JSON file. `verdict.py` judges them.

The types' bounds are checked where a file is read: an error names the key and its value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cluster.files import read_json
from planning.scoring import CLOSED, Count, Score

SCHEMA_VERSION = 2
_Scores = Annotated[tuple[Score, ...], Field(min_length=1)]
_Number = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class GauntletPlan:
    """`trials` of settings for each policy and scenario, each on `training` runs. At most `points` of its frontier, on
    `held_out` runs each. `sims`: simulations for the oracle of a run. `memo`: the file that stores results between
    runs. `traces`: the folder of recorded traffic."""

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
    """Settings, and their score on each held-out run, in the order of the draws."""

    settings: Mapping[str, int | bool | _Number | str | None]
    scores: _Scores

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

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
    points: Annotated[tuple[Point, ...], Field(min_length=1)]
    pick: Count

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    @property
    def picked(self) -> Point:
        return self.points[self.pick]


def _picks_a_point(one: PolicyResult) -> PolicyResult:
    if one.pick >= len(one.points):
        raise ValueError(f"{one.policy}.pick = {one.pick}; allowed: 0 to {len(one.points) - 1}, one of the points")
    return one


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario. `oracle`, `known_rate`: the scores of the two baselines, by run. `changes`: what was changed
    between the recordings and the first of the runs, in words."""

    scenario: str
    target: Annotated[float, Field(gt=0, le=1)]
    contenders: Annotated[tuple[Annotated[PolicyResult, AfterValidator(_picks_a_point)], ...], Field(min_length=1)]
    oracle: _Scores
    known_rate: _Scores
    changes: tuple[str, ...] = ()

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    def of(self, policy: str) -> PolicyResult | None:
        return next((one for one in self.contenders if one.policy == policy), None)

    @property
    def oracle_hours(self) -> NDArray[np.float64]:
        """By run: the oracle's, or fewer if any run that met the SLO took fewer."""
        hours = np.array([one.replica_hours for one in self.oracle])
        for scores in (self.known_rate, *(point.scores for one in self.contenders for point in one.points)):
            enough = np.array([one.replica_hours if one.attainment >= self.target else np.inf for one in scores])
            hours = np.minimum(hours, enough)
        return hours

    @property
    def known_hours(self) -> NDArray[np.float64]:
        return np.array([one.replica_hours for one in self.known_rate])


@dataclass(frozen=True, slots=True)
class Results:
    """`about`: how it was run (trials, runs) and by which code (version; hashes of simulator, baselines and policies).
    `left_out`: scenarios that could not run, and why."""

    about: Mapping[str, Any]
    contests: tuple[ScenarioResult, ...]
    left_out: Mapping[str, str]

    def of(self, scenario: str) -> ScenarioResult | None:
        return next((one for one in self.contests if one.scenario == scenario), None)

    def as_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA_VERSION, **asdict(self)}


_CODE = ("world", "limits", "policies")


def merged(parts: Sequence[Results]) -> Results:
    """All their scenarios. Raises ValueError where two hold the same scenario, or were not made by the same code with
    the same policies."""
    first = parts[0]
    for part in parts[1:]:
        for name in _CODE:
            if part.about.get(name) != first.about.get(name):
                raise ValueError(
                    f"{name}: {part.about.get(name)!r} and {first.about.get(name)!r}: only results of the same code "
                    "can be merged"
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


class ResultsFileError(ValueError):
    """A file without results of a gauntlet; the message names file, key and value."""


class _About(BaseModel):
    """Text where merged results differ."""

    model_config = CLOSED

    trials: int | str
    training: int | str
    held_out: int | str
    points: int | str
    sims: int | str
    version: str | None = None
    world: str | None = None
    limits: str | None = None
    policies: dict[str, str] | None = None


def _names_all_of_its_code(about: _About) -> _About:
    code = ("version", *_CODE)
    missing = [name for name in code if getattr(about, name) is None]
    if missing and len(missing) < len(code):
        raise ValueError(f"{', '.join(missing)}: missing; allowed: all of {', '.join(code)}, or none")
    return about


def _has_as_many_scores_everywhere(contest: ScenarioResult) -> ScenarioResult:
    counts = {"known_rate": len(contest.known_rate)}
    for one in contest.contenders:
        counts |= {f"{one.policy}.points.{index}.scores": len(point.scores) for index, point in enumerate(one.points)}
    for key, count in counts.items():
        if count != len(contest.oracle):
            raise ValueError(f"{key}: {count} scores; allowed: {len(contest.oracle)}, one a run, as the oracle has")
    return contest


class _ResultsFile(BaseModel):
    model_config = CLOSED

    schema_version: Literal[2] = Field(alias="schema")
    about: Annotated[_About, AfterValidator(_names_all_of_its_code)]
    contests: tuple[Annotated[ScenarioResult, AfterValidator(_has_as_many_scores_everywhere)], ...]
    left_out: dict[str, str]


def read_results(path: Path) -> Results:
    """The content of a file of `Results.as_json`. Raises ResultsFileError."""
    file = read_json(path, _ResultsFile, ResultsFileError)
    return Results(file.about.model_dump(exclude_unset=True), file.contests, file.left_out)
