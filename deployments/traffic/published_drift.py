"""The drift that `raylane plan --against live --publish` found: a file that gateways show on `/metrics` and in `raylane
status`. JSON, version 1."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cluster.files import read_json, write_json

FiniteFigure = Annotated[float, Field(allow_inf_nan=False)]


class PublishedDriftError(ValueError):
    """A file that cannot be used; the message names file, key and value."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DriftAlarm(_Section):
    """A figure that is off now: requests/s, tokens or a share, or US dollars a GPU-hour of a pool. `model` and
    `traffic_class` of a price are empty, the `region` of a figure of all regions too. `acknowledged`: an operator knows
    of it (`acknowledge`). Times are of the day."""

    model: str
    traffic_class: str
    region: str
    quantity: str
    direction: Literal["above", "below"]
    expected: FiniteFigure
    observed: FiniteFigure
    since_unix_s: int
    acknowledged: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What it is about."""
        return self.model, self.traffic_class, self.region, self.quantity, self.direction

    @property
    def ratio(self) -> float:
        """Observed over expected; NaN where nothing was expected."""
        return self.observed / self.expected if self.expected else math.nan


class PublishedDrift(_Section):
    """The whole file. `compared_unix_s`: until when traffic was compared."""

    version: Literal[1] = 1
    worksheet: str
    compared_unix_s: int
    alarms: tuple[DriftAlarm, ...] = ()

    def record(self) -> dict[str, Any]:
        """Plain values, for a status page."""
        return self.model_dump(mode="json")


MOVED = 0.2
"""An acknowledged figure that has moved by more than this share is news again."""


def acknowledge(alarms: Iterable[DriftAlarm], known: Iterable[DriftAlarm]) -> tuple[DriftAlarm, ...]:
    """The alarms, with those marked that are `known` and have not moved further away since."""
    observed = {one.names: one.observed for one in known}

    def is_known(alarm: DriftAlarm) -> bool:
        before = observed.get(alarm.names)
        if before is None:
            return False
        if alarm.direction == "above":
            return alarm.observed <= before * (1 + MOVED)
        return alarm.observed >= before / (1 + MOVED)

    return tuple(alarm.model_copy(update={"acknowledged": is_known(alarm)}) for alarm in alarms)


def read_drift(path: Path) -> PublishedDrift:
    """Raises PublishedDriftError."""
    return read_json(path, PublishedDrift, PublishedDriftError)


def write_drift(path: Path, content: PublishedDrift) -> None:
    """Raises OSError."""
    write_json(path, content)
