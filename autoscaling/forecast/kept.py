"""A history as a small file, so that a restart forgets nothing. JSON, version 1."""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from autoscaling.forecast.history import History
from cluster.json_file import read_json, write_json


class HistoryError(ValueError):
    """A file of a history that cannot be used; the message names file, key and value."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    first: int
    rates: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, ...]


def read_history(path: Path) -> History:
    """What was kept there. Raises HistoryError."""
    content = read_json(path, _File, HistoryError)
    return History(content.first, tuple(math.nan if rate is None else rate for rate in content.rates))


def write_history(path: Path, history: History) -> None:
    """Keeps it, in one move. Raises OSError."""
    write_json(path, _File(first=history.first, rates=tuple(None if math.isnan(rate) else round(rate, 3) for rate in history.rates)))
