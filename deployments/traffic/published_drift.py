"""The drift that `raylane plan --against live --publish` found: a file that gateways show on `/metrics` and in `raylane
status`. JSON, version 2."""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from cluster.files import read_json, write_json

FiniteFigure = Annotated[float, Field(allow_inf_nan=False)]


class PublishedDriftError(ValueError):
    """A file that cannot be used; the message names file, key and value."""


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class OffFigure:
    """A figure that is off now: requests/s, tokens or a share, or US dollars a GPU-hour of a pool. `model` and
    `traffic_class` of a price are empty."""

    model: str
    traffic_class: str
    region: str
    quantity: str
    expected: FiniteFigure
    observed: FiniteFigure

    @property
    def ratio(self) -> float:
        """Observed over expected; infinite where nothing was expected."""
        return self.observed / self.expected if self.expected else math.inf


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class PublishedDrift:
    """The whole file. `compared_unix_s`: until when traffic was compared."""

    version: Literal[2] = 2
    worksheet: str
    compared_unix_s: int
    figures: tuple[OffFigure, ...] = ()


def read_drift(path: Path) -> PublishedDrift:
    """Raises PublishedDriftError."""
    return read_json(path, PublishedDrift, PublishedDriftError)


def write_drift(path: Path, content: PublishedDrift) -> None:
    """Raises OSError."""
    write_json(path, content)
