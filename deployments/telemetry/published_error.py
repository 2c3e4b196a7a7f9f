"""A deployment's published error: the file that `raylane rehearse` writes, the gateway exports as a metric, and advice
quotes. JSON, version 1."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from cluster.errors import InputError
from cluster.files import read_json, write_json

POINTS = 0.03
Finite = Annotated[float, Field(allow_inf_nan=False)]


class PublishedError(InputError):
    """A file of errors that cannot be used; the message names file, key and value."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Section):
    """One figure: seconds live and simulated (means over the runs), the error, the live runs' spread, the bound if
    there is one.

    `error` is what is left when each run is simulated at the speed that the machine had in it; `raw_error` is at the
    calibrated speed.
    """

    name: str
    live_s: Finite
    simulated_s: Finite
    error: Finite
    raw_error: Finite
    spread: Finite
    bound: Finite | None = None

    @property
    def within(self) -> bool | None:
        """Whether the error keeps its bound, or is no further from the live runs than these from each other, plus 3
        points. None without a bound."""
        return None if self.bound is None else abs(self.error) <= max(self.bound, self.spread + POINTS)


class AtLoad(_Section):
    """Rehearsed at one load, a share of the live capacity. `slowness`: of each run, the time of its steps over what the
    costs say."""

    load: Finite
    runs: Annotated[int, Field(ge=1)]
    slowness: tuple[Finite, ...]
    requests: Annotated[int, Field(ge=1)]
    failed: Annotated[int, Field(ge=0)]
    figures: tuple[Figure, ...]


class Published(_Section):
    """The whole file. `capacity_*`: requests a second that were got through; the error of that is its own figure."""

    version: Literal[1] = 1
    model: str
    replicas: Annotated[int, Field(ge=1)]
    costs: str
    """The cost file's basis and note."""
    measured_at: str
    capacity_live: Finite
    capacity_simulated: Finite
    loads: tuple[AtLoad, ...]

    @property
    def capacity_error(self) -> float:
        return self.capacity_simulated / self.capacity_live - 1

    @property
    def worst(self) -> float:
        """The largest error of a figure that has a bound: what advice quotes."""
        return max(
            (abs(figure.error) for load in self.loads for figure in load.figures if figure.bound is not None),
            default=0.0,
        )

    @property
    def within(self) -> bool:
        """Whether each figure that has a bound keeps it."""
        return all(figure.within is not False for load in self.loads for figure in load.figures)


def read_published(path: Path) -> Published:
    return read_json(path, Published, PublishedError)


def write_published(path: Path, content: Published) -> None:
    write_json(path, content)
