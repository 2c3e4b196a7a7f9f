"""The file that results are written to (`Results.as_json`), read again: whatever is not as a gauntlet writes it is
named, with its key and value. Scores of the memo are checked by the same form.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from cluster.files import read_json
from planning.gauntlet.results import Point, PolicyResult, Results, ScenarioResult
from planning.scoring import Score

_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


class WrittenScore(BaseModel):
    """All figures of a `Score`. The slow end of TTFT is unknown (NaN) where nobody was answered."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    requests: _Count
    attainment: _Share
    by_lane: dict[str, _Share]
    replica_hours: _Amount
    usd: _Amount
    mean_replicas: _Amount
    changes: _Count
    flaps: _Count
    recovery_s: _Amount
    rejected: _Count
    expired: _Count
    failed: _Count
    ttft_p99_s: float

    def score(self) -> Score:
        return Score(**dict(self))


def known_score(written: Mapping[str, Any] | None) -> Score | None:
    """The score that was written; None where there is none, or something else."""
    try:
        return None if written is None else WrittenScore.model_validate(written).score()
    except ValidationError:
        return None


_Number = Annotated[float, Field(allow_inf_nan=False)]
_Scores = Annotated[tuple[WrittenScore, ...], Field(min_length=1)]


class ResultsFileError(ValueError):
    """A file that holds no results of a gauntlet; the message names file, key and value."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _About(_Section):
    """How it was run, by which code. Text where several runs as one differ."""

    trials: int | str
    training: int | str
    held_out: int | str
    points: int | str
    sims: int | str
    version: str | None = None
    world: str | None = None
    limits: str | None = None
    policies: dict[str, str] | None = None

    @model_validator(mode="after")
    def _names_all_of_its_code(self) -> "_About":
        code = ("version", "world", "limits", "policies")
        missing = [name for name in code if getattr(self, name) is None]
        if missing and len(missing) < len(code):
            raise ValueError(f"{', '.join(missing)}: missing; allowed: all of {', '.join(code)}, or none")
        return self


class _Point(_Section):
    settings: dict[str, int | bool | _Number | str | None]
    scores: _Scores


class _Contender(_Section):
    points: Annotated[tuple[_Point, ...], Field(min_length=1)]
    pick: Annotated[int, Field(ge=0)]

    @field_validator("pick")
    @classmethod
    def _is_a_point(cls, pick: int, info: ValidationInfo) -> int:
        points = info.data.get("points")
        if points is not None and pick >= len(points):
            raise ValueError(f"allowed: 0 to {len(points) - 1}, one of the points")
        return pick


class _Contest(_Section):
    """`oracle_hours` follow from the rest."""

    scenario: str
    target: Annotated[float, Field(gt=0, le=1)]
    oracle: _Scores
    oracle_hours: tuple[_Number, ...]
    known_rate: _Scores
    policies: Annotated[dict[str, _Contender], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_as_many_scores_everywhere(self) -> "_Contest":
        counts = {"known_rate": len(self.known_rate)}
        for policy, one in self.policies.items():
            counts |= {
                f"policies.{policy}.points.{index}.scores": len(point.scores) for index, point in enumerate(one.points)
            }
        for key, count in counts.items():
            if count != len(self.oracle):
                raise ValueError(f"{key}: {count} scores; allowed: {len(self.oracle)}, one a run, as the oracle has")
        return self

    def contest(self) -> ScenarioResult:
        contenders = tuple(
            PolicyResult(
                policy, tuple(Point(dict(point.settings), _scores(point.scores)) for point in one.points), one.pick
            )
            for policy, one in self.policies.items()
        )
        return ScenarioResult(self.scenario, self.target, contenders, _scores(self.oracle), _scores(self.known_rate))


class _Results(_Section):
    schema_version: Literal[1] = Field(alias="schema")
    about: _About
    left_out: dict[str, str]
    contests: tuple[_Contest, ...]

    def results(self) -> Results:
        contests = tuple(one.contest() for one in self.contests)
        return Results(self.about.model_dump(exclude_unset=True), contests, self.left_out)


def read_results(path: Path) -> Results:
    """The file's content. Raises ResultsFileError."""
    return read_json(path, _Results, ResultsFileError).results()


def _scores(written: tuple[WrittenScore, ...]) -> tuple[Score, ...]:
    return tuple(one.score() for one in written)
