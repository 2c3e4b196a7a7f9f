"""A score as it was written down, in results or in the memo: looked at before it counts as one."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planning.scoring.score import Score

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
        """As a plain fact."""
        return Score(**dict(self))


def known_score(written: Mapping[str, Any] | None) -> Score | None:
    """The score that was written; None where there is none, or something else."""
    try:
        return None if written is None else WrittenScore.model_validate(written).score()
    except ValidationError:
        return None
